"""Errors that end a trial with a verdict of their own.

    Exception
    ├── InvalidTrialError         the work was not done           -> INVALID
    └── WorkerError               carries the outcome's error kind -> FAILED
        ├── DataDependentError    "data-dependent"
        ├── UnsupportedError      "unsupported"
        ├── StaleTensorError      "stale-tensor"
        ├── InapplicableError     "inapplicable"
        │   └── NoBatchKindsError
        └── DeviceError           "environment"
            └── BusyDeviceError

Whatever else a workload raises is its own (`user`). No torch at import.
"""

from __future__ import annotations

from typing import ClassVar


class InvalidTrialError(Exception):
    """The trial ran but did not do the work it was asked for, so its size means nothing."""


class WorkerError(Exception):
    """A trial that cannot be answered; the text says the next step."""

    kind: ClassVar[str]


class DataDependentError(WorkerError):
    """An operator whose output depends on values, which a prediction does not have."""

    kind = "data-dependent"


class UnsupportedError(WorkerError):
    """Something that this probe, this device or this PyTorch cannot do."""

    kind = "unsupported"


class StaleTensorError(WorkerError):
    """A tensor of an earlier prediction in this process, which the workload kept on the device."""

    kind = "stale-tensor"


class InapplicableError(WorkerError):
    """A knob's value that means nothing to the workload, as an algorithm that works out no convolution."""

    kind = "inapplicable"


class NoBatchKindsError(InapplicableError):
    """The worst batch was asked for, of a workload that makes one kind of batch alone."""


class UnknownNameError(WorkerError):
    """A library of models knows no such one, which shows only where the library is imported."""

    kind = "unknown-model"


class DeviceError(WorkerError):
    """The machine lacks what the probe needs."""

    kind = "environment"


class BusyDeviceError(DeviceError):
    """Other processes hold the device's memory, so that a trial there would say nothing of its size."""
