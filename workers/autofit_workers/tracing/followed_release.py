"""Release of PyTorch whose behaviour a prediction follows, where it is not the one that is installed.

`autofit_workers.spec.releases` lists what differs. Here the installed PyTorch is made to do what the followed
release does: for one prediction after another, as a process may make several.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from autofit_workers.pytorch.autograd import RUN_BACKWARD
from autofit_workers.pytorch.operators import OpOverload, find_operator
from autofit_workers.spec.releases import (
    AUTOCAST_OF_RMS_NORM,
    FUSED_RMS_NORM,
    OPERATORS_SINCE,
    SHARDS_ARE_COPIES,
    WHOLE_SLICES_ARE_FREE,
    Release,
    note_on_following,
)
from autofit_workers.spec.versions import parse_release

_INSTALLED = parse_release(torch.__version__)
_HALVES = (torch.float16, torch.bfloat16)
_GET_ITEM: Any = Tensor.__getitem__
_RMS_NORM_WEIGHS_UPCAST: Release = (2, 7)  # before, the weight multiplies what is cast back already

aten: Any = torch.ops.aten


class _Followed:
    """State of the prediction that is being made.

    Attributes:
        name: release that is followed; None for the installed one.
        release: that release, or the installed one, as numbers.
        newer_operators: operators that the release does not have, by name.
        used: names of those that the step called.
        undo: undoes what was changed in PyTorch.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.release: Release = _INSTALLED
        self.newer_operators: dict[OpOverload, str] = {}
        self.used: dict[str, None] = {}
        self.undo = contextlib.ExitStack()


_followed = _Followed()


def begin_program(release: str | None, *, shards: bool = False) -> None:
    """Follows a release of PyTorch from now on, in this process.

    Args:
        release: release such as `2.8`; None for the installed one.
        shards: whether several ranks may share tensors, for which `torch.distributed.tensor` is imported.
    """
    _followed.undo.close()
    _followed.name, _followed.used = release, {}
    _followed.release = _INSTALLED if release is None else parse_release(release)
    _followed.newer_operators = {
        find_operator(name): name
        for name, since in OPERATORS_SINCE.items()
        if _followed.release < since <= _INSTALLED
    }
    if _followed.release < FUSED_RMS_NORM <= _INSTALLED:
        # XLA is the device that C++ sees; see `fake.fake_gpu`.
        _replace_rms_norm(_rms_norm, ("AutocastCUDA", "AutogradCUDA", "AutogradXLA"), _followed.undo)
    elif _followed.release < AUTOCAST_OF_RMS_NORM <= _INSTALLED:
        _replace_rms_norm(_rms_norm_under_autocast, ("AutocastCUDA",), _followed.undo)
    if shards and _followed.release < SHARDS_ARE_COPIES <= _INSTALLED:
        from autofit_workers.pytorch.dtensors import SPLIT_OFF_SHARD, split_off_view

        _followed.undo.callback(SPLIT_OFF_SHARD.replace, SPLIT_OFF_SHARD.get())
        SPLIT_OFF_SHARD.replace(split_off_view)
    if _followed.release < WHOLE_SLICES_ARE_FREE <= _INSTALLED:
        _slice_whole_dimensions(_followed.undo)


def is_before(release: Release) -> bool:
    """Whether the release that is followed is older than `release`."""
    return _followed.release < release


def versions() -> dict[str, str]:
    """Versions for a trace: of the installed PyTorch, or the followed release and what traced it."""
    if _followed.name is None:
        return {"torch": torch.__version__}
    return {"torch": _followed.name, "traced_with": torch.__version__}


def observe(operator: OpOverload) -> None:
    """Remembers that a step called an operator, if the followed release does not have it."""
    if not _followed.newer_operators:  # nearly always, and an operator's hash costs more than that
        return
    if (found := _followed.newer_operators.get(operator)) is not None:
        _followed.used[found] = None


def is_another() -> bool:
    """Whether a prediction follows another release than the installed one."""
    return _followed.name is not None


def notes() -> tuple[str, ...]:
    """Sentences on what a prediction of another release takes into account; empty for the installed one."""
    if _followed.name is None:
        return ()
    found = [note_on_following(_followed.name, torch.__version__)]
    if _followed.used:
        found.append(
            f"PyTorch {_followed.name} has no {', '.join(_followed.used)}, which this step calls: what it "
            "does instead is not followed"
        )
    return tuple(found)


