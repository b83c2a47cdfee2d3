"""Finds the batch size of a trainer's own workload: predicted first, then tried in processes of their own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autofit import api
from autofit.errors import InfrastructureError, UsageError
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes
from autofit_workers.spec.errors import DeviceError, InapplicableError, UnsupportedError
from autofit_workers.spec.protocol import Evidence
from autofit_workers.workload.workload import Workload

MAX_TRIALS = 2


class UnreadableTrainerError(UsageError):
    """Model or data of a trainer that cannot be sent to the process that predicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBatch:
    """Largest batch of a trainer that fits, with its evidence.

    Attributes:
        batch_size: samples of a batch, on each rank.
        grad_accumulation: number of batches whose gradients are accumulated for a step.
        evidence: whether the size was predicted, or measured on a card or on the CPU.
        peak_bytes: its peak: on a card the reserved one, on the CPU the resident set; None if not known.
        num_trials: number of sizes that were tried by real steps.
        notes: sentences for the user.
    """

    batch_size: int
    grad_accumulation: int
    evidence: Evidence
    peak_bytes: int | None
    num_trials: int
    notes: tuple[str, ...] = ()

    def in_words(self) -> str:
        """Sentence on the size, its peak and the evidence."""
        peak = "" if self.peak_bytes is None else f" with a peak of {format_bytes(self.peak_bytes)}"
        how = (
            "predicted, not tried" if self.evidence is Evidence.PREDICTED
            else f"{self.evidence} by real steps, {self.num_trials} tried"
        )  # fmt: skip
        times = f", accumulated {self.grad_accumulation} times" if self.grad_accumulation > 1 else ""
        return f"batch {self.batch_size}{times} fits{peak} ({how})"


def find_batch(workload: Workload, *, max_trials: int = MAX_TRIALS, **options: Any) -> FoundBatch:
    """Largest batch of a workload that fits: predicted, and tried by real steps where the device is here.

    Args:
        max_trials: most sizes to try; one more is tried where none of them fits.
        options: options of `autofit.tune`; without `gpu` and `gpu_mem` the card is this machine's.

    Raises:
        UsageError: an option is wrong, no card is known, or not even the smallest batch fits.
        WorkloadFailedError: the workload fails, or cannot be predicted.
    """
    asked = {"dispatch": "inline", **options}
    if asked.get("device") == "cpu":
        workload = _with_next_batch(workload)
    notes: tuple[str, ...] = ()
    num_failed = 0
    try:
        result, num_failed = _tried(workload, asked, max_trials)
    except InfrastructureError as error:
        if asked.get("device") == "cpu" or asked.get("probe", "auto") != "auto":
            raise
        notes = (f"no size was tried, only predicted: {error.message}",)
        result = api.tune(workload, **{**asked, "probe": "predict"})
    best, num_tried = result.best, num_failed + len(result.trials)
    if best is None:
        raise UsageError(
            f"no batch fits in {format_bytes(result.budget.usable_bytes)} after {num_tried} tries: "
            "`autofit estimate --what-if` says what would help, and a larger max_trials tries more sizes"
        )
    return FoundBatch(
        batch_size=best.batch_size,
        grad_accumulation=best.grad_accumulation or 1,
        evidence=best.evidence,
        peak_bytes=best.peak_reserved_bytes or best.device_peak_bytes,
        num_trials=0 if best.evidence is Evidence.PREDICTED else num_tried,
        notes=(*notes, *result.notes),
    )


def _with_next_batch(workload: Workload) -> Workload:
    from autofit_workers.workload.live.batches import LikeBatches, WithNextBatch

    if not isinstance(workload.make_batch, LikeBatches):
        return workload
    return dataclasses.replace(workload, make_batch=WithNextBatch(workload.make_batch))


def _tried(workload: Workload, asked: dict[str, Any], max_trials: int) -> tuple[TuneResult, int]:
    """Answer of a search, and the number of sizes that ran out of memory in a search before it.

    If none of the sizes fits, half of the smallest is tried as well: a training needs an answer, and how far
    the prediction is off, failures do not tell.
    """
    result = api.tune(workload, **asked, max_trials=max_trials)
    failed = [trial.batch_size for trial in result.trials if trial.evidence is not Evidence.PREDICTED]
    if result.best is not None or min(failed, default=1) == 1:
        return result, 0
    smaller = {**asked, "max_batch": min(failed) // 2}
    return api.tune(workload, **smaller, max_trials=1), len(failed)


@contextlib.contextmanager
def reading_trainer() -> Iterator[None]:
    """Context in which errors on reading a trainer's model or data become `UnreadableTrainerError`."""
    try:
        yield
    except (UnsupportedError, InapplicableError, DeviceError) as error:
        raise UnreadableTrainerError(str(error)) from error
