"""Observes the peak memory of a user's own training loop, for `autofit observe`."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofit import paths
from autofit.errors import UsageError
from autofit.questions.real_runs.observed_run import ObservedRun, RunPeaks
from autofit.settings.resolve import resolve_one_configuration
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.errors import DeviceError, UnsupportedError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence

if TYPE_CHECKING:
    from autofit_workers.trials.measure.live_run import LivePeaks

_KNOBS = {each.name for each in dataclasses.fields(Knobs)}


class RunObserver:
    """Observes the peaks of a training loop from now on, until `close`.

    It reads the process's peak statistics after each optimizer step, and at `note`. It resets none of them,
    draws no random numbers, sets no flags and traces nothing.

    Args:
        model: `nn.Module` that is trained.
        optimizer: its optimizer, or several; None for a loop that does not train.
        workload: workload that the loop trains, as `--model` takes it.
        batch_size: samples of a batch.
        knobs: knobs of the loop, by name.

    Raises:
        UsageError: PyTorch keeps no peaks on the model's device, or an argument is wrong.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        *,
        workload: str | None = None,
        batch_size: int | None = None,
        knobs: Mapping[str, Any] | None = None,
    ) -> None:
        _require_valid(workload, batch_size, knobs or {})
        self._said: dict[str, Any] = {
            "workload": workload, "batch_size": batch_size, "knobs": dict(knobs or {}),
        }  # fmt: skip
        self._evaluation: RunPeaks | None = None
        self._trains = optimizer is not None
        self._live = _live_peaks(model, optimizer)

    def note(self, *, of_evaluation: bool = False) -> None:
        """Reads the statistics once more, as after an evaluation."""
        self._live.note()
        if of_evaluation:
            self._evaluation = RunPeaks(**self._live.inside())

    def close(self) -> None:
        """Reads the statistics a last time; afterwards nothing of this observer is left on the optimizer."""
        self._live.close()

    @property
    def run(self) -> ObservedRun:
        """Peaks that were observed so far."""
        from autofit_workers.trials.measure.live_run import rank_and_ranks

        device = self._live.device
        return ObservedRun(
            **self._said,
            mode="train" if self._trains else "infer",
            num_steps=self._live.num_steps if self._trains else None,
            num_ranks=rank_and_ranks()[1],
            device=device,
            evidence=Evidence.MEASURED if device.kind == GPU_KIND else Evidence.MEASURED_CPU,
            peaks=RunPeaks(**self._live.inside()),
            before=RunPeaks(**self._live.before()),
            evaluation=self._evaluation,
            torch=importlib.metadata.version("torch"),
        )

    def write(self, file: str | Path) -> None:
        """Writes the document `autofit.observed-run/1`; of several ranks only rank 0 does.

        Raises:
            StorageError: the file cannot be written.
        """
        from autofit_workers.trials.measure.live_run import rank_and_ranks

        if rank_and_ranks()[0] == 0:
            paths.write_atomically(Path(file), self.run.to_json() + "\n")


@contextmanager
def observed(
    model: Any,
    optimizer: Any = None,
    *,
    file: str | Path | None = None,
    workload: str | None = None,
    batch_size: int | None = None,
    **knobs: Any,
) -> Iterator[RunObserver]:
    """Context manager that observes the peak memory of a training loop, and writes it to a file.

    `autofit observe FILE` compares the file with the prediction, and makes later predictions narrower.

        >>> with autofit.observed(model, optimizer, file="run.json", batch_size=64) as observer:
        ...     train(model, optimizer, batches)
        >>> observer.run.peaks.reserved_bytes

    The loop runs as it would without: peak statistics are read after each optimizer step and never reset, no
    random numbers are drawn, no flags are set, and nothing is traced. A peak that the process had reached
    before the loop hides a smaller one of the loop, which then is None; the loop's own resets do no harm. On
    the CPU the peak is the resident set of the whole process, which Linux tells, and which says nothing of a
    card. If the loop raises an exception, nothing is written.

    Args:
        model: `nn.Module` that the loop trains.
        optimizer: its optimizer, or a sequence of several; None for a loop that does not train.
        file: file to write at the end, of schema `autofit.observed-run/1`; None for none. Of several ranks
            rank 0 alone writes it.
        workload: workload that the loop trains, as `--model` takes it; if it is left out here, it has to be
            given to `autofit observe`.
        batch_size: samples of a batch, likewise.
        knobs: knobs of the loop, such as `precision="amp-bf16"`, likewise.

    Returns:
        A context manager. `with … as observer` gives a `RunObserver`, whose `run` has the peaks.

    Raises:
        UsageError: an argument is wrong, or PyTorch keeps no peaks on the model's device.
        StorageError: the file cannot be written.
    """
    observer = RunObserver(model, optimizer, workload=workload, batch_size=batch_size, knobs=knobs)
    try:
        yield observer
    finally:
        observer.close()
    if file is not None:
        observer.write(file)


def _require_valid(workload: str | None, batch_size: int | None, knobs: Mapping[str, Any]) -> None:
    if unknown := sorted(knobs.keys() - _KNOBS):
        raise UsageError(f"observed() takes no {', '.join(unknown)}: name knobs, such as precision")
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise UsageError(f"batch_size must be at least 1, got {batch_size!r}")
    resolve_one_configuration({"model": workload or "model", **knobs}, "an observation")


def _live_peaks(model: Any, optimizer: Any) -> LivePeaks:
    from autofit_workers.trials.measure.live_run import LivePeaks, torchs_own

    several = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    try:
        return LivePeaks(model, [torchs_own(each) for each in several if each is not None])
    except (DeviceError, UnsupportedError) as error:
        raise UsageError(str(error)) from error
