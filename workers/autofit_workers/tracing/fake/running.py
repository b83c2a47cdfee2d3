"""Stack of the fake devices whose modes are active, the innermost last."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from autofit_workers.pytorch.fake_tensors import FakeTensorMode
from autofit_workers.pytorch.operators import OpOverload

# Called with an operator, its positional and keyword arguments, and its result.
OperatorObserver = Callable[[OpOverload, tuple[Any, ...], dict[str, Any], Any], None]


class RunningDevice(AbstractContextManager[Any], Protocol):
    """Interface of `FakeDeviceMode` for modules that `fake_device` imports, to avoid an import cycle.

    Attributes:
        fake_mode: PyTorch's `FakeTensorMode`.
        observer: called after each operator on fake tensors.
    """

    fake_mode: FakeTensorMode
    observer: OperatorObserver

    def unobserved(self) -> AbstractContextManager[None]:
        """Context in which the observer is not called."""
        ...

    def launched(self, kernel: Any, read: tuple[Any, ...], written: list[Any]) -> None:
        """Reports a kernel of compiled code with the tensors that it reads and writes."""
        ...

    def resized(self, storage: Any) -> None:
        """Reports to the observer that a storage was resized."""
        ...


MODES: list[RunningDevice] = []
