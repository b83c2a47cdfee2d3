"""Memory of a run whose batches differ in length, from replays of many orders of its batches.

In such a run reserved memory still rises after the longest batch has run: blocks that were split for one
length do not fit the next one.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count, cycle, islice
from math import prod

from autofit_workers.replay.allocator import AllocatorSettings, Replay, replay
from autofit_workers.replay.curve.peak_estimate import PeakEstimate
from autofit_workers.replay.curve.step_on_card import StepOnCard, WithinLimit
from autofit_workers.replay.curve.varying_run import Numbers, VaryingRun
from autofit_workers.spec.knobs.allocator import conf_variable
from autofit_workers.spec.protocol import Verdict
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.trace import Category, Lengths

_NUM_ORDERS, _LEAST_ORDERS = 20, 8  # orders that are replayed; fewer if steps have many events
_MOST_BATCHES = 400  # in an order
_LEAST_BATCHES = 24
_MOST_EVENTS = 3_000_000  # of all orders together: they take a few seconds to replay
_NUM_EXPANDABLE = 3  # orders that are replayed with expandable segments, whose peaks differ little
# Share of the range of the orders' peaks by which its high end is raised, because the peak of another order
# may lie outside of the range: with 20 orders that happens in one of ten cases, with 8 in two of nine.
_BEYOND = {_NUM_ORDERS: 0.15, _LEAST_ORDERS: 0.4}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLengths:
    """Memory of a run whose batches differ in length. All sizes are in bytes.

    Attributes:
        shortest, median, longest: the shortest, median and longest batch, by the dimensions that differ.
        num_known: number of batches whose length is known.
        num_longest: number of these that are as long as the longest.
        is_read: whether the lengths are from a data loader; else they are those of the traced steps.
        num_orders, num_batches: number of batch orders that were simulated, and of batches in each.
        allocated_bytes: the allocated peak, which is that of the longest batch.
        low_bytes, likely_bytes, high_bytes: the reserved peak over all orders.
        expandable_bytes: the likely reserved peak with the allocator's setting `expandable_segments:True`;
            None where it is set already.
        num_alloc_retries: how often the allocator releases its cached memory on the named card, in the order
            in which it does so most often.
        allocator_variable: environment variable in which the predicted PyTorch reads that setting.
    """

    shortest: tuple[int, ...]
    median: tuple[int, ...]
    longest: tuple[int, ...]
    num_known: int
    num_longest: int
    is_read: bool
    num_orders: int
    num_batches: int
    allocated_bytes: int
    low_bytes: int
    likely_bytes: int
    high_bytes: int
    expandable_bytes: int | None
    num_alloc_retries: int
    allocator_variable: str

    def within(self, limit_bytes: int, step: WithinLimit) -> WithinLimit:
        """Verdict and peaks of the whole run within a memory limit.

        Args:
            step: verdict and peaks of the traced steps alone within the limit.
        """
        verdict = step.verdict
        if self.likely_bytes > limit_bytes:
            verdict = Verdict.OOM
        elif self.num_alloc_retries and verdict is Verdict.FITS:
            verdict = Verdict.THRASH
        return WithinLimit(
            verdict=verdict,
            allocated_bytes=max(step.allocated_bytes, self.allocated_bytes),
            reserved_bytes=max(step.reserved_bytes, min(self.likely_bytes, limit_bytes)),
            num_alloc_retries=max(step.num_alloc_retries, self.num_alloc_retries),
        )

    def raised(self, peak: PeakEstimate) -> PeakEstimate:
        """Peaks of the traced steps, raised to those of the whole run.

        Bytes that the longest batch takes beyond the traced batches count as activations.
        """
        workspaces_bytes = peak.high_bytes - peak.reserved_bytes
        more_bytes = max(0, self.allocated_bytes - peak.allocated_bytes)
        activations = {Category.ACTIVATION: peak.breakdown.get(Category.ACTIVATION, 0) + more_bytes}
        return dataclasses.replace(
            peak,
            allocated_bytes=peak.allocated_bytes + more_bytes,
            allocated_low_bytes=peak.allocated_low_bytes + more_bytes,
            allocated_high_bytes=peak.allocated_high_bytes + more_bytes,
            breakdown={**peak.breakdown, **activations},
            reserved_bytes=self.likely_bytes,
            low_bytes=self.low_bytes,
            high_bytes=max(peak.high_bytes, self.high_bytes + workspaces_bytes),
        )


class DrawnOrders:
    """Orders in which a run may draw batches of different lengths, each simulated when it is needed.

    They are random if the data loader shuffles.

    Args:
        lengths: the known lengths of the run's batches.
        run: makes the memory events of steps with batches of any lengths.
        settings: settings of the allocator.
        num_orders: number of orders that are drawn.
        num_batches: number of batches in an order.
        later_bytes: bytes that are reserved in addition after the steps, such as by an evaluation.
        allocator_variable: environment variable in which the predicted PyTorch reads `settings`.
    """

    def __init__(
        self,
        lengths: Lengths,
        run: VaryingRun,
        settings: AllocatorSettings,
        *,
        num_orders: int,
        num_batches: int,
        later_bytes: int,
        allocator_variable: str,
    ) -> None:
        self._lengths = lengths
        self._allocator_variable = allocator_variable
        self._run = run
        self._settings = settings
        self._num_orders = num_orders
        self._num_batches = num_batches
        self._later_bytes = later_bytes
        self._replays: dict[tuple[int, bool, int | None], Replay] = {}

    @classmethod
    def of(cls, on_card: StepOnCard) -> Self | None:
        """Batch orders of the run that a traced step belongs to; None if there is nothing to draw.

        That is so if all batches are alike, if it is not known what happens at other lengths, or if all steps
        of the run were traced.
        """
        trace, sizes, settings = on_card.step.trace, on_card.likely().sizes, on_card.conditions.settings
        run = VaryingRun.of(trace, sizes, on_card.likely_bytes)
        if run is None or trace.lengths is None or trace.seen is None:
            return None
        if len(trace.seen.step_ends) == trace.seen.num_run_steps:
            return None
        until_steps_end = trace.events[: trace.seen.step_ends[-1]]
        whole, of_steps = (
            replay(events, sizes, settings=settings) for events in (trace.events, until_steps_end)
        )
        affordable = round(_MOST_EVENTS / run.num_events_of_batch)
        run_steps = trace.seen.num_run_steps or _MOST_BATCHES
        of_step = len(trace.lengths.starts) / len(trace.seen.step_ends)
        of_run = max(round(run_steps * of_step) - run.num_traced + run.num_steady, 1)
        num_batches = min(of_run, _MOST_BATCHES)
        num_orders = _NUM_ORDERS if num_batches * _NUM_ORDERS <= affordable else _LEAST_ORDERS
        num_batches = min(num_batches, max(affordable // num_orders, _LEAST_BATCHES))
        return cls(
            trace.lengths,
            run,
            settings,
            num_orders=num_orders,
            num_batches=num_batches,
            later_bytes=whole.peak_reserved_bytes - of_steps.peak_reserved_bytes,
            allocator_variable=conf_variable(trace.versions.get("torch")),
        )

    @cached_property
    def orders(self) -> list[list[Numbers]]:
        """Lengths of the batches of a run, a list for each simulated order of the data set.

        Without shuffling there is one order. The longest batch is put into every shuffled one, as the peak
        would else depend on whether it was drawn.
        """
        lengths = self._lengths
        known = [*lengths.numbers, *lengths.numbers_coming]
        if lengths.is_read and not lengths.is_shuffled:
            repeated = islice(cycle(known), self._num_batches)
            return [list(repeated)]
        longest = known[max(range(len(known)), key=lambda number: prod(lengths.shapes[number]))]
        return [
            self._drawn(random.Random(seed), known, longest)  # noqa: S311 - no secret
            for seed in range(self._num_orders)
        ]

    def answer(self, limit_bytes: int | None) -> RunLengths:
        """Memory of the run, from simulations of all batch orders.

        Args:
            limit_bytes: most bytes that the allocator can reserve; an order that does not run within it is
                simulated without a limit.
        """
        replays = [self._at_most(number, limit_bytes) for number in range(len(self.orders))]
        peaks = sorted(each.peak_reserved_bytes + self._later_bytes for each in replays)
        beyond = round(_BEYOND[self._num_orders] * (peaks[-1] - peaks[0]))
        highest = peaks[-1] + beyond
        if limit_bytes is not None and peaks[-1] <= limit_bytes:
            highest = min(highest, limit_bytes)
        shapes = sorted(self._lengths.shapes, key=prod)
        return RunLengths(
            shortest=shapes[0],
            median=shapes[len(shapes) // 2],
            longest=shapes[-1],
            num_known=len(shapes),
            num_longest=sum(prod(shape) == prod(shapes[-1]) for shape in shapes),
            is_read=self._lengths.is_read,
            num_orders=len(replays),
            num_batches=self._num_batches,
            allocated_bytes=max(each.peak_allocated_bytes for each in replays),
            low_bytes=max(0, peaks[0] - beyond),
            likely_bytes=round(statistics.median(peaks)),
            high_bytes=highest,
            expandable_bytes=self._expandable_bytes(),
            num_alloc_retries=max(each.num_alloc_retries for each in replays),
            allocator_variable=self._allocator_variable,
        )

    def share_within(self, limit_bytes: int) -> float:
        """Share of the batch orders that run within a memory limit, if the allocator releases its cache."""
        within = [
            self._at_most(number, limit_bytes).peak_reserved_bytes <= limit_bytes
            for number in range(len(self.orders))
        ]
        return sum(within) / len(within)

    def _drawn(self, rng: random.Random, known: Sequence[Numbers], longest: Numbers) -> list[Numbers]:
        """Draws an order of batches: shuffled epochs of the known batches, with the longest one in it."""
        epochs = (rng.sample(known, len(known)) for _ in count())
        drawn = list(islice(chain.from_iterable(epochs), self._num_batches))
        if longest not in drawn:
            drawn[rng.randrange(len(drawn))] = longest
        return drawn

    def _expandable_bytes(self) -> int | None:
        if self._settings.expandable_segments:
            return None
        numbers = range(min(_NUM_EXPANDABLE, len(self.orders)))
        peaks = [self._replay(number, None, is_expandable=True).peak_reserved_bytes for number in numbers]
        return round(statistics.median(peaks))

    def _at_most(self, number: int, limit_bytes: int | None) -> Replay:
        """Simulation of a batch order within a memory limit, or without one if memory would run out.

        Args:
            number: index of the order in `orders`.
        """
        unlimited = self._replay(number, None)
        if limit_bytes is None or unlimited.peak_reserved_bytes <= limit_bytes:
            return unlimited
        found = self._replay(number, limit_bytes)
        return found if found.completed else unlimited

    def _replay(self, number: int, limit_bytes: int | None, *, is_expandable: bool = False) -> Replay:
        key = number, is_expandable, limit_bytes
        if key not in self._replays:
            settings = self._settings
            if is_expandable:
                settings = dataclasses.replace(settings, expandable_segments=True)
            events, sizes = self._run.drawn(self.orders[number])
            self._replays[key] = replay(events, sizes, settings=settings, limit_bytes=limit_bytes)
        return self._replays[key]
