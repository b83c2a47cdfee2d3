"""Tracks known values of fake tensors: values copied from the CPU, constants, and results computed from them.

A fake tensor has no data. If its values are known, a real CPU tensor attached to it holds them. Known values
are, for example, labels, masks and lengths that were copied to the device. An operator whose inputs are all
known is also run on the CPU, as far as `effort` allows. Random numbers are unknown, except permutations
(`randperm`), for which any draw will do. If an operator writes unknown values into a tensor, all values in
the same storage become unknown.

Made-up values stand for unknown ones that a program reads; results computed from them are made up too.
"""

from __future__ import annotations

import functools
import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.fake_tensors import FakeTensor
from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.tracing.values.decisions import running
from autofit_workers.tracing.values.effort import is_small

aten: Any = torch.ops.aten

_ATTRIBUTE = "_autofit_known"
_MADE_UP = "_autofit_made_up"  # attribute of a real tensor whose values are made up
# Unknown values that a program copies to the CPU become a real tensor of made-up values up to this size.
_MOST_COPIED_BYTES = 4 * 2**20


_has_made_up = [False]  # whether this process has made up any values


class _Memory:
    """State shared by the known values of all tensors in one storage.

    Attributes:
        is_valid: whether the values are still those of the fake tensors in the storage.
        is_made_up: whether they stand for unknown values.
    """

    __slots__ = ("is_made_up", "is_valid")

    def __init__(self, *, is_made_up: bool) -> None:
        self.is_valid = True
        self.is_made_up = is_made_up


@dataclass(frozen=True, slots=True)
class Known:
    """Values of a fake tensor that could be computed, as a real tensor on the CPU."""

    values: Tensor
    memory: _Memory

    @property
    def is_made_up(self) -> bool:
        return self.memory.is_made_up


class _Kind(Enum):
    OTHER = auto()
    IN_PLACE = auto()
    OVERWRITES = auto()
    LIST = auto()
    UNKNOWN = auto()
    VIEW = auto()


_FILLING = frozenset({"fill_", "zero_", "copy_"})
_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
# Operators whose result takes the shape of their first argument, but not its values.
_FILLED_LIKE = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})
_OF_A_SHAPE = frozenset({"empty", "zeros", "ones", "full", "empty_strided"})
_MOST_ITEM_BYTES = 4
_UNIFORM = {"any": None, "all": None, "max": None, "min": None, "amax": None, "amin": None, "mul": torch.mul,
            "logical_or": torch.logical_or, "logical_and": torch.logical_and, "bitwise_or": torch.bitwise_or,
            "bitwise_and": torch.bitwise_and, "logical_not": torch.logical_not,
            "bitwise_not": torch.bitwise_not}  # fmt: skip


# Operand that decides an operator's result whatever the other operand is; for integers this holds only for 0.
_ABSORBING = {"logical_or": True, "logical_and": False, "bitwise_or": True, "bitwise_and": False}

_SELECTING = frozenset({aten.index.Tensor, aten.masked_select.default, aten.nonzero.default})

# Random operators whose result on the CPU is as good as the device's: any permutation will do.
_DRAWN = frozenset({"randperm"})
_RANDOM_TAG = torch.Tag.nondeterministic_seeded


@functools.cache
def _kind(func: OpOverload) -> _Kind:
    """Effect of an operator on known values, such as overwriting its first argument or returning a view."""
    name = _name(func)
    if name.startswith(("_foreach", "_fused", "_amp")):
        return _Kind.LIST
    if name in _EMPTY:
        return _Kind.UNKNOWN
    first = func._schema.arguments[0].alias_info if func._schema.arguments else None
    if first is not None and first.is_write:
        return _Kind.OVERWRITES if name in _FILLING else _Kind.IN_PLACE
    if _RANDOM_TAG in func.tags and _name(func) not in _DRAWN:
        return _Kind.UNKNOWN
    returned = func._schema.returns[0].alias_info if func._schema.returns else None
    return _Kind.OTHER if returned is None else _Kind.VIEW


@functools.cache
def _written_places(func: OpOverload) -> tuple[int, ...]:
    """Positions of the arguments that an operator writes to."""
    infos = (argument.alias_info for argument in func._schema.arguments)
    return tuple(place for place, info in enumerate(infos) if info is not None and info.is_write)


@functools.cache
def _name(func: OpOverload) -> str:
    return func._schema.name.rpartition("::")[2]


