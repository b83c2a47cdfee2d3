"""Answer on the text of an out-of-memory error; its document is `autofit.explained-error/1`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from autofit.errors import UsageError
from autofit.explain.out_of_memory.diagnosis import Diagnosis, diagnose
from autofit.explain.out_of_memory.reader import (
    MemoryFailure,
    UnreadableErrorError,
    main_failure,
    read_failures,
)
from autofit.identity import versions
from autofit.predict.estimate import Interval
from autofit.questions.failures.next_steps import next_steps
from autofit.questions.levers import Effect
from autofit_workers.spec.documents import MOST_BYTES

EXPLAINED_SCHEMA = "autofit.explained-error/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidingChange:
    """Change of options with which the step would have fitted, as predicted.

    Attributes:
        options: command-line options that make the change.
        peak_reserved_bytes: high end of the reserved peak with it.
        saved_bytes: bytes by which that is lower; null for another card.
        effect: side effect of the change, such as a slower step.
    """

    options: tuple[str, ...]
    peak_reserved_bytes: int
    saved_bytes: int | None
    effect: Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoiding:
    """Prediction of the workload that ran out of memory, and changes with which it would have fitted.

    Attributes:
        workload: name of the workload.
        batch_size: samples a batch.
        gpu: key of the card that was predicted for; null if none was named or recognized.
        limit_bytes: bytes that PyTorch could have reserved, as the error states or as the card has.
        interval: predicted reserved peak of the unchanged step.
        would_fit: whether its high end is within the limit, so that the step alone is not why it failed.
        changes: up to three changes with which it would have fitted, the gentlest first.
        is_complete: false if the time limit passed before everything was tried.
    """

    workload: str
    batch_size: int
    gpu: str | None
    limit_bytes: int
    interval: Interval
    would_fit: bool
    changes: tuple[AvoidingChange, ...]
    is_complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedError:
    """Out-of-memory error of a log, explained; `to_json()` is the document `autofit.explained-error/1`.

    Attributes:
        name: name of the file.
        error: the error that says most; the last if several do.
        diagnosis: what its sizes say.
        next_steps: what to do, a sentence each.
        errors: all errors of the log that differ, in its order, 50 at most.
        avoiding: prediction of the workload, if one is named; else null.
        versions: versions of autofit and PyTorch.
    """

    name: str
    error: MemoryFailure
    diagnosis: Diagnosis
    next_steps: tuple[str, ...]
    errors: tuple[MemoryFailure, ...]
    avoiding: Avoiding | None = None
    versions: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Answer as a dictionary of JSON's types: the content of its document."""
        return {"schema": EXPLAINED_SCHEMA, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def explain_failure(name: str, data: bytes) -> ExplainedError:
    """Explains the out-of-memory error in a log, without a prediction.

    Args:
        name: name of the file, for messages.
        data: the log.

    Raises:
        UsageError: it has no out-of-memory error that can be read.
    """
    if len(data) > MOST_BYTES:
        raise UsageError(
            f"{name} is larger than {MOST_BYTES >> 20} MiB: give its end, as `tail -c 10M` prints it"
        )
    try:
        failures = read_failures(data)
    except UnreadableErrorError as error:
        raise UsageError(
            f"{name} {error}: give the text of the error, or the log of the run, of PyTorch 1.12 or later"
        ) from error
    failure = main_failure(failures)
    diagnosis = diagnose(failure)
    return ExplainedError(
        name=name,
        error=failure,
        diagnosis=diagnosis,
        next_steps=next_steps(failure, diagnosis),
        errors=failures,
        versions=versions(),
    )
