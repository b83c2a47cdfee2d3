"""Stores observed peaks and compares them with predictions; the document is `autofit.observation/1`."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit.errors import UnknownGpuError, UsageError
from autofit.hardware.budget import assumed_context
from autofit.hardware.gpus import Gpu, find_gpu
from autofit.predict.estimate import Interval
from autofit.predict.intervals import observations
from autofit.predict.intervals.observations import Observation, Observations, PeakKind
from autofit.predict.predictor import Predictor
from autofit.settings.tune_settings import TuneSettings
from autofit.units import format_bytes, parse_bytes
from autofit_workers.spec.documents import parse_json, read_file
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.protocol import GROUND_TRUTH_SCHEMA, Evidence, Verdict, WorkloadRef

OBSERVATION_SCHEMA = "autofit.observation/1"

# A larger factor between observed and predicted peak shows a wrong configuration or unit, not a prediction
# error.
_FARTHEST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RealPeak:
    """Measured peak of a real run, as a user reports it.

    Attributes:
        batch_size: batch size of that run; None for a script's own.
    """

    kind: PeakKind
    num_bytes: int
    batch_size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPeak:
    """Observed peak with its prediction; `to_json()` is the document `autofit.observation/1`.

    Attributes:
        observation: the stored observation.
        predicted: predicted peak in bytes of the observed kind (allocated, reserved, or shown by nvidia-smi),
            before the observation was taken into account.
        interval: reserved peak of the configuration in bytes, as it is predicted now that the observation is
            stored.
        note: sentence on what the width of the interval is based on.
    """

    observation: Observation
    predicted: Interval
    interval: Interval
    note: str

    @property
    def off_by(self) -> float:
        """Relative deviation: (observed − predicted) / predicted likely peak."""
        return self.observation.peak_bytes / self.predicted.likely_bytes - 1

    @property
    def is_inside(self) -> bool:
        """Whether the observed peak lies within the predicted interval."""
        return self.predicted.low_bytes <= self.observation.peak_bytes <= self.predicted.high_bytes

    def in_words(self) -> str:
        """Comparison of the observed peak with its prediction, in one paragraph."""
        seen, predicted = self.observation, self.predicted
        low, high = format_bytes(predicted.low_bytes), format_bytes(predicted.high_bytes)
        now = f"{format_bytes(self.interval.low_bytes)} to {format_bytes(self.interval.high_bytes)}"
        where = f" on {seen.card}" if seen.card else ""
        verdict = "inside the predicted range" if self.is_inside else f"outside: {self._reasons()}"
        return (
            f"{seen.workload} at batch {seen.batch_size}{where}: {seen.kind} peak of "
            f"{format_bytes(seen.peak_bytes)} observed, {format_bytes(predicted.likely_bytes)} predicted "
            f"({low} to {high}), off by {100 * self.off_by:+.1f}%; {verdict}. Its reserved peak is now "
            f"predicted to be {now}. "
            f"`autofit observe --forget {seen.id}` takes it back."
        )

    def _reasons(self) -> str:
        if self.observation.peak_bytes < self.predicted.low_bytes:
            return (
                "it may be of another precision, optimizer or checkpointing than these options say, or of "
                "fewer steps than a first whole one"
            )
        of_kind = {
            PeakKind.ALLOCATED: "of tensors that are kept between steps",
            PeakKind.RESERVED: "of fragmentation, as sizes change from step to step",
            PeakKind.DEVICE: "of other processes on the card, or of fragmentation",
        }[self.observation.kind]
        return f"it may be of another precision or optimizer than these options say, or {of_kind}"

    def to_dict(self) -> dict[str, Any]:
        """Observed peak as a dictionary of JSON's types: the content of `autofit.observation/1`."""
        return {
            "schema": OBSERVATION_SCHEMA,
            "id": self.observation.id,
            **dataclasses.asdict(self.observation),
            "predicted": dataclasses.asdict(self.predicted),
            "off_by": self.off_by,
            "is_inside": self.is_inside,
            "interval": dataclasses.asdict(self.interval),
            "note": self.note,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def read_peak(text: str) -> int:
    """Size in bytes read from the value of `--peak`; raises `UsageError` unless it is a size above 0."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"--peak: {error}") from error


def run_observe(
    settings: TuneSettings, workload: WorkloadRef, predictor: Predictor, peak: RealPeak
) -> ObservedPeak:
    """Compares an observed peak with its prediction, and stores it to correct later predictions.

    Args:
        peak: measured peak that the user reports, and the batch size of the run.

    Raises:
        UsageError: the peak is impossible on this card or for this configuration, or no card is named.
        WorkloadFailedError: the workload fails, or cannot be predicted.
        StorageError: the observation cannot be stored.
    """
    kind, peak_bytes = peak.kind, peak.num_bytes
    if peak_bytes < 1:
        raise UsageError(f"an observed peak is at least 1 byte, got {peak_bytes}")
    gpu = settings.gpu
    if gpu is not None and peak_bytes > gpu.total_bytes:
        raise UsageError(
            f"a peak of {format_bytes(peak_bytes)} is more than the {format_bytes(gpu.total_bytes)} of "
            f"{gpu.key}: check the number and --gpu"
        )
    if kind is PeakKind.DEVICE and gpu is None:
        raise UsageError(
            "a device peak includes the CUDA context, which the card decides: name it with --gpu"
        )
    knobs, card = settings.configuration("an observation"), settings.card
    own = peak.batch_size or predictor.traces.own_batch_size(knobs)
    curve = predictor.curve_at(knobs, card, own)
    size = predictor.trace(knobs, own).batch_size
    before, spans = curve(size), curve.spans(size)
    low, likely, high = spans.low_bytes, spans.reserved_bytes, spans.high_bytes
    least = most = 0
    if kind is PeakKind.ALLOCATED:
        low, likely, high = spans.allocated_low_bytes, spans.allocated_bytes, spans.allocated_high_bytes
    if kind is PeakKind.DEVICE:
        context, _ = assumed_context(card.architecture, card.name, settings.mesh)
        least, most = context.low_bytes, context.high_bytes
        likely += context.likely_bytes
    predicted = Interval(
        low_bytes=before.calibration.low_end(low) + least,
        likely_bytes=likely,
        high_bytes=before.calibration.high_end(high) + most,
    )
    if not predicted.low_bytes <= _FARTHEST * peak_bytes or peak_bytes > _FARTHEST * predicted.high_bytes:
        raise UsageError(
            f"a peak of {format_bytes(peak_bytes)} is not of this configuration, for which "
            f"{format_bytes(predicted.likely_bytes)} is predicted: check the options and the unit"
        )
    observation = Observation(
        workload=workload.name,
        kind=kind,
        peak_bytes=peak_bytes,
        low_bytes=max(1, peak_bytes - most),
        high_bytes=max(1, peak_bytes - least),
        predicted_bytes=spans.reserved_bytes,
        batch_size=size,
        knobs=before.knobs,
        mode=before.mode,
        batch_kind=settings.setup.batch_kind,
        degrees=settings.setup.parallel.degrees,
        nonzero_share=settings.setup.nonzero_share,
        convolves=before.convolves,
        card=observations.card_key(card),
        torch=settings.setup.torch or before.versions["torch"],
        day=dt.datetime.now(dt.timezone.utc).date().isoformat(),
        expected_bytes=likely,
    )
    observations.keep(workload, observation)
    predictor.observations = Observations.load(workload)
    after = predictor.curve_at(knobs, card, own)(size)
    return ObservedPeak(
        observation=observation, predicted=predicted, interval=after.interval, note=after.calibration.note
    )


# ── documents ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPeak:
    """Reserved peak that one measured run of a configuration (a trial) had, as read from a document.

    Attributes:
        workload: name of the workload.
        mode: `train` or `infer`.
        gpu: key of the card that was measured.
    """

    workload: str
    batch_size: int
    knobs: Knobs
    mode: str
    gpu: Gpu
    peak_bytes: int


def measured_in(path: Path) -> list[MeasuredPeak]:
    """Reads measured peaks on cards from a file of `tune --json` or `autofit_workers.trials.record`.

    Raises:
        UsageError: the file cannot be read, is of another kind, or has no measurement on a card.
    """
    try:
        text = read_file(path).decode()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; name the JSON of a measured answer"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text: name the JSON of a measured answer") from error
    try:
        found = _measured(text)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise UsageError(
            f"{path} is no document of `autofit tune --json` or `python -m autofit_workers.trials.record`: "
            "name one of those, or give --peak and --kind"
        ) from error
    if not found:
        raise UsageError(
            f"{path} has no measurement on a GPU that only the trial used: measure again on an idle GPU, or "
            "give the peak with --peak and what kind of peak it is with --kind"
        )
    return found


def _measured(text: str) -> list[MeasuredPeak]:
    """Measured peaks on a card, from the text of a `tune --json` document or of recorded rows."""
    try:
        document = parse_json(text)
    except ValueError:
        return _of_rows(map(parse_json, text.splitlines()))
    if document["schema"] == GROUND_TRUTH_SCHEMA:
        return _of_rows([document])
    if document["schema"] != "autofit.tune/1":
        raise ValueError(f"its schema is {document['schema']!r}")
    mode = (document["estimate"] or {}).get("mode", "train")
    sizes = {
        (from_plain(Knobs, entry["knobs"]), entry["largest_batch"]): entry["peak_reserved_bytes"]
        for entry in document["frontier"]
        if entry["evidence"] == Evidence.MEASURED and entry["peak_reserved_bytes"]
    }
    return [
        _measured_peak(document, batch_size, knobs, mode, peak_bytes)
        for (knobs, batch_size), peak_bytes in sizes.items()
    ]


def _of_rows(rows: Iterable[dict[str, Any]]) -> list[MeasuredPeak]:
    """Measured peaks of the rows that are trials which fit on a card."""
    found = []
    for row in rows:
        if row["schema"] != GROUND_TRUTH_SCHEMA:
            raise ValueError(f"the schema of a row is {row['schema']!r}")
        if row["kind"] != "trial" or row["verdict"] != Verdict.FITS or row["evidence"] != Evidence.MEASURED:
            continue
        stretches = (row["first_step"], row["steady"], row["evaluation"], row["checkpoint"])
        peaks = [peaks["reserved_bytes"] for peaks in stretches if peaks["reserved_bytes"]]
        if peaks:
            knobs = from_plain(Knobs, row["knobs"])
            found.append(_measured_peak(row, row["batch_size"], knobs, row["mode"] or "train", max(peaks)))
    return found


def _measured_peak(
    document: dict[str, Any], batch_size: Any, knobs: Knobs, mode: Any, peak_bytes: Any
) -> MeasuredPeak:
    return MeasuredPeak(
        workload=from_plain(str, document["workload"]),
        batch_size=from_plain(int, batch_size),
        knobs=knobs,
        mode=from_plain(str, mode),
        gpu=_card(from_plain(str, document["device"]["name"])),
        peak_bytes=from_plain(int, peak_bytes),
    )


def _card(name: str) -> Gpu:
    try:
        return find_gpu(name)
    except UnknownGpuError as error:
        raise UsageError(f"{name} is not in the catalogue: give --peak and --kind, without --gpu") from error
