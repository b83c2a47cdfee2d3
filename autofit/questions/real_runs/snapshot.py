"""Says what a real run's memory snapshot shows; the document is `autofit.observed-snapshot/1`."""

from __future__ import annotations

import bisect
import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from autofit.errors import UsageError
from autofit.explain.profile import Profile, phase_of, phases
from autofit.explain.snapshots.as_profile import FORWARD, OPTIMIZER, profile_of
from autofit.explain.snapshots.findings import (
    Growth,
    LineBytes,
    Unused,
    growth_of,
    lines_at_peak,
    unused_of,
    wide_copies,
)
from autofit.explain.snapshots.matching import Matched, match
from autofit.explain.snapshots.run import Run
from autofit.predict.intervals.observations import PeakKind
from autofit.predict.predictor import Predictor
from autofit.questions.real_runs.observe import ObservedPeak, RealPeak, run_observe
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.spec.protocol import WorkloadRef

SNAPSHOT_SCHEMA = "autofit.observed-snapshot/1"

_MOST_LINES = 20  # of a list in the document
_MOST_NAMES = 40
_MUCH_UNUSED_SHARE = 0.02  # of the reserved peak
_KEPT_SHARE = 0.5  # of the allocations that have to match, so that the peak sharpens predictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Change that would have saved memory at the peak of a recorded run.

    Attributes:
        name: what is saved, in a few words.
        num_bytes: bytes that it would save at most.
        how: what to do, as a sentence.
    """

    name: str
    num_bytes: int
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """Request that ended a recorded run, or made its allocator release its cache.

    Attributes:
        num_bytes: bytes that were asked for.
        device_free_bytes: bytes that were free on the device.
        reserved_bytes, unused_bytes: bytes that this process had reserved, and those without a tensor.
        line: line that asked.
    """

    num_bytes: int
    device_free_bytes: int
    reserved_bytes: int
    unused_bytes: int
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Recorded run beside its prediction.

    Attributes:
        workload: name of the workload that was predicted.
        batch_size: its batch size.
        peak_allocated_bytes, peak_reserved_bytes: predicted peaks.
        matched: the recorded step beside the predicted one, allocation by allocation.
        observation: the stored observation's id; None if the peak was not kept.
        note: why it was kept or not.
    """

    workload: str
    batch_size: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    matched: Matched
    observation: str | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSnapshot:
    """Real run's memory as its snapshot shows it; `to_json()` is the document `autofit.observed-snapshot/1`.

    Attributes:
        name: name of the file or run.
        device: number of the device.
        num_allocations: number of allocations that were recorded.
        num_before: blocks that were there before the first event.
        num_steps: whole steps that were recorded; 0 if it is not known.
        names_steps: whether the program named its steps, such as by a profiler.
        peak_allocated_bytes: most bytes of blocks at once while it was recorded.
        peak_reserved_bytes: most bytes of segments at once.
        knows_reserved: whether what was reserved is known; if not, the peak is at least that.
        is_exact: whether every block was followed at its address; if not, blocks are rounded requests.
        peak_phase: phase in which the allocated peak is reached, such as `backward of step 2`.
        before_bytes: bytes requested before the recording that are alive at the peak.
        lines: lines that hold the most at the peak.
        growth: memory that is kept longer than a step; null if none is.
        unused: memory that was reserved and not allocated.
        copies: lines with blocks of twice the bytes of one made just before, as copies in 32 bits are.
        savings: what would have saved the most at the peak.
        failures: requests that failed.
        settings: settings of the allocator that the snapshot names.
        annotations: names of parts that the program gave, and how often each began.
        other_devices: bytes that the same process reserved on other devices, by number.
        private_bytes: bytes of segments in pools of their own, such as CUDA graphs'.
        streams: bytes reserved at the end, by stream.
        compared: the prediction of the workload, if one is named; else null.
    """

    name: str
    device: int
    num_allocations: int
    num_before: int
    num_steps: int
    names_steps: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    knows_reserved: bool
    is_exact: bool
    peak_phase: str
    before_bytes: int
    lines: tuple[LineBytes, ...]
    growth: Growth | None
    unused: Unused
    copies: tuple[LineBytes, ...]
    savings: tuple[Saving, ...]
    failures: tuple[FailedRequest, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, int] = field(default_factory=dict)
    other_devices: dict[str, int] = field(default_factory=dict)
    private_bytes: int = 0
    streams: dict[str, int] = field(default_factory=dict)
    compared: Compared | None = None

    def to_dict(self) -> dict[str, Any]:
        """Content of the document, with at most 20 lines in each list."""
        plain = _shortened(dataclasses.asdict(self))
        assert isinstance(plain, dict)
        return {"schema": SNAPSHOT_SCHEMA, **plain}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def _shortened(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _shortened(each, key) for key, each in value.items()}
    if isinstance(value, tuple) and name != "moments":
        return [_shortened(each) for each in value[:_MOST_LINES]]
    return value