def known(tensor: object) -> Known | None:
    """Known values of a fake tensor, or the values of a real one; None if unknown."""
    if isinstance(tensor, FakeTensor):
        found: Known | None = getattr(tensor, _ATTRIBUTE, None)
        return found if found is not None and found.memory.is_valid else None
    if isinstance(tensor, Tensor):
        return Known(tensor.detach(), _Memory(is_made_up=is_made_up(tensor)))
    return None


def learn(tensor: object, values: Tensor, *, is_made_up: bool = False, memory: _Memory | None = None) -> None:
    """Attaches `values` to a fake tensor as its known values, if the limits of `effort` allow.

    Args:
        tensor: the tensor; anything but a fake tensor of the shape of `values` is ignored.
        memory: state of the known values that `values` is a view of; None if it is no view.
    """
    if not isinstance(tensor, FakeTensor) or tensor.shape != values.shape:
        return
    if memory is not None or running().effort.hold(values):
        setattr(tensor, _ATTRIBUTE, Known(values, memory or _Memory(is_made_up=is_made_up)))


def is_made_up(tensor: Tensor) -> bool:
    """Whether a real tensor's values are made up, that is, stand for unknown ones."""
    return hasattr(tensor, _MADE_UP)


def as_made_up(tensor: Tensor) -> Tensor:
    """Marks the values of a real tensor as made up, and returns the tensor."""
    setattr(tensor, _MADE_UP, True)
    _has_made_up[0] = True
    return tensor


def on_host(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operator on real tensors and returns its result, marked as made up if an input is."""
    result = func(*args, **kwargs)
    if _has_made_up[0] and any(_is_from_made_up(each) for each in (*args, *kwargs.values())):
        for each in result if isinstance(result, list | tuple) else (result,):
            if isinstance(each, Tensor):
                as_made_up(each)
        if func._schema.name.endswith("_") and isinstance(args[0], Tensor):
            as_made_up(args[0])
        _note_selected(func, args, result)
    return result


def _note_selected(func: OpOverload, args: tuple[Any, ...], result: Any) -> None:
    """Records the number of elements that a made-up mask selects as an assumed size."""
    masks = args[1] if func is aten.index.Tensor else args[1:] if func is aten.masked_select.default else args
    if func not in _SELECTING or not isinstance(masks, list | tuple):
        return
    # The selected elements are the result's dimension at the position of the first index tensor.
    place = next((number for number, mask in enumerate(masks) if mask is not None), 0)
    for mask in masks:
        is_mask = isinstance(mask, Tensor) and (mask.dtype == torch.bool or func is aten.nonzero.default)
        if is_mask and is_made_up(mask):
            running().assume("elements that are not zero", result.shape[place], mask.numel())


def _is_from_made_up(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_from_made_up, value))
    return isinstance(value, Tensor) and is_made_up(value)


def followed(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Updates known values after an operator ran on fake tensors.

    Results become known if all inputs are known; tensors that it wrote unknown values to become unknown.
    """
    kind = _kind(func)
    if kind is _Kind.LIST:
        for place in _written_places(func):
            for tensor in args[place] if place < len(args) and isinstance(args[place], list) else ():
                _forget(tensor)
        return
    if kind is _Kind.UNKNOWN:
        return
    if kind in (_Kind.IN_PLACE, _Kind.OVERWRITES):
        _follow_write(func, args, kwargs, overwrites=kind is _Kind.OVERWRITES)
        return
    if isinstance(result, Tensor) and not is_small(result) and _follow_uniform(func, args, result):
        return
    _follow(func, args, kwargs, result, is_view=kind is _Kind.VIEW)


def _follow(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, *, is_view: bool
) -> None:
    """Gives an operator's results known values, computed from its arguments if these are known."""
    if is_view and _held(args[0]) is None:
        return
    guesses = isinstance(result, Tensor) and result.dtype == torch.bool and result.numel() == 1
    if _name(func) in _FILLED_LIKE and _is_kept_where_filled(result):
        args = (torch.empty(args[0].shape, dtype=args[0].dtype), *args[1:])
    given = _values_of(args, kwargs, guesses=guesses)
    results = [result] if isinstance(result, Tensor) else result
    if given is None:
        if isinstance(result, Tensor):
            _follow_uniform(func, args, result)
        return
    if not isinstance(results, list | tuple):
        return
    written = () if is_view else [each for each in results if isinstance(each, Tensor)]
    if not running().effort.allows(func, given.tensors, written):
        return
    values = _computed(func, given)
    memory = known(args[0]).memory if is_view else None  # type: ignore[union-attr]
    computed = [values] if isinstance(values, Tensor) else values
    if isinstance(computed, list | tuple):
        for fake, real in zip(results, computed, strict=False):
            if isinstance(real, Tensor):
                learn(fake, real, is_made_up=given.is_made_up, memory=memory)


def _follow_write(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], *, overwrites: bool
) -> None:
    """Updates the known values of a tensor that an operator wrote to, or marks them unknown."""
    target = args[0]
    if not isinstance(target, FakeTensor):
        return
    held = known(target)
    if held is None:
        if overwrites and not target._is_view() and _is_kept_where_filled(target):
            blank = torch.empty(target.shape, dtype=target.dtype)
            given = _values_of((blank, *args[1:]), kwargs, guesses=False)
            if given is not None and _written(func, given, target):
                learn(target, blank, is_made_up=given.is_made_up)
        return
    is_random = _RANDOM_TAG in func.tags
    given = None if is_random else _values_of(args, kwargs, guesses=False)
    if given is None or not _written(func, given, target):
        _forget(target)
        return
    held.memory.is_made_up = held.memory.is_made_up or given.is_made_up