def _replace_rms_norm(
    function: Callable[..., Tensor], keys: Iterable[str], undo: contextlib.ExitStack
) -> None:
    """Lets `rms_norm` run as a function for some of PyTorch's dispatch keys."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")  # that one is overridden
        for key in keys:
            library.impl("rms_norm", function, key, allow_override=True)
    undo.callback(library._destroy)


def _rms_norm(
    input: Tensor,  # noqa: A002 - the operator's own name
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Output of `rms_norm` by operators, as before it had a kernel (aten/src/ATen/native/layer_norm.cpp)."""
    upcast = input.to(torch.float32) if input.dtype in _HALVES else input
    dimensions = [*range(-len(normalized_shape), 0)]
    eps = torch.finfo(upcast.dtype).eps if eps is None else eps
    squares = torch.pow(upcast, 2)  # has a name, as C++ keeps it to the end of the expression
    scale = squares.mean(dimensions, keepdim=True).add_(eps).rsqrt()
    del squares
    output = upcast.mul(scale)
    if is_before(_RMS_NORM_WEIGHS_UPCAST):
        output = output.type_as(input)
        return output if weight is None else output.mul(weight)
    if weight is not None:
        output = output.mul(weight)
    return output.type_as(input)


def _rms_norm_under_autocast(
    input: Tensor,  # noqa: A002 - the operator's own name
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Output of `rms_norm` under autocast where autocast does not cast its input to float32.

    The kernel wants input and weight of one data type; else the operators run that it was made of.
    """
    if weight is not None and weight.dtype != input.dtype:
        return _rms_norm(input, normalized_shape, weight, eps)
    output: Tensor = aten._fused_rms_norm(input, normalized_shape, weight, eps)[0]
    return output


def _slice_whole_dimensions(undo: contextlib.ExitStack) -> None:
    """Lets `x[:, 0]` slice the whole first dimension, so that backward makes a gradient of that slice."""
    mode, run_backward = _WholeSlices(), RUN_BACKWARD.get()

    def with_mode(*args: Any, **kwargs: Any) -> Any:
        with mode:  # PyTorch turns modes off for backward, in which checkpoints run blocks again
            return run_backward(*args, **kwargs)

    undo.enter_context(mode)
    undo.callback(mode.end)
    undo.callback(RUN_BACKWARD.replace, run_backward)
    RUN_BACKWARD.replace(with_mode)


class _WholeSlices(TorchFunctionMode):
    """Mode in which `x[:, 0]` slices the whole first dimension, so that backward makes a gradient of it.

    It is a mode, as PyTorch would take every tensor for a sequence if `Tensor` had its own `__getitem__`,
    for ever: `torch.tensor([x.max()])` would fail then.

    Attributes:
        is_on: whether it does so; it ends with the prediction even if code left a mode of its own behind.
    """

    is_on = True

    def end(self) -> None:
        self.is_on = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is not _GET_ITEM or not self.is_on:
            return func(*args, **(kwargs or {}))
        tensor, index = args
        if not isinstance(index, tuple) or not any(map(_is_whole, index)):
            return func(tensor, index)
        if all(map(_is_basic, index)):
            return _one_by_one(tensor, index)
        return func(_whole_dimensions_sliced(tensor, index), index)


def _is_whole(index: object) -> bool:
    """Whether an index is a slice without an end, such as `:`; with its end, as `0:16`, it is free."""
    if not isinstance(index, slice):
        return False
    is_from_begin = index.start is None or (type(index.start) is int and index.start == 0)
    return is_from_begin and index.stop is None and index.step in (None, 1)


def _is_basic(index: object) -> bool:
    return _is_number(index) or index is None or index is ... or isinstance(index, slice)


def _is_number(index: object) -> bool:
    return isinstance(index, int) and not isinstance(index, bool)


def _has_one_dimension(index: object) -> bool:
    """Whether an index is a tensor, array or list of one dimension, which stands for one dimension."""
    if isinstance(index, list):
        return not any(isinstance(each, list | tuple) for each in index)
    return getattr(index, "ndim", None) == 1


def _one_by_one(tensor: Tensor, indices: tuple[Any, ...]) -> Tensor:
    """Result of indexing with integers, slices, `None` and `...`, applied one after the other."""
    dimension = 0
    num_consumed = sum(each is not None and each is not ... for each in indices)
    num_skipped = tensor.dim() - num_consumed
    for each in indices:
        if each is ...:
            dimension += num_skipped
            continue
        if _is_whole(each):
            tensor = aten.slice(tensor, dimension)
        else:
            tensor = _GET_ITEM(tensor, (*[slice(None)] * dimension, each))
        dimension += not isinstance(each, int)
    return tensor


def _whole_dimensions_sliced(tensor: Tensor, indices: tuple[Any, ...]) -> Tensor:
    """Slices whole dimensions, up to the first index that adds or skips some, as a mask of an image does.

    Args:
        indices: indices of any kind, such as tensors.
    """
    for dimension, each in enumerate(indices):
        if not (isinstance(each, slice) or _is_number(each) or _has_one_dimension(each)):
            break
        if _is_whole(each):
            tensor = aten.slice(tensor, dimension)
    return tensor