def observed_snapshot(run: Run) -> ObservedSnapshot:
    """All that a snapshot shows without a prediction."""
    followed, snapshot = run.followed, run.snapshot
    profile = profile_of(run)
    lines, growth, unused, copies = lines_at_peak(run), growth_of(run), unused_of(run), wide_copies(run)
    before = [each for each in run.alive_at(run.peak_position) if each < followed.num_before]
    annotations = Counter(name for _, name in snapshot.annotations)
    streams: Counter[str] = Counter()
    for segment in snapshot.segments:
        streams[str(segment.stream)] += segment.size
    return ObservedSnapshot(
        name=snapshot.name,
        device=snapshot.device,
        num_allocations=len(followed.sources) - followed.num_before,
        num_before=followed.num_before,
        num_steps=run.num_steps,
        names_steps=run.names_steps,
        peak_allocated_bytes=followed.peak_allocated_bytes,
        peak_reserved_bytes=followed.peak_reserved_bytes,
        knows_reserved=followed.knows_reserved,
        is_exact=followed.is_exact,
        peak_phase=phase_of(profile, run.peak_position).in_words,
        before_bytes=sum(followed.requested_bytes[each] for each in before),
        lines=lines,
        growth=growth,
        unused=unused,
        copies=copies,
        savings=tuple(
            sorted(_savings(run, profile, growth, unused, copies), key=lambda each: -each.num_bytes)
        ),
        failures=tuple(_failures(run)),
        settings=snapshot.settings,
        annotations=dict(annotations.most_common(_MOST_NAMES)),
        other_devices={str(number): size for number, size in snapshot.other_devices.items()},
        private_bytes=sum(each.size for each in snapshot.segments if each.is_private),
        streams=dict(streams.most_common(_MOST_NAMES)),
    )


def _failures(run: Run) -> Iterator[FailedRequest]:
    followed = run.followed
    for oom in run.snapshot.ooms[:_MOST_LINES]:
        place = [*followed.positions, run.num_events][oom.position]
        reserved, allocated = (
            held[place - 1] if place else 0 for held in (followed.reserved, followed.allocated)
        )
        yield FailedRequest(
            num_bytes=oom.num_bytes,
            device_free_bytes=oom.device_free_bytes,
            reserved_bytes=reserved,
            unused_bytes=reserved - allocated,
            line=oom.where,
        )


def _savings(
    run: Run, profile: Profile, growth: Growth | None, unused: Unused, copies: tuple[LineBytes, ...]
) -> Iterator[Saving]:
    """Yields what would have saved memory at the peak, in no order."""
    if growth is not None and growth.is_leak:
        line = growth.lines[0].line if growth.lines else "a line"
        yield Saving(
            name="what is kept from step to step",
            num_bytes=growth.bytes_a_step * growth.num_steps,
            how=f"let go of what {line} allocates: keep numbers (`.item()`, `.detach()`) instead of tensors",
        )
    is_expandable = run.snapshot.settings.get("expandable_segments") == "True"
    reserved = run.followed.peak_reserved_bytes
    if not is_expandable and unused.at_peak_bytes > _MUCH_UNUSED_SHARE * reserved:
        yield Saving(
            name="reserved memory without a tensor",
            num_bytes=unused.at_peak_bytes,
            how="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (--allocator expandable)",
        )
    if copies and sum(each.num_bytes for each in copies):
        yield Saving(
            name="copies in twice the bytes",
            num_bytes=sum(each.num_bytes for each in copies),
            how=f"compute in 16 bits where {copies[0].line} may, or in parts (--loss chunked, a fused loss)",
        )
    yield from _of_phases(run, profile)