def _is_kept_where_filled(tensor: Tensor) -> bool:
    """Whether to keep known values of a tensor filled with one number: not if large and floating-point."""
    return is_small(tensor) or (not tensor.is_floating_point() and running().effort.has_room_for(tensor))


def _written(func: OpOverload, given: _Given, target: Tensor) -> bool:
    """Computes an operator that writes into `target`, whose values are known, so that they stay known.

    Returns False if the operator is too large or cannot be computed on the CPU.
    """
    is_allowed = running().effort.allows(func, given.tensors, [target])
    return is_allowed and _computed(func, given) is not None


def _forget(tensor: object) -> None:
    found: Known | None = getattr(tensor, _ATTRIBUTE, None)
    if found is not None:
        found.memory.is_valid = False


def _held(value: object) -> Tensor | None:
    found = known(value)
    return None if found is None else found.values


@dataclass(frozen=True, slots=True)
class _Given:
    """Arguments of an operator with the known values in place of fake tensors.

    Attributes:
        args, kwargs: the arguments.
        tensors: the tensors among them.
        is_made_up: whether any value is made up, that is, stands for an unknown one.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[Tensor]
    is_made_up: bool


def _values_of(args: tuple[Any, ...], kwargs: dict[str, Any], *, guesses: bool) -> _Given | None:
    """Arguments of a call with known values in place of fake tensors; None if any is unknown.

    Args:
        guesses: whether an unknown one-element tensor is assumed to be 1, which makes results made up.
    """
    is_one_made_up = False
    tensors: list[Tensor] = []

    def valued(value: Any) -> Any:
        """Argument with known values in place of fake tensors; raises `_UnknownError` if there are none."""
        nonlocal is_one_made_up
        if isinstance(value, Tensor):
            found = known(value)
            if found is None and guesses and value.numel() == 1:
                is_one_made_up = True
                return torch.ones(value.shape, dtype=value.dtype)
            if found is None or found.values.layout is not torch.strided:
                raise _UnknownError
            is_one_made_up = is_one_made_up or found.is_made_up
            tensors.append(found.values)
            return found.values
        if isinstance(value, list | tuple):
            return type(value)([valued(each) for each in value])
        return torch.device("cpu") if isinstance(value, torch.device) else value

    try:
        taken = tuple(map(valued, args))
        named = {name: valued(value) for name, value in kwargs.items() if name != "pin_memory"}
    except _UnknownError:
        return None
    return _Given(taken, named, tensors, is_one_made_up)


class _UnknownError(Exception):
    """Raised if the values of a tensor are unknown."""


def _computed(func: OpOverload, given: _Given) -> Any:
    """Result of an operator computed on the CPU from known values; None if the CPU cannot."""
    try:
        with torch.no_grad():
            return func(*given.args, **given.kwargs)
    except (RuntimeError, NotImplementedError, ValueError, IndexError, TypeError):
        return None  # the CPU may lack the kernel


def _follow_uniform(func: OpOverload, args: tuple[Any, ...], result: Tensor) -> bool:
    """Learns a result whose elements are all equal, without computing each; returns whether it could.

    Such results are comparisons like `isnan`, assuming finite inputs, and operators on uniform tensors.
    """
    truth = _of_finite(func, args)
    if truth is not None:
        learn(result, torch.tensor(truth).expand(result.shape))
        return True
    name = _name(func)
    if _follow_absorbed(name, args, result):
        return True
    tensors = [known(each) for each in args[:2] if isinstance(each, Tensor)]
    if (
        name not in _UNIFORM
        or not tensors
        or any(each is None or not _is_uniform(each.values) for each in tensors)
    ):
        return False
    first, *others = (each.values.flatten()[0] for each in tensors if each is not None)
    join: Callable[..., Tensor] | None = _UNIFORM[name]
    value = first if join is None else join(first, *others)
    learn(result, value.to(result.dtype).expand(result.shape))
    return True


def _follow_absorbed(name: str, args: tuple[Any, ...], result: Tensor) -> bool:
    """Learns a result that one operand alone decides, such as `False and x`; returns whether one does."""
    if name not in _ABSORBING or (_ABSORBING[name] and result.dtype != torch.bool):
        return False
    absorbs = _ABSORBING[name]
    for operand in filter(None, map(known, (each for each in args[:2] if isinstance(each, Tensor)))):
        values = operand.values
        if values.numel() and is_small(values) and bool((values.bool() == absorbs).all()):
            whole = torch.tensor(absorbs).to(result.dtype).expand(result.shape)
            learn(result, whole, is_made_up=operand.is_made_up)
            return True
    return False


def _is_uniform(values: Tensor) -> bool:
    return values.numel() > 0 and values.untyped_storage().nbytes() == values.element_size()


def _of_finite(func: OpOverload, args: tuple[Any, ...]) -> bool | None:
    """Result of a comparison that is the same for all finite values, such as `x != x`; None for others.

    `isnan` decomposes into `x != x`, and `isinf` into `abs(x) == inf`.
    """
    name = _name(func)
    if name in ("isnan", "isinf", "isposinf", "isneginf"):
        return False
    if name == "isfinite":
        return True
    if name not in ("eq", "ne") or len(args) < 2:
        return None
    is_infinity = isinstance(args[1], float) and math.isinf(args[1])
    if args[0] is args[1]:
        return name == "eq"
    return name == "ne" if is_infinity else None


# ── values for programs that read fake tensors ──────────────────────────────────────────────────


def copied_to_host(tensor: FakeTensor, dtype: torch.dtype | None = None) -> Tensor | None:
    """Real CPU copy of a fake tensor, with known or made-up values.

    None if the values are unknown and the tensor is sparse or larger than 4 MiB.
    """
    dtype = dtype or tensor.dtype
    found = known(tensor)
    if found is not None:
        copy = found.values.to(dtype, copy=True)
        return as_made_up(copy) if found.is_made_up else copy
    if tensor.layout is not torch.strided or tensor.numel() * dtype.itemsize > _MOST_COPIED_BYTES:
        return None
    return made_up_like(tensor, dtype)


def is_large_new(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether a factory operator such as `zeros` makes a tensor too large to be real on the CPU."""
    shape = args[0] if args else None
    if not isinstance(shape, list | tuple) or not all(isinstance(each, int) for each in shape):
        return False
    return _name(func) in _OF_A_SHAPE and math.prod(shape) * _MOST_ITEM_BYTES > _MOST_COPIED_BYTES


def made_up_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Real CPU tensor in the shape of `tensor`, of made-up values such as 1.

    One-element and floating-point tensors are 1 and integers 0; a mask is true for the assumed share of its
    elements. Tensors over 4 MiB are 0, in memory that takes no pages until it is written.
    """
    dtype = dtype or tensor.dtype
    if tensor.numel() == 1:
        return as_made_up(torch.ones(tensor.shape, dtype=dtype))
    if dtype == torch.bool:
        places = running().share * torch.arange(tensor.numel() + 1, dtype=torch.float64)
        return as_made_up((places.ceil().diff() > 0).reshape(tensor.shape))
    num_bytes = tensor.numel() * dtype.itemsize
    if num_bytes > _MOST_COPIED_BYTES:
        return as_made_up(torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=dtype).reshape(tensor.shape))
    fill = 1 if dtype.is_floating_point or dtype.is_complex else 0
    return as_made_up(torch.full(tensor.shape, fill, dtype=dtype))
