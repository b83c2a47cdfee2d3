"""Caches the result shapes of operators on fake tensors, as a training step repeats most calls.

`FakeTensorMode` has its own cache, but its keys describe tensors so completely that hashing them takes most
of a trace's time. The cache here holds only calls on strided tensors of one fake device, for which dtype,
sizes and strides suffice; all other calls go to PyTorch's fake mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from autofit_workers.pytorch.dispatch import DisableTorchDispatch
from autofit_workers.pytorch.fake_tensors import (
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    disable_fake_tensor_cache,
    in_kernel_invocation_manager,
    throw_on_mutable_data_ptr,
    warn_on_mutable_data_ptr,
)
from autofit_workers.pytorch.operators import OpOverload, find_operator, has_kernel
from autofit_workers.pytorch.tensors import make_subclass

aten: Any = torch.ops.aten

_META = torch.device("meta")
# Matrix products whose fake functions accept mixed dtypes, with the arguments that must share one on CUDA.
_ALIKE = {
    aten.mm.default: slice(0, 2),
    find_operator("aten.mm.dtype"): slice(0, 2),  # since 2.8
    aten.mv.default: slice(0, 2),
    aten.addmm.default: slice(0, 3),
    find_operator("aten.addmm.dtype"): slice(1, 3),  # since 2.8
}
_GROUPED_MM = find_operator("aten._grouped_mm.default")  # since 2.7
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True, slots=True)
class _Fresh:
    """Size, strides and dtype of an operator's result that has a dense storage of its own."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def as_computed(_func: OpOverload, _args: tuple[Any, ...], result: Any) -> Any:
    """Returns `result` unchanged; default of `ShapeCache`'s argument `finish`."""
    return result


# Keys of functions that need no GPU.
_RUN_ANYWHERE = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd")


class ShapeCache:
    """Runs operators on fake tensors, and computes each combination of operator and shapes only once.

    Args:
        fake_mode: computes results that are not cached yet, and owns all results.
        device: device of the tensors whose calls are cached.
        finish: gives a result the memory format that it would have on that device.
    """

    _known: ClassVar[dict[Any, tuple[type, list[_Fresh | None]] | None]] = {}

    def __init__(
        self, fake_mode: FakeTensorMode, device: torch.device, finish: Callable[..., Any] = as_computed
    ) -> None:
        self._fake_mode = fake_mode
        self._device = device
        self._finish = finish
        self._make = FakeTensors(fake_mode, device)

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Result of an operator on fake tensors, rebuilt from the cache if an equal call ran before.

        Raises:
            UnsupportedOperatorException: the operator has no fake function.
        """
        if returns_its_first_argument(func):
            return args[0] if func._schema.returns else None
        if (names := _only_written(func)) and all(name in kwargs for name in names):
            return kwargs[names[0]] if len(names) == 1 else tuple(kwargs[name] for name in names)
        if _returns_a_view(func) and type(args[0]) is FakeTensor and args[0].fake_device == self._device:
            with in_kernel_invocation_manager(self._fake_mode):
                view = func(*args, **kwargs)
            return self._make(view)
        key = self._key(func, args, kwargs) if _returns_fresh_tensors(func) else None
        known = None if key is None else self._known.get(key)
        if known is not None:
            return self._rebuild(*known)
        try:
            with self._fake_mode, self._cache_of(func):
                result = self._finish(func, args, _called(func, args, kwargs))
        except RuntimeError as error:
            if "no fake impl registered" not in str(error):
                raise
            raise UnsupportedOperatorException(func) from error  # as for PyTorch's own operators
        if key is not None and key not in self._known:
            self._known[key] = _describe(args, result, self._device)
        return result

    def _cache_of(self, func: OpOverload) -> AbstractContextManager[None]:
        """Context that disables PyTorch's cache of fake results if `func` takes a storage as an argument.

        The cache's key would keep the storage alive.
        """
        return disable_fake_tensor_cache(self._fake_mode) if _takes_a_storage(func) else nullcontext()

    def _key(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Cache key of a call, equal for calls with equal result shapes; None if it cannot be cached."""
        of_args = _key(args, self._device)
        if of_args is None:
            return None
        of_kwargs = _key(kwargs, self._device) if kwargs else ()
        return None if of_kwargs is None else (func, of_args, of_kwargs, self._device)

    def _rebuild(self, container: type, results: list[_Fresh | None]) -> Any:
        tensors = [None if r is None else self._tensor(r) for r in results]
        return tensors[0] if container is torch.Tensor else container(tensors)

    def _tensor(self, fresh: _Fresh) -> FakeTensor:
        return self._make.strided(fresh.size, fresh.stride, fresh.dtype)