def _of_phases(run: Run, profile: Profile) -> Iterator[Saving]:
    """Yields what activations and the optimizer's temporaries hold at the peak."""
    peak, found = phase_of(profile, run.peak_position), phases(profile)
    starts = [each.start for each in found]
    activations = temporaries = 0
    for request in run.alive_at(run.peak_position):
        if request < run.followed.num_before:
            continue
        born = found[max(bisect.bisect_right(starts, run.births[request]) - 1, 0)]
        size = run.followed.requested_bytes[request]
        if born.name == FORWARD and run.deaths[request] < run.num_events:
            activations += size
        elif born.name == peak.name == OPTIMIZER and run.deaths[request] < run.num_events:
            temporaries += size
    if activations:
        yield Saving(
            name="activations",
            num_bytes=activations,
            how="recompute them in backward (--checkpointing blocks), or take a smaller batch",
        )
    if temporaries:
        yield Saving(
            name="the optimizer's temporaries",
            num_bytes=temporaries,
            how="take its fused or loop implementation (--optimizer-impl fused)",
        )


# ── beside a prediction ─────────────────────────────────────────────────────────────────────────


def compare_snapshot(
    settings: TuneSettings,
    workload: WorkloadRef,
    predictor: Predictor,
    run: Run,
    batch_size: int | None,
) -> ObservedSnapshot:
    """Compares a recorded run with its prediction, and keeps the peak if the run is what was predicted.

    Args:
        batch_size: batch size of the run; None for a script's own.

    Raises:
        WorkloadFailedError: the workload fails, or cannot be predicted.
        StorageError: the observation cannot be stored.
    """
    knobs = settings.configuration("an observation")
    own = batch_size or predictor.traces.own_batch_size(knobs)
    profile = predictor.profile(knobs, settings.card, own)
    seen, matched = observed_snapshot(run), match(run, profile)
    why_not = _why_not_kept(seen, matched)
    if why_not is None:
        peak = RealPeak(kind=PeakKind.RESERVED, num_bytes=seen.peak_reserved_bytes, batch_size=batch_size)
        kept, note = _kept(settings, workload, predictor, peak)
    else:
        kept, note = None, f"its peak is not kept: {why_not}"
    return dataclasses.replace(
        seen,
        compared=Compared(
            workload=workload.name,
            batch_size=profile.trace.batch_size,
            peak_allocated_bytes=profile.peak_allocated_bytes,
            peak_reserved_bytes=profile.peak_reserved_bytes,
            matched=matched,
            observation=None if kept is None else kept.observation.id,
            note=note,
        ),
    )


def _why_not_kept(seen: ObservedSnapshot, matched: Matched) -> str | None:
    """Reason why the peak is none of the predicted configuration, so that it is not stored."""
    if not seen.knows_reserved:
        return "what was reserved before the recording is not known"
    if seen.growth is not None and seen.growth.is_leak:
        return "the run grew from step to step, which no prediction covers"
    if matched.matched_share < _KEPT_SHARE:
        return "most allocations are not those of this configuration, so check the options"
    return None


def _kept(
    settings: TuneSettings, workload: WorkloadRef, predictor: Predictor, peak: RealPeak
) -> tuple[ObservedPeak | None, str]:
    """Stored observation of the reserved peak, or None, and a sentence on which."""
    try:
        kept = run_observe(settings, workload, predictor, peak)
    except UsageError as error:
        return None, f"its peak is not kept: {error.message}"
    name = kept.observation.id
    return kept, f"its peak is kept and sharpens predictions: `autofit observe --forget {name}` takes it back"
