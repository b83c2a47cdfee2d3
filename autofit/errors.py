"""The exceptions of autofit, and the exit code that each ends a command with.

    AutofitError
    ├── UsageError                 2   the call or its settings are wrong
    │   ├── UnknownGpuError        2   no such card in the catalogue
    │   ├── UnknownModelError      2   no such model
    │   ├── InapplicableError      2   a knob does not apply to the workload
    │   ├── BudgetError            2   no memory of the device is left for PyTorch
    │   ├── UntimedCardError       2   no step times are predicted for the card
    │   └── StudyMismatchError     2   the study was begun with other settings
    ├── WorkloadFailedError        4   the user's own code fails at every batch size
    │   └── UnpredictableCardError 4   the workload cannot be predicted on the card
    ├── InfrastructureError        5   storage, cluster, driver or this machine fail
    │   ├── StorageError           5   the study, a trace or a report cannot be read or written
    │   │   └── StorageDeniedError 5   the database's user lacks the right for an operation
    │   ├── DispatchError          5   no worker can be reached, or a trial was lost or hung twice
    │   ├── DriverError            5   the NVIDIA driver does not answer
    │   ├── MissingLibraryError    5   a knob's value needs a library that is not installed
    │   ├── UnusablePyTorchError   5   memory cannot be predicted with the installed PyTorch
    │   └── OutputError            5   stdout cannot be written
    ├── ReaderGoneError          141   the reader of stdout went away
    └── InternalError              1   autofit itself is wrong

When nothing fits there is a result and no exception: `tune` and `check` exit with 3. A check that is
unsure exits with 6, one of a lock whose peaks grew with 7, an interrupted command with 130.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from enum import IntEnum

from autofit_workers.spec.shown import shown

ERROR_SCHEMA = "autofit.error/1"


class ExitCode(IntEnum):
    """Exit code of an autofit command.

    `FOUND` means success, `UNSURE` that a check gives no clear answer, `GREW` that memory grew since it was
    locked.
    """

    FOUND = 0
    INTERNAL = 1
    USAGE = 2
    NOTHING_FITS = 3
    WORKLOAD_FAILED = 4
    INFRASTRUCTURE = 5
    UNSURE = 6
    GREW = 7
    INTERRUPTED = 130
    READER_GONE = 141


_NUM_NEAR, _NUM_NAMED = 4, 5  # most names in a message: similar ones, and in a list


class AutofitError(Exception):
    """Base of autofit's expected errors; raise one of its subclasses.

    Args:
        message: one sentence for the user, with the next step in it.

    Attributes:
        message: the sentence, without secrets and characters that control a terminal.
        kind: a word for programs that read the error, which stays the same between versions.
        exit_code: exit code of a command that fails with this error.
    """

    kind: str = "error"
    exit_code: ExitCode = ExitCode.INFRASTRUCTURE

    def __init__(self, message: str) -> None:
        self.message = shown(message)
        super().__init__(self.message)

    def to_json(self) -> str:
        """JSON document of the error, of schema `autofit.error/1`."""
        return json.dumps(
            {
                "schema": ERROR_SCHEMA,
                "kind": self.kind,
                "message": self.message,
                "exit_code": int(self.exit_code),
            }
        )


class UsageError(AutofitError):
    """A call or its settings are wrong, and nothing was started."""

    kind = "usage"
    exit_code = ExitCode.USAGE


class UnknownGpuError(UsageError):
    """The catalogue of GPU models has no card of the given name."""

    kind = "unknown-gpu"


class UnknownModelError(UsageError):
    """A model's name is neither a built-in one nor a reference to be imported, such as `file.py:function`."""

    kind = "unknown-model"


class BudgetError(UsageError):
    """No memory of the device is left for PyTorch, after CUDA context, other processes and margin."""

    kind = "budget"


class StudyMismatchError(UsageError):
    """A stored search (study) of the given name exists, but was begun with other settings."""

    kind = "study-mismatch"


class InapplicableError(UsageError):
    """A requested change does not apply to the workload, such as checkpointing without repeated blocks."""


class WorkloadFailedError(AutofitError):
    """The user's code fails for a reason that a smaller batch does not cure.

    Args:
        message: one sentence for the user, with the next step in it.
        kind: the reason as a word for programs, such as `data-dependent`; `workload` if none is known.
        traceback: the traceback of the user's code, as text; empty if there is none.
    """

    kind = "workload"
    exit_code = ExitCode.WORKLOAD_FAILED

    def __init__(self, message: str, *, kind: str = "workload", traceback: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.traceback = shown(traceback)


class UnpredictableCardError(WorkloadFailedError):
    """The workload cannot be predicted on the given GPU model, but perhaps on others."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="unsupported")


class UntimedCardError(UsageError):
    """Step times are needed that cannot be predicted on the given GPU model, but perhaps on others."""


class InfrastructureError(AutofitError):
    """Something around the workload fails: storage, Ray cluster, or GPU driver."""

    kind = "infrastructure"
    exit_code = ExitCode.INFRASTRUCTURE


class StorageError(InfrastructureError):
    """A stored search (study), trace, report or other file cannot be read or written."""

    kind = "storage"


class StorageDeniedError(StorageError):
    """The database user may read, but not do what was attempted, such as to write."""


class DispatchError(InfrastructureError):
    """No process to run configurations in can be reached, or a run was lost or hung twice."""

    kind = "dispatch"


class DriverError(InfrastructureError):
    """The NVIDIA driver is installed but does not answer."""

    kind = "driver"


class MissingLibraryError(InfrastructureError):
    """A requested setting, such as an 8-bit optimizer, needs a library that is missing where it would run."""


class UnusablePyTorchError(InfrastructureError):
    """Memory cannot be predicted with the installed PyTorch, as its self-test has shown."""


class OutputError(InfrastructureError):
    """Standard output is closed or full, or cannot be written for another reason."""

    kind = "output"


class ReaderGoneError(AutofitError):
    """The reader of standard output has ended, as `head` does; the exit code is the shell's for SIGPIPE."""

    kind = "reader-gone"
    exit_code = ExitCode.READER_GONE

    def __init__(self, message: str = "nobody reads stdout any more") -> None:
        super().__init__(message)


class InternalError(AutofitError):
    """Autofit itself has a bug, which is neither the user's nor the workload's."""

    kind = "internal"
    exit_code = ExitCode.INTERNAL


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Text ` Did you mean a or b?` to end a message on an unknown name; empty if no name is similar.

    Suggests the names that contain `name`, the shortest first; if there are none, names of similar spelling.

    Args:
        name: name that is unknown.
        known: all names that exist.
    """
    wanted = name.casefold()
    by_folded = {key.casefold(): key for key in sorted(known, key=lambda key: (len(key), key))}
    near = [folded for folded in by_folded if wanted and wanted in folded]
    near = near or difflib.get_close_matches(wanted, by_folded, n=3, cutoff=0.7)
    if not near:
        return ""
    return f" Did you mean {either([by_folded[folded] for folded in near[:_NUM_NEAR]])}?"


def either(names: Sequence[str]) -> str:
    """Text of names as `a, b or c`; of more than five the first five, and the number of the others."""
    if len(names) > _NUM_NAMED:
        return f"{', '.join(names[:_NUM_NAMED])} or one of {len(names) - _NUM_NAMED} others"
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
