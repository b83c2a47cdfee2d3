"""What a script learns of tensors that have no values, and which GPU it asks for."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from workers.errors import DataDependentError
from workers.predict.fake.devices import NamedDevices
from workers.predict.recording.call_sites import user_source
from workers.predict.scripts.answers import several_gpus
from workers.predict.scripts.made_up import MadeUpFloat, MadeUpInt

# Asked of losses and gradients, and answered as for a training that goes well.
_NOT_FINITE = frozenset({torch.isnan, torch.isinf, Tensor.isnan, Tensor.isinf})
_FINITE = frozenset({torch.isfinite, Tensor.isfinite})
_MADE_OF_NUMBERS = frozenset({torch.tensor, torch.as_tensor})
_HAND_ON = frozenset(
    {"any", "all", "sum", "max", "logical_or", "logical_and", "__or__", "__and__", "bitwise_or",
     "bitwise_and", "detach", "cpu", "to", "clone"}
)  # fmt: skip
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    alias: getattr(operator, name)
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for alias in (name, f"__{name}__")
}  # fmt: skip
_KNOWN = "_autofit_known"  # attribute of a tensor whose single value is known without a GPU


class ScriptDevices(NamedDevices):
    """Makes up single values that a script asks for, and refuses what would have to be decided by them.

    Args:
        name: of the script.
        refuse: ends the script for a reason.
    """

    def __init__(self, name: str, refuse: Callable[[Exception], NoReturn]) -> None:
        super().__init__()
        self._name = name
        self._refuse = refuse

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        tensor = args[0] if args else None
        for given in (*args[1:2], (kwargs or {}).get("device")):
            is_named = isinstance(given, str) and given.startswith("cuda:")
            device = torch.device(given) if is_named else given
            if isinstance(device, torch.device) and device.type == "cuda" and device.index:
                self._refuse(several_gpus(self._name, device.index))
        if isinstance(tensor, FakeTensor):
            known = _ANSWERS.get(func)
            if known is not None:
                return known(self, tensor, *args[1:])
        result = super().__torch_function__(func, types, args, kwargs)
        if args:
            _note_value(func, args, result)
        return result

    def number(self, tensor: Tensor, *_args: Any) -> Any:
        """A value for one that is only logged."""
        if tensor.numel() != 1:
            return self._refused(f"{tensor.numel()} values are read")
        if (known := getattr(tensor, _KNOWN, None)) is not None:
            return known
        return MadeUpFloat(1.0) if tensor.is_floating_point() else MadeUpInt()

    def plain_number(self, tensor: Tensor, *_args: Any) -> float:
        return float(self.number(tensor))

    def truth(self, tensor: Tensor) -> bool:
        known = getattr(tensor, _KNOWN, None)
        return bool(self._refused("a tensor decides a branch") if known is None else known)

    def whole_number(self, tensor: Tensor) -> int:
        known = getattr(tensor, _KNOWN, None)
        return int(self._refused("a tensor is converted to a whole number") if known is None else known)

    def values(self, tensor: Tensor, *_args: Any) -> Any:
        if tensor.numel() == 1:
            number = self.number(tensor)
            for _ in tensor.shape:
                number = [number]
            return number
        return self._refused(f"{tensor.numel()} values are read")

    def array(self, _tensor: Tensor, *_args: Any) -> Any:
        return self._refused("values are passed to NumPy")

    def text(self, tensor: Tensor, spec: str = "") -> str:
        return format(self.number(tensor), spec) if tensor.dim() == 0 else repr(tensor)

    def equal(self, _tensor: Tensor, *_args: Any, **_kwargs: Any) -> bool:
        return bool(self._refused("values of tensors are compared"))

    def _refused(self, what: str) -> NoReturn:
        self._refuse(data_dependent(self._name, what))


def data_dependent(name: str, what: str, where: str | None = None) -> DataDependentError:
    """Why a script is refused that lets values decide, and where that was: here unless told."""
    return DataDependentError(
        f"{name} depends on the values of tensors, which a prediction does not have ({what}, at "
        f"{where or _here()}): measure it instead (--probe measure on a machine with the GPU, or "
        "--device cpu)"
    )


def _here() -> str:
    return user_source(sys._getframe(1)) or "an unknown line"


def _note_value(func: Callable[..., Any], args: tuple[Any, ...], result: Any) -> None:
    """Notes which single value a tensor has, where that is known; in-place operators make it unknown."""
    name = getattr(func, "__name__", "")
    if (name.endswith("_") and not name.endswith("__")) or name.startswith("__i"):
        for written in args[0] if isinstance(args[0], list | tuple) else args[:1]:
            if isinstance(written, Tensor):
                vars(written).pop(_KNOWN, None)
        return
    if not isinstance(result, FakeTensor):
        return
    known = _known_value(func, name, args)
    if known is not None:
        setattr(result, _KNOWN, known)


def _known_value(func: Callable[..., Any], name: str, args: tuple[Any, ...]) -> bool | int | float | None:
    if func in _NOT_FINITE or func in _FINITE:
        return func in _FINITE
    first, *others = (getattr(arg, _KNOWN, None) if isinstance(arg, Tensor) else arg for arg in args[:2])
    if not isinstance(first, bool | int | float):
        return None
    if func in _MADE_OF_NUMBERS or name in _HAND_ON:
        return first
    if name in _COMPARISONS and others and isinstance(others[0], bool | int | float):
        return _COMPARISONS[name](first, others[0])
    return None


_ANSWERS: dict[Callable[..., Any], Callable[..., Any]] = {
    Tensor.item: ScriptDevices.number,
    Tensor.__float__: ScriptDevices.plain_number,
    Tensor.__bool__: ScriptDevices.truth,
    Tensor.is_nonzero: ScriptDevices.truth,
    torch.is_nonzero: ScriptDevices.truth,
    Tensor.__int__: ScriptDevices.whole_number,
    Tensor.__index__: ScriptDevices.whole_number,
    Tensor.tolist: ScriptDevices.values,
    Tensor.numpy: ScriptDevices.array,
    Tensor.__array__: ScriptDevices.array,
    Tensor.__format__: ScriptDevices.text,
    torch.equal: ScriptDevices.equal,
    Tensor.equal: ScriptDevices.equal,
    torch.allclose: ScriptDevices.equal,
    Tensor.allclose: ScriptDevices.equal,
}
