"""Step at one batch size, independent of the card and the convolution algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from autofit_workers.replay.allocator import live_peak_bytes, peak_of_blocks
from autofit_workers.replay.curve.conditions import Call, Conditions, Level, demands
from autofit_workers.replay.curve.lines.step_lines import Demanded, StepLines
from autofit_workers.replay.curve.mixed_convolutions import layer_of
from autofit_workers.replay.curve.unrolled import Unrolled, unrolled
from autofit_workers.replay.plans.plan import PlanSource
from autofit_workers.replay.spans import Workspace
from autofit_workers.spec.trace import Trace
from autofit_workers.spec.work import Convolution


class SizedStep:
    """Step at one batch size with the sizes of its allocations, before a card and an algorithm are chosen.

    A *call* is a convolution or another operator with workspace or scratch memory, which depends on the card.

    Args:
        lines: the step's allocations, with dimensions as lines in the batch size.
        batch_size: a batch size that the lines cover.

    Attributes:
        batch_size, lines: as given.
        memory: cache of the step's replays and workspaces, at all batch sizes.
        trace: the first of the traces that the lines were fitted to; it may be at another batch size.
    """

    def __init__(self, lines: StepLines, batch_size: int) -> None:
        self.lines = lines
        self.batch_size = batch_size
        self.memory = lines.memory
        self.trace: Trace = lines.trace

    @cached_property
    def calls(self) -> list[Call]:
        """Distinct calls with workspace or scratch memory, at the step's batch size."""
        return self.lines.calls_at(self.batch_size)

    @cached_property
    def convolutions(self) -> dict[int, Convolution]:
        """Convolution calls of the step, by the index of the allocation that is the call's workspace."""
        return {
            index: call
            for index, number in self.lines.call_of.items()
            if isinstance(call := self.calls[number], Convolution)
        }

    @cached_property
    def _sizes(self) -> list[int]:
        return self.lines.sizes_at(self.batch_size)

    def demands(self, conditions: Conditions, source: PlanSource) -> tuple[Workspace, ...]:
        """Workspace of each distinct call as a range from low to worst; cached.

        Args:
            conditions: card, convolution algorithm and more.
            source: source of cuDNN's convolution plans (libcudnn, a table, or formulas).
        """
        return self.memory.demands(
            (self.batch_size, conditions, source),
            lambda: demands(self.calls, conditions, source, self.lines.torch_release),
        )

    def sizes_with(self, demanded: Demanded) -> list[int]:
        """Bytes of every allocation of the trace, given the workspaces.

        Args:
            demanded: workspace bytes of each distinct call, for its first and its later runs.
        """
        sizes = self._sizes.copy()
        for index, position in self.lines.position_of.items():
            sizes[index] = demanded[position]
        return sizes

    def unrolled(self, sizes: Sequence[int]) -> Unrolled:
        """Events of the whole step, also of a text generation's untraced passes, and each allocation's bytes.

        Args:
            sizes: bytes of every allocation of the trace.
        """
        return unrolled(self.trace, sizes)

    @cached_property
    def lower_bound_bytes(self) -> int:
        """Peak of live bytes without any convolution workspace, a lower bound for every algorithm."""
        return live_peak_bytes(*self.unrolled(self._sizes_without_plans(Level.LOW)))

    def live_bytes(self, level: Level, block_bytes: Callable[[int], int]) -> int:
        """Largest sum of the blocks alive at one time, in bytes, without workspaces and scratch memory.

        Args:
            level: low, likely or high, for allocations whose size is an estimate.
            block_bytes: returns the bytes of the block that serves a request of some bytes.
        """
        events, sizes = self.unrolled(self._sizes_without_plans(level))
        return peak_of_blocks(events, [block_bytes(size) for size in sizes])

    def largest_estimate_bytes(self) -> int:
        """Largest likely bytes of an allocation whose size in the trace is an estimate; 0 without any."""
        return max((call.likely_bytes for call in self.calls if isinstance(call, Workspace)), default=0)

    def convolution_modules(self) -> dict[Convolution, tuple[str, ...]]:
        """Names of the modules that call each distinct convolution layer."""
        names: dict[Convolution, dict[str, None]] = {}
        for index, call in self.convolutions.items():
            names.setdefault(layer_of(call), {})[self.trace.allocations[index].module] = None
        return {layer: tuple(modules) for layer, modules in names.items()}

    def live_at_convolutions(self, level: Level) -> dict[Convolution, int]:
        """Largest number of bytes alive while each distinct convolution runs, without workspaces."""
        sizes = self._sizes_without_plans(level)
        live_bytes, most = 0, dict[Convolution, int]()
        for event in self.trace.events:
            live_bytes += sizes[event] if event >= 0 else -sizes[~event]
            if event in self.convolutions:
                call = self.convolutions[event]
                most[call] = max(live_bytes, most.get(call, 0))
        return most

    def _sizes_without_plans(self, level: Level) -> Sequence[int]:
        """Bytes of every allocation, with 0 for convolution workspaces and scratch memory.

        Args:
            level: low, likely, high or worst, for allocations whose size is an estimate.
        """
        estimated = tuple(getattr(c, f"{level}_bytes") if isinstance(c, Workspace) else 0 for c in self.calls)
        return self.sizes_with(2 * estimated)