def _called(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Result of a call in the fake mode; raises `RuntimeError` for mixed dtypes that CUDA does not accept.

    The fake function of `_grouped_mm` accepts only bfloat16, so other dtypes are passed as bfloat16. CUDA
    multiplies them group by group into one output (`_grouped_mm_fallback`,
    aten/src/ATen/native/GroupedMMUtils.h).
    """
    if func in _ALIKE:
        _require_one_type(args[_ALIKE[func]])
    if func is not _GROUPED_MM or args[0].dtype is torch.bfloat16:
        return func(*args, **kwargs)
    first, second, *rest = args
    output = func(first.bfloat16(), second.bfloat16(), *rest, **{**kwargs, "out_dtype": None})
    return output.to(kwargs.get("out_dtype") or first.dtype)


def _require_one_type(tensors: tuple[torch.Tensor, ...]) -> None:
    """Raises `RuntimeError` for a matrix product of tensors of several dtypes, as CUDA does.

    Source: the checks of `addmm_impl_cuda_` and of `addmv`, aten/src/ATen/native.
    """
    types = list(dict.fromkeys(str(tensor.dtype) for tensor in tensors))
    if len(types) > 1:
        raise RuntimeError(
            f"a matrix product takes tensors of one dtype, and was given {' and '.join(types)}: cast them, "
            "or run the step in torch.autocast"
        )


class FakeTensors:
    """Factory of fake tensors on one device, three times as fast as the class `FakeTensor`.

    Fake tensors of one mode and device differ only in the `meta` tensor that each wraps. All other attributes
    are copied from one fake tensor that the class made.

    Args:
        fake_mode: PyTorch's fake mode that owns the tensors.
        device: device of the tensors.
    """

    def __init__(self, fake_mode: FakeTensorMode, device: torch.device) -> None:
        first = FakeTensor(fake_mode, torch.empty((), device=_META), device)
        self._state = dict(vars(first))
        self._device = device
        # As in `FakeTensor.__new__`: copying a parameter reads its address, which has to be 0.
        self._guard_data = (
            warn_on_mutable_data_ptr if fake_mode._allow_unsafe_data_ptr_access else throw_on_mutable_data_ptr
        )

    def __call__(self, elem: torch.Tensor) -> FakeTensor:
        """Fake tensor with the shape and storage of `elem`, a tensor on the device `meta`."""
        made: FakeTensor = make_subclass(
            FakeTensor,
            elem,
            elem.requires_grad,
            dispatch_device=True,
            device_for_backend_keys=self._device,
        )
        self._guard_data(made)
        vars(made).update(self._state)
        return made

    def strided(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> FakeTensor:
        """New fake tensor with its own storage, of the given size, strides and dtype."""
        with DisableTorchDispatch():
            return self(torch.empty_strided(size, stride, dtype=dtype, device=_META))


@functools.cache
def returns_its_first_argument(func: OpOverload) -> bool:
    """Whether an operator only writes in place, without changing the shape or storage of its first argument.

    It may write further arguments too, as fused optimizers do.
    """
    schema = func._schema
    first = schema.arguments[0].alias_info if schema.arguments else None
    return (
        schema.name.endswith("_")
        and torch.Tag.inplace_view not in func.tags
        and schema.name not in ("aten::resize_", "aten::resize_as_", "aten::set_")
        and first is not None
        and first.is_write
    )


@functools.cache
def _only_written(func: OpOverload) -> tuple[str, ...]:
    """Arguments that an `out=` operator without a fake function writes and returns; none for others.

    Compiled code calls products such as `_scaled_mm.out` so, with outputs of the right size.
    """
    name = func.name()
    if any(has_kernel(name, key) for key in _RUN_ANYWHERE):
        return ()
    return tuple(argument.name for argument in func._schema.arguments if argument.is_out)


@functools.cache
def _takes_a_storage(func: OpOverload) -> bool:
    """Whether an operator takes a storage as an argument, such as `set_`, which `copy.deepcopy` calls."""
    return any(str(argument.type) == "Storage" for argument in func._schema.arguments)


@functools.cache
def _returns_a_view(func: OpOverload) -> bool:
    returns = func._schema.returns
    return func is aten._unsafe_view.default or (
        len(returns) == 1
        and isinstance(returns[0].type, torch.TensorType)
        and returns[0].alias_info is not None
        and not returns[0].alias_info.is_write
        and not has_kernel(func.name(), "CompositeImplicitAutograd")
    )


@functools.cache
def _returns_fresh_tensors(func: OpOverload) -> bool:
    """Whether an operator's results have new storages, and shapes that follow from the arguments' shapes."""
    dynamic = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
    schema = func._schema
    return (
        bool(schema.returns)
        and not dynamic.intersection(func.tags)
        and not any(r.alias_info for r in schema.returns)
        and not any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        # These may return their argument or a view of it, although their schemas do not say so.
        and schema.name not in ("aten::_reshape_alias", "aten::lift_fresh", "aten::_unsafe_view")
    )


def _key(value: Any, device: torch.device) -> Any:
    """Hashable description of a value for the cache; None if a part of it cannot be described."""
    kind = type(value)
    if kind is FakeTensor or kind is torch.nn.Parameter:
        plain = value.layout is torch.strided and value.fake_device == device
        return (value.dtype, value.shape, value.stride()) if plain else None
    if kind in (tuple, list):
        items = tuple(_key(item, device) for item in value)
        return None if None in items else items
    if kind is dict:
        return _key(tuple(value.items()), device)
    if isinstance(value, _PLAIN):
        return (kind, value)  # the type, as 1, 1.0 and True are equal
    return value if isinstance(value, OpOverload) else None


def _describe(
    args: tuple[Any, ...], result: Any, device: torch.device
) -> tuple[type, list[_Fresh | None]] | None:
    """Container and shapes of an operator's results, for the cache; None unless all own their storage."""
    container = type(result) if isinstance(result, (tuple, list)) else torch.Tensor
    results = [result] if container is torch.Tensor else list(result)
    given = {
        arg.untyped_storage()._cdata
        for arg in args
        if isinstance(arg, FakeTensor) and arg.layout is torch.strided
    }
    if not all(r is None or _is_fresh(r, device, given) for r in results):
        return None
    fresh = [None if r is None else _Fresh(tuple(r.shape), r.stride(), r.dtype) for r in results]
    return container, fresh


def _is_fresh(result: Any, device: torch.device, given: set[int]) -> bool:
    """Whether a result is a dense fake tensor on `device`, in a storage that no argument shares.

    Args:
        result: the operator's result.
        device: device that the result has to be on.
        given: addresses of the storages of the operator's arguments.
    """
    return (
        type(result) is FakeTensor
        and result.fake_device == device
        and result.layout is torch.strided
        and result.storage_offset() == 0
        and result.untyped_storage()._cdata not in given
        and result.untyped_storage().nbytes() == extent(result) * result.element_size()
    )


def extent(tensor: torch.Tensor) -> int:
    """Number of elements that a tensor spans in memory, from first to last; for a dense tensor `numel()`."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
