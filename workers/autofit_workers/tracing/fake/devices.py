"""Replaces `"cuda"` and device indices by numbered devices such as `cuda:0` in Python calls.

For `"cuda"` and `.cuda()` C++ would ask a device guard for the current GPU, and there is none. C++ also does
not notice that a tensor is already on the GPU, as it sees another device (see `fake_gpu`). The mode here also
answers Python calls that read values of fake GPU tensors, such as `tensor.item()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from autofit_workers.pytorch.dispatch import DisableTorchDispatch, is_functorch_tensor
from autofit_workers.pytorch.fake_tensors import FakeTensor
from autofit_workers.pytorch.tensors import is_all_true, parse_to
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.tracing.fake import pinned, streams
from autofit_workers.tracing.fake.tensor_types import constructed
from autofit_workers.tracing.values.decisions import here, running
from autofit_workers.tracing.values.known import is_made_up, known
from autofit_workers.tracing.values.made_up import MadeUpInt
from autofit_workers.tracing.values.reads import ANSWERS, OF_MADE_UP

GPU = torch.device("cuda:0")
# Functions that programs call for single numbers, up to millions of times, so they are passed on fast.
_OF_NUMBERS = frozenset(
    getattr(torch.Tensor, f"__{name}__") for name in ("getitem", "setitem", "int", "index", "float", "bool")
) | {torch.Tensor.item, torch.Tensor.add, torch.Tensor.sub, torch.Tensor.mul}

# Functions that make a tensor of nested lists, whose elements may be one-element tensors to read.
_OF_LISTS = frozenset({torch.tensor, torch.as_tensor, torch.Tensor.new_tensor})
# Only `torch._check_tensor_all` calls it, to check a condition.
_ALL = is_all_true
# Functions that need handling even without an argument `device`; most others are passed on.
_NAMING = frozenset(
    {
        torch.device,
        parse_to,
        torch.Tensor.type,
        torch.Tensor.new,
        torch.Tensor.new_tensor,
        torch.Tensor.to,
        torch.Tensor.cuda,
        _ALL,
        *_OF_LISTS,
        torch.sparse_coo_tensor,
        *ANSWERS,
    }
)


class NamedDevices(TorchFunctionMode):
    """Function mode that gives GPUs in Python calls an index, `cuda:0`, and answers reads of fake values.

    Such reads, as by `Tensor.item`, get values that are known, else made-up ones.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.from_numpy or (func in _OF_NUMBERS and not kwargs and all(map(_is_plain, args))):
            with DisableTorchDispatch():
                return func(*args)
        kwargs = kwargs or {}
        if func not in _NAMING and "device" not in kwargs and not any(map(_has_made_up, args)):
            return func(*args, **kwargs)
        return self._called(func, args, kwargs)

    def _called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a Python call, with indices given to its devices and reads of fake values answered."""
        if func is torch.device:
            return self.numbered(func(*_card(args), **kwargs)) if args else func(**kwargs)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": self._chosen(kwargs["device"])}
        if func is parse_to:
            return func(*map(self._chosen, args), **kwargs)
        if func in _MADE_HERE:
            return _MADE_HERE[func](*args, **kwargs)
        if func is torch.Tensor.new_tensor:
            kwargs = {"device": args[0].device, **kwargs}
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], self._chosen(args[1]), *args[2:])
        elif func is torch.Tensor.cuda:
            self._chosen(args[1] if args[1:] else None)
            func, args, kwargs = torch.Tensor.to, (args[0], GPU), {}
        if func is torch.Tensor.to and _is_there_already(args[0], args[1:], kwargs):
            return args[0]
        return self._reading(func, args, kwargs)

    def _reading(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call; one that reads a fake tensor's values gets known or made-up values."""
        if func in ANSWERS and (
            isinstance(args[0], FakeTensor) or (func in OF_MADE_UP and is_made_up(args[0]))
        ):
            streams.host_reads()
            return ANSWERS[func](*args, **kwargs)
        if func is _ALL and isinstance(args[0], FakeTensor) and _is_unknown(args[0]):
            streams.host_reads()
            return torch.tensor(True)  # a check on unknown values is taken to hold
        if func in _OF_LISTS:
            args = tuple(_read(each) if isinstance(each, list | tuple) else each for each in args)
            if kwargs.get("pin_memory"):  # C++ pins it without calling a dispatch mode
                return pinned.pinned(self._reading(func, args, {**kwargs, "pin_memory": False}))
        if any(map(_has_made_up, args)):
            args = tuple(map(_plain, args))
        return func(*args, **kwargs)

    def _chosen(self, device: Any) -> Any:
        """Device that a call names, with its index; a value that is no device is returned unchanged.

        Subclasses may refuse a device.
        """
        return self.numbered(device)

    def numbered(self, device: Any) -> Any:
        """Device with its index, also where there is no such GPU; any other value stays unchanged."""
        return _named(device)


