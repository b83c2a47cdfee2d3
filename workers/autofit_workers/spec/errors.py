"""Errors that end a trial as INVALID or FAILED, and the error kind that its outcome gets.

    Exception
    ├── InvalidTrialError         the work was not done           -> INVALID
    └── WorkerError               carries the outcome's error kind -> FAILED
        ├── DataDependentError    "data-dependent"
        ├── UnsupportedError      "unsupported"
        ├── StaleTensorError      "stale-tensor"
        ├── InapplicableError     "inapplicable"
        │   └── NoBatchKindsError
        ├── UnknownNameError      "unknown-model"
        └── DeviceError           "environment"
            ├── BusyDeviceError
            └── MissingLibraryError   "missing-library"

Any other exception that a workload raises has the kind `user`.
"""

from __future__ import annotations

from typing import ClassVar

_MOST_CHARACTERS = 1000  # of an exception's text


class InvalidTrialError(Exception):
    """A trial ran but did not train as requested, so its memory size means nothing."""


class WorkerError(Exception):
    """Base of the errors with which a trial fails; the message says what the user can do."""

    kind: ClassVar[str]


class DataDependentError(WorkerError):
    """An operator's output depends on values, which a prediction does not have."""

    kind = "data-dependent"


class UnsupportedError(WorkerError):
    """The probe, the device or the installed PyTorch cannot do what the trial needs."""

    kind = "unsupported"


class StaleTensorError(WorkerError):
    """The workload kept a tensor of an earlier prediction in this process on the device."""

    kind = "stale-tensor"


class InapplicableError(WorkerError):
    """A knob's value does not apply to the workload, as a rewrite that fits none of its convolutions."""

    kind = "inapplicable"


class NoBatchKindsError(InapplicableError):
    """The worst batch was asked for, but the workload makes one kind of batch only."""


class UnknownNameError(WorkerError):
    """A library has no model, or a module no attribute, of a given name; found out by importing it."""

    kind = "unknown-model"


class DeviceError(WorkerError):
    """The machine lacks a device or a permission that a trial needs."""

    kind = "environment"


class BusyDeviceError(DeviceError):
    """Other processes hold memory of the device, so a trial could not measure its own use."""


class MissingLibraryError(DeviceError):
    """A knob's value or a model needs a library that is not installed where trials run."""

    kind = "missing-library"


def in_short(error: BaseException) -> str:
    """Name of an exception and the first line of its text."""
    name, text = type(error).__name__[:_MOST_CHARACTERS], text_of(error)
    return f"{name}: {text}" if text else name


def text_of(value: object) -> str:
    """First line of `str(value)`, cut at 1000 characters; safe if `__str__` raises."""
    try:
        text = str(value)
    except BaseException as error:  # noqa: BLE001 - the user's code
        return f"(its text cannot be made: {type(error).__name__[:_MOST_CHARACTERS]})"
    lines = text[:_MOST_CHARACTERS].strip().splitlines()
    is_cut = len(lines) == 1 and len(text) > _MOST_CHARACTERS
    return f"{lines[0]}…" if is_cut else lines[0] if lines else ""
