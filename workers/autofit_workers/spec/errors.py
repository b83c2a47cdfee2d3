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
    """A trial (one measured or predicted run) did not train as requested, so its memory means nothing."""


class WorkerError(Exception):
    """Base of the errors with which a trial fails; the message says what the user can do."""

    kind: ClassVar[str]


class DataDependentError(WorkerError):
    """The output of an operator depends on tensors' values, which a prediction does not have."""

    kind = "data-dependent"


class UnsupportedError(WorkerError):
    """The device, the installed PyTorch or the probe lacks a feature that a trial needs."""

    kind = "unsupported"


class StaleTensorError(WorkerError):
    """The workload kept a tensor of an earlier prediction in this process, which the next one cannot use."""

    kind = "stale-tensor"


class InapplicableError(WorkerError):
    """A training option does not apply to the workload, such as a rewrite of convolutions that it lacks."""

    kind = "inapplicable"


class NoBatchKindsError(InapplicableError):
    """The largest batches of the data (`--worst-case`) were asked for, but a workload makes one kind only."""


class UnknownNameError(WorkerError):
    """A library has no model, or a module no attribute, of a given name, as importing it has shown."""

    kind = "unknown-model"


class DeviceError(WorkerError):
    """The machine lacks a device or a permission that a trial needs."""

    kind = "environment"


class BusyDeviceError(DeviceError):
    """Other processes hold memory of the device, so a trial could not measure its own use."""


class MissingLibraryError(DeviceError):
    """A training option or a model needs a library that is not installed where trials run."""

    kind = "missing-library"


def in_short(error: BaseException) -> str:
    """Name of an exception and the first line of its text."""
    name, text = type(error).__name__[:_MOST_CHARACTERS], text_of(error)
    return f"{name}: {text}" if text else name


def text_of(value: object) -> str:
    """First line of `str(value)`, cut at 1000 characters; also works if `__str__` raises."""
    try:
        text = str(value)
    except BaseException as error:  # noqa: BLE001 - the user's code
        return f"(its text cannot be made: {type(error).__name__[:_MOST_CHARACTERS]})"
    lines = text[:_MOST_CHARACTERS].strip().splitlines()
    is_cut = len(lines) == 1 and len(text) > _MOST_CHARACTERS
    return f"{lines[0]}…" if is_cut else lines[0] if lines else ""
