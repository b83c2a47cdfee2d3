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
            ├── BusyDeviceError
            └── MissingLibraryError   "missing-library"

Whatever else a workload raises is its own (`user`).
"""

from __future__ import annotations

from typing import ClassVar

_MOST_CHARACTERS = 1000  # of what an exception says


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
    """A library knows no such model, a module no such attribute, which shows only where it is imported."""

    kind = "unknown-model"


class DeviceError(WorkerError):
    """The machine lacks what the probe needs."""

    kind = "environment"


class BusyDeviceError(DeviceError):
    """Other processes hold the device's memory, so that a trial there would say nothing of its size."""


class MissingLibraryError(DeviceError):
    """A knob's value, or a model, is of a library that is not installed where trials run."""

    kind = "missing-library"


def in_short(error: BaseException) -> str:
    """The name of an exception and the first line of its text, whoever wrote it."""
    name, text = type(error).__name__[:_MOST_CHARACTERS], text_of(error)
    return f"{name}: {text}" if text else name


def text_of(value: object) -> str:
    """The first line of what a value of the user's says of itself, which may raise anything."""
    try:
        text = str(value)
    except BaseException as error:  # noqa: BLE001 - the user's code
        return f"(its text cannot be made: {type(error).__name__[:_MOST_CHARACTERS]})"
    lines = text[:_MOST_CHARACTERS].strip().splitlines()
    is_cut = len(lines) == 1 and len(text) > _MOST_CHARACTERS
    return f"{lines[0]}…" if is_cut else lines[0] if lines else ""