def _is_unknown(tensor: FakeTensor) -> bool:
    values = known(tensor)
    return values is None or values.is_made_up


def _read(value: Any) -> Any:
    """Nested list `value` with each one-element fake tensor replaced by its number.

    The host waits for the GPU at each, as a real read would.
    """
    if isinstance(value, list | tuple):
        return type(value)(map(_read, value))
    if isinstance(value, FakeTensor) and value.numel() == 1:
        streams.host_reads()
        return ANSWERS[torch.Tensor.item](value)
    return value


def _is_plain(value: Any) -> bool:
    """Whether a value is an ordinary number, or a real CPU tensor whose values are not made up.

    Made-up values stand for values that only a real run has. Tensors wrapped by `torch.func` transforms do
    not count, as their type hides what they wrap.
    """
    return type(value) in (int, float) or (
        type(value) is torch.Tensor and not is_functorch_tensor(value) and not is_made_up(value)
    )


def _has_made_up(value: Any) -> bool:
    """Whether a value is a made-up integer, or a list, tuple or slice that has one."""
    if isinstance(value, list | tuple):
        return any(type(each) is MadeUpInt or (type(each) is slice and _has_made_up(each)) for each in value)
    if type(value) is slice:
        return MadeUpInt in (type(value.start), type(value.stop), type(value.step))
    return type(value) is MadeUpInt


def _plain(value: Any) -> Any:
    """Value with made-up integers replaced by ordinary ones of the same value.

    A made-up integer stands for one that only a real run has. Each is recorded as a size that was assumed.
    """
    if type(value) is MadeUpInt:
        return running().assume("a size made of values", value.plain, None)
    if type(value) is slice:
        return slice(_plain(value.start), _plain(value.stop), _plain(value.step))
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _card(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of `torch.device` with `cuda` put before a lone index, so that PyTorch looks up no GPU."""
    return ("cuda", args[0]) if len(args) == 1 and type(args[0]) is int else args


def _of_type(tensor: torch.Tensor, kind: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Result of `tensor.type(kind)`, also for `torch.cuda` types, which a CPU build does not know."""
    if kind is None:
        return tensor.type()
    if isinstance(kind, torch.dtype):
        return tensor.to(kind)
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    if not name.startswith("torch.cuda."):
        converted: torch.Tensor = tensor.type(kind, *args, **kwargs)
        return converted
    dtype: torch.dtype = getattr(torch, name.rpartition(".")[2]).dtype  # of the CPU type of that name
    return tensor.to(GPU, dtype)


def _new(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Result of `tensor.new(…)`, made in Python since dispatch modes would not see C++ make it."""
    if isinstance(tensor, FakeTensor) and tensor.layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(*args, dtype=tensor.dtype, device=tensor.device)
    if isinstance(tensor, FakeTensor) and not kwargs:
        return constructed(tensor.dtype, tensor.device, args)
    made: torch.Tensor = tensor.new(*args, **kwargs)
    return made


def _of_coordinates(indices: Any, values: Any, size: Any = None, **kwargs: Any) -> torch.Tensor:
    """Result of `torch.sparse_coo_tensor`; raises `UnsupportedError` if unknown indices decide its size."""
    found = known(indices) if isinstance(indices, FakeTensor) else None
    if size is None and isinstance(indices, FakeTensor) and (found is None or found.is_made_up):
        raise UnsupportedError(
            f"the size of the sparse tensor at {here()} depends on values, which a prediction does not have: "
            "give torch.sparse_coo_tensor the size"
        )
    return torch.sparse_coo_tensor(indices, values, *(() if size is None else (size,)), **kwargs)


_MADE_HERE: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.Tensor.type: _of_type,
    torch.Tensor.new: _new,
    torch.sparse_coo_tensor: _of_coordinates,
}


def _is_there_already(tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether `tensor.to(…)` would return a fake tensor itself, as device and dtype stay the same."""
    if not isinstance(tensor, FakeTensor) or "copy" in kwargs or len(args) > 3:
        return False
    device, dtype, _non_blocking, memory_format = parse_to(*args, **kwargs)
    return device in (None, tensor.fake_device) and dtype in (None, tensor.dtype) and memory_format is None


def _named(device: Any) -> Any:
    """Device with its index: `cuda:0` for `cuda`, `cuda:1` for 1; a value that is no device is kept."""
    if isinstance(device, int) and not isinstance(device, bool):
        return torch.device("cuda", device)
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device) and device.type == "cuda" and device.index is None:
        return GPU
    return device
