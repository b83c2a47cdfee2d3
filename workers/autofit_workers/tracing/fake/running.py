"""Stack of the fake devices whose modes are active, the innermost last."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from autofit_workers.pytorch.fake_tensors import FakeTensorMode
from autofit_workers.pytorch.operators import OpOverload

# An operator, its arguments, and what it returned.
OperatorObserver = Callable[[OpOverload, tuple[Any, ...], dict[str, Any], Any], None]


class RunningDevice(AbstractContextManager[Any], Protocol):
    """Interface of `FakeDeviceMode` for modules that `fake_device` itself imports.

    Attributes:
        fake_mode: PyTorch's own, which makes tensors without values.
        observer: called after each operator.
    """

    fake_mode: FakeTensorMode
    observer: OperatorObserver

    def unobserved(self) -> AbstractContextManager[None]:
        """Context in which the observer is not told of operators."""
        ...

    def resized(self, storage: Any) -> None:
        """Tells the observer that a storage's size has changed."""
        ...


MODES: list[RunningDevice] = []
