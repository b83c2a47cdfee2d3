"""Profile: all memory events of a few steps, with sizes; its document is `autofit.profile/1`."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.explain.recorded import Recorded
from autofit.explain.timing import Timing
from autofit.notebooks.shown import ShownInNotebooks
from autofit_workers.process.garbage import without_collections
from autofit_workers.replay.allocator import AllocatorSettings
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.documents import DocumentError, inflate, parse_json, read_file
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.trace import FORWARD_END, Mark, Trace, last_step

PROFILE_SCHEMA = "autofit.profile/1"

_MOST_BYTES = 1 << 62  # limit for the sum of all allocations, so that no sum in a view exceeds 64 bits
_GZIP = b"\x1f\x8b"
_SAVED_WITHOUT_TIMES = "the profile was saved without times: save it again to have them"
_SAVE_AGAIN = "save it again with `autofit profile … --save FILE`"


class ProfileError(UsageError):
    """A file is no profile, is damaged, or has a version that autofit cannot read."""

    kind = "profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(ShownInNotebooks):
    """Memory of a few steps at one batch size on one card: every allocation and free, with sizes and peaks.

    A saved profile is gzipped JSON with the fields below, `trace` as the document
    of `autofit_workers.spec.trace`, and `schema`.

    Attributes:
        trace: allocations, and the events (allocations and frees) of the steps in their order.
        knobs: values of the knobs (precision, optimizer, …) that the user set.
        card: key of the card in the catalogue, or the architecture if none was named.
        architecture: `sm_XY`.
        requested_bytes: requested bytes of every allocation by its number in the trace, including workspaces
            and scratch memory, for the likely cuDNN plans.
        block_bytes: bytes of the allocator's block for each allocation, by its number; allocated peaks are
            sums of these.
        context_bytes: bytes that the process holds outside the allocator.
        peak_allocated_bytes, peak_reserved_bytes: peaks of the simulated allocator.
        workspace_source: where the sizes of the convolutions' workspaces come from, in words.
        found_bytes: workspace of the cuDNN plan that benchmark mode chooses, by the index of the allocation
            in which plans are timed.
        versions: versions of the software that made it.
        timing: predicted times of its last whole step; None if no times are predicted.
        time_note: sentence on the basis of the times, or on why there are no times or no seconds.
        recorded: what the allocator of a real run did, if the profile is of its memory snapshot; None if it
            is predicted.
    """

    trace: Trace
    knobs: Knobs
    card: str
    architecture: str
    requested_bytes: tuple[int, ...]
    block_bytes: tuple[int, ...]
    context_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    workspace_source: str
    found_bytes: dict[int, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    timing: Timing | None = None
    time_note: str = _SAVED_WITHOUT_TIMES
    recorded: Recorded | None = None

    @property
    def title(self) -> str:
        """Workload and batch size, or that it was recorded."""
        name = self.trace.workload
        return f"{name}, recorded" if self.recorded else f"{name} at batch {self.trace.batch_size}"

    @property
    def evidence(self) -> str:
        """How its sizes are known: `predicted`, or `measured` for a real run's."""
        return "measured" if self.recorded else "predicted"

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices whose memory the profile has, such as `cuda:0`."""
        return ("cuda:0",)

    @property
    def allocator_settings(self) -> AllocatorSettings:
        """Settings of PyTorch's allocator (`PYTORCH_CUDA_ALLOC_CONF`) with which the peaks were simulated."""
        return AllocatorSettings.of_knob(self.knobs.allocator)

    def to_bytes(self) -> bytes:
        """Profile encoded as gzipped JSON, to be saved; equal profiles give equal bytes."""
        plain = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        document = {
            "schema": PROFILE_SCHEMA,
            **plain,
            "knobs": self.knobs.to_dict(),
            "trace": self.trace.to_dict(),
            "timing": None if self.timing is None else self.timing.to_plain(),
            "recorded": None if self.recorded is None else self.recorded.to_plain(),
        }
        if self.recorded is None:
            del document["recorded"]  # as profiles have been saved so far
        text = json.dumps(document, separators=(",", ":"))
        return gzip.compress(text.encode(), compresslevel=6, mtime=0)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Profile decoded from the gzipped JSON that `to_bytes` made.

        Raises:
            ProfileError: `data` is no profile, cut off, damaged, or of another version.
        """
        with without_collections():
            document = _document(data)
            try:
                return cls._from_dict(document)
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                raise ProfileError(f"the profile is malformed ({error}): {_SAVE_AGAIN}") from error

    @classmethod
    def _from_dict(cls, document: dict[str, Any]) -> Self:
        """Profile from its parsed document; raises if values are missing or contradict each other."""
        # Profiles that were saved before times were predicted have none.
        document = {"timing": None, "time_note": _SAVED_WITHOUT_TIMES, "recorded": None, **document}
        values = {each.name: document[each.name] for each in dataclasses.fields(cls)}
        trace, timing = Trace.from_dict(document["trace"]), document["timing"]
        recorded = document["recorded"]
        sizes = {"num_events": len(trace.events), "num_requests": len(trace.allocations)}
        profile = cls(
            **{
                **values,
                "trace": trace,
                "knobs": Knobs(**document["knobs"]),
                "card": from_plain(str, document["card"]),
                "architecture": Architecture.of(document["architecture"]).name,
                "requested_bytes": tuple(document["requested_bytes"]),
                "block_bytes": tuple(document["block_bytes"]),
                "workspace_source": from_plain(str, document["workspace_source"]),
                "found_bytes": {int(number): size for number, size in document["found_bytes"].items()},
                "versions": from_plain(dict[str, str], document["versions"]),
                "timing": None if timing is None else Timing.from_plain(timing, num_events=len(trace.events)),
                "time_note": from_plain(str, document["time_note"]),
                "recorded": None if recorded is None else Recorded.from_plain(recorded, **sizes),
            }
        )
        _require_consistent(profile)
        return profile


def read_profile(path: Path) -> Profile:
    """Reads a saved profile from a file.

    Raises:
        ProfileError: the file cannot be read, or is no profile; the message names it.
    """
    try:
        data = read_file(path)
    except OSError as error:
        raise unreadable(path, error) from error
    return profile_in(data, path)


def profile_in(data: bytes, path: Path) -> Profile:
    """Profile in the content of a file; raises `ProfileError`, which names the file, if it is none."""
    try:
        return Profile.from_bytes(data)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error.message}") from error


def unreadable(path: Path, error: OSError) -> ProfileError:
    """Error that says why a file of a profile cannot be read."""
    return ProfileError(
        f"cannot read {path}: {error.strerror or error}; give a file that `autofit profile --save` wrote"
    )


def _document(data: bytes) -> dict[str, Any]:
    """Parsed document in a profile's gzipped JSON; raises `ProfileError` if it is none."""
    if not data.startswith(_GZIP):
        raise ProfileError(f"the file is not a profile, which is gzipped JSON: {_SAVE_AGAIN}")
    try:
        document = parse_json(inflate(data))
    except DocumentError as error:
        raise ProfileError(f"the profile {error}: {_SAVE_AGAIN}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != PROFILE_SCHEMA:
        found = reprlib.repr(schema)
        raise ProfileError(f"expected a profile of schema {PROFILE_SCHEMA}, got {found}: {_SAVE_AGAIN}")
    assert isinstance(document, dict)
    return document


def _require_consistent(profile: Profile) -> None:
    """Checks a profile that was read: sizes, the order of events, and the marks of phases.

    Raises:
        ValueError: the profile contradicts itself, such as by an allocation that is freed twice.
    """
    trace, num_allocations = profile.trace, len(profile.trace.allocations)
    if not num_allocations == len(profile.requested_bytes) == len(profile.block_bytes):
        raise ValueError("it has more or fewer sizes than allocations")
    peaks = (profile.peak_allocated_bytes, profile.peak_reserved_bytes, profile.context_bytes)
    found = profile.found_bytes
    if any(not 0 <= number < num_allocations for number in found):
        raise ValueError("a benchmarked plan names an allocation that does not exist")
    sizes = (*peaks, *profile.requested_bytes, *profile.block_bytes, *found.values())
    if not all(map(_is_size, sizes)):
        raise ValueError("a size is not a whole number of bytes")
    if sum(sizes) > _MOST_BYTES:
        raise ValueError("its sizes add up to more than can be addressed")
    if any(not 0 <= mark.position <= len(trace.events) for mark in trace.marks):
        raise ValueError("a mark lies after the last event")
    made, freed = [False] * num_allocations, [False] * num_allocations
    for event in trace.events:
        number = event if event >= 0 else ~event
        done = made if event >= 0 else freed
        if number >= num_allocations or done[number] or (event < 0 and not made[number]):
            raise ValueError(f"event {event} contradicts the events before it")
        done[number] = True
    if any(phase.start > phase.stop for phase in phases(profile)):
        raise ValueError("the marks are out of order")


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


# ── positions: numbers of events before ─────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Moments at which every allocation was made and freed, as numbers of memory events before them.

    Attributes:
        births: for each allocation, the number of events before it was made.
        deaths: for each allocation, the number of events before it was freed; the number of all events if it
            never was.
    """

    births: tuple[int, ...]
    deaths: tuple[int, ...]

    def alive_at(self, position: int) -> list[int]:
        """Indices of the allocations alive after the first `position` memory events, ascending."""
        return [
            number
            for number, (birth, death) in enumerate(zip(self.births, self.deaths, strict=True))
            if birth < position <= death
        ]


def lifetimes(profile: Profile) -> Lifetimes:
    """Moments at which every allocation of a profile was made and freed."""
    events = profile.trace.events
    births = [len(events)] * len(profile.trace.allocations)
    deaths = births.copy()
    for position, event in enumerate(events):
        if event >= 0:
            births[event] = position
        else:
            deaths[~event] = position
    return Lifetimes(births=tuple(births), deaths=tuple(deaths))


def allocated_after(profile: Profile) -> list[int]:
    """Allocated bytes (sum of live blocks) after each memory event of a profile."""
    blocks = profile.block_bytes
    return list(
        itertools.accumulate(
            blocks[event] if event >= 0 else -blocks[~event] for event in profile.trace.events
        )
    )


def peak_position(profile: Profile, start: int = 0, stop: int | None = None) -> int:
    """Number of memory events until allocated memory first reaches its peak, the event at the peak included.

    Events are counted from the profile's beginning. `start` if there are no events within the bounds.

    Args:
        start, stop: numbers of events that bound the part in which the peak is looked for; by default it is
            the whole profile.
    """
    allocated = allocated_after(profile)[start:stop]
    return start + allocated.index(max(allocated)) + 1 if allocated else start


def alive_at(profile: Profile, position: int) -> list[int]:
    """Indices of the allocations that are alive after the first `position` memory events."""
    return lifetimes(profile).alive_at(position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Phase of a step, such as `forward`: a range of a profile's memory events.

    Attributes:
        step: number of the step, from 1; 0 while the model is built.
        name: `model`, `input`, `forward` (with the loss), `backward` or `optimizer`; for a script also
            `evaluation`, `generation` and `checkpoint`, which belong to the step after them.
        start: number of events before the phase.
        stop: number of events up to the end of the phase.
    """

    step: int
    name: str
    start: int
    stop: int

    @property
    def label(self) -> str:
        """Text with step and phase name, as `step 2 backward`; only `model` while the model is built."""
        return f"step {self.step} {self.name}" if self.step else self.name

    @property
    def in_words(self) -> str:
        """Text with phase name and step, as `backward of step 2`; only `model` while the model is built."""
        return f"{self.name} of step {self.step}" if self.step else self.name


def phases(profile: Profile) -> tuple[Phase, ...]:
    """Phases (forward, backward, …) of all steps of a profile; each begins where the one before ends."""
    return _phases(profile.trace.marks, len(profile.trace.events))


def phase_of(profile: Profile, position: int) -> Phase:
    """Phase (forward, backward, …) in which a memory event lies.

    Args:
        position: number of events up to and including this one; for 0 the first event is meant.
    """
    found = phases(profile)
    return next((each for each in found if position <= each.stop and each.start < each.stop), found[-1])


def timed_step(profile: Profile) -> int | None:
    """Number of the step whose operators have predicted times; None if the profile has no times."""
    if profile.timing is None:
        return None
    start, _ = last_step(profile.trace.marks, len(profile.trace.events))
    return next((each.step for each in reversed(phases(profile)) if each.start <= start), None)


def phase_peaks(trace: Trace, block_bytes: Sequence[int]) -> dict[str, int]:
    """Allocated peak in bytes of each phase, by its name, such as `backward`; the highest over all steps.

    Args:
        block_bytes: bytes of the allocator's block for each allocation, by its number.
    """
    changes = (block_bytes[event] if event >= 0 else -block_bytes[~event] for event in trace.events)
    allocated = list(itertools.accumulate(changes, initial=0))
    peaks: dict[str, int] = {}
    for phase in _phases(trace.marks, len(trace.events)):
        here = max(allocated[phase.start : phase.stop + 1])
        peaks[phase.name] = max(peaks.get(phase.name, 0), here)
    return peaks


def _phases(marks: Sequence[Mark], num_events: int) -> tuple[Phase, ...]:
    # The mark where the model returns begins no phase: the loss after it belongs to the forward pass.
    kept = [mark for mark in marks if mark.name != FORWARD_END] or [Mark(position=0, name="model")]
    stops = [*(mark.position for mark in kept[1:]), num_events]
    found = []
    for mark, stop in zip(kept, stops, strict=True):
        words = mark.name.split()
        step, name = (int(words[1]), words[2]) if words[0] == "step" else (0, mark.name)
        found.append(Phase(step=step, name=name, start=mark.position, stop=stop))
    return tuple(found)
