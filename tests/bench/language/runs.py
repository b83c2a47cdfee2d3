"""A run of a language model as a table has it, and what is predicted of it from one trace.

The tables measure different things, most of them after a step or a phase and not at a peak. So each run
says which quantities it measured, by name, and each name is computed here, from the trace of the run's own
batch: nothing is interpolated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from workers.allocator.caching import CachingAllocator
from workers.knobs import Knobs
from workers.predict.curve.conditions import Conditions, Level
from workers.predict.curve.peak_curve import PeakCurve
from workers.predict.plans.offline_plans import offline_source
from workers.protocol import Verdict
from workers.trace import Trace
from workers.workload.workload import Workload

Quantity = Callable[["Seen"], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a table.

    Attributes:
        name: unlike any other of the table.
        group: the method or model that tables are split by.
        make: its workload, called in the process that traces it; None where nothing is traced.
        predict: predicts the quantities in its place, where what ran is no step.
        measured: bytes, by the name of a quantity of `QUANTITIES`.
        usable_bytes: what PyTorch may reserve of the card; None where nothing is said of that.
        fits: whether it ran; False where it ran out of the card's memory.
        others: bytes that others' rules say its peak is, by their names.
    """

    table: str
    name: str
    group: str
    make: Callable[[], Workload] | None = None
    predict: Callable[[], Mapping[str, int]] | None = None
    batch_size: int
    architecture: str
    knobs: Knobs = field(default_factory=Knobs)
    measured: Mapping[str, int] = field(default_factory=dict)
    usable_bytes: int | None = None
    fits: bool = True
    others: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of runs.

    Attributes:
        asked: by quantity, the median and the ninth decile of the errors, as shares, that are asked for.
    """

    name: str
    read: Callable[[Path], list[Run]]
    asked: Mapping[str, tuple[float, float]]


def by_rules(
    *, num_weights: int, num_trained: int, weight_bytes: int, tokens: int, hidden: int, num_layers: int
) -> dict[str, int]:
    """What a peak is by two rules that people go by.

    `accelerate estimate-memory`, "Training using Adam": four times the weights, whatever is trained.
    16 bytes for a trained parameter beside the weights, and 34 bytes a token, layer and hidden unit for what
    backward wants, attention scores left out (Korthikanti et al., 2022, "Reducing Activation Recomputation
    in Large Transformer Models").
    """
    return {
        "accelerate estimate-memory": 4 * weight_bytes * num_weights,
        "16 bytes a parameter, 34 an activation": weight_bytes * (num_weights - num_trained)
        + 16 * num_trained
        + 34 * tokens * hidden * num_layers,
    }


class Seen:
    """What a trace of one size says on a card."""

    def __init__(self, trace: Trace, architecture: str) -> None:
        conditions = Conditions(
            plans=(offline_source(architecture, torch.__version__),),
            conv_algo="cudnn",
            architecture=architecture,
            allow_tf32=True,
        )
        self._on_card = PeakCurve.through([trace]).on_card(trace.batch_size, conditions)
        self._trace = trace
        self._sizes = self._on_card.by_first_source.sizes(Level.LIKELY)
        self.replay = self._on_card.likely().replay

    def fits(self, usable_bytes: int | None) -> bool:
        """Whether it runs, with the cache emptied where nothing else is left."""
        return self._on_card.verdict(usable_bytes, Level.LIKELY) is not Verdict.OOM

    def live_bytes(self, mark: str | None = None, *, emptied_at: str | None = None) -> int:
        """What is allocated at a mark, or at the end; the cache may be emptied before, at another."""
        end = None if mark is None else self._position(mark)
        return self._replayed(end, emptied_at=emptied_at).allocated_bytes

    def peak_since(self, mark: str) -> int:
        """The most that is allocated at once where a mark stands and after it."""
        return self._replayed(peak_since=mark).peak_allocated_bytes

    def reserved_after(self, emptied_at: str) -> int:
        """What is reserved at the end, where the cache was emptied at a mark."""
        return self._replayed(emptied_at=emptied_at).reserved_bytes

    def _position(self, mark: str) -> int | None:
        """None where the trace has no such mark: inference ends where backward would begin."""
        return next((each.position for each in self._trace.marks if each.name == mark), None)

    def _replayed(
        self, end: int | None = None, *, emptied_at: str | None = None, peak_since: str | None = None
    ) -> CachingAllocator:
        allocator, blocks = CachingAllocator(), {}
        empty = None if emptied_at is None else self._position(emptied_at)
        counted = None if peak_since is None else self._position(peak_since)
        for position, event in enumerate(self._trace.events[:end]):
            if position == empty:
                allocator.empty_cache()
            if position == counted:
                allocator.peak_allocated_bytes = allocator.allocated_bytes
            if event < 0:
                if ~event in blocks:
                    allocator.free(blocks.pop(~event))
            elif self._sizes[event]:
                blocks[event] = allocator.malloc(self._sizes[event])
        return allocator


# A trace's steps are numbered from 1; in the loops of the tables the second one is like all that follow.
_SECOND = "step 2 forward"  # what the first one leaves are the workspaces of its products
QUANTITIES: dict[str, Quantity] = {
    "allocated peak": lambda seen: seen.replay.peak_allocated_bytes,
    "allocated peak of a call": lambda seen: seen.peak_since("step 3 forward"),
    "reserved peak": lambda seen: seen.replay.peak_reserved_bytes,
    "reserved after long steps": lambda seen: seen.reserved_after("step 2 input"),
    "allocated after a step": lambda seen: seen.live_bytes(),
    "allocated after the model": lambda seen: seen.live_bytes(_SECOND),
    "allocated after forward": lambda seen: seen.live_bytes("step 2 backward", emptied_at=_SECOND),
    "allocated after backward": lambda seen: seen.live_bytes("step 2 optimizer", emptied_at=_SECOND),
}
