"""What a training over texts of unlike lengths reserves, from traces of it at three lengths.

A text that is longer than those before it finds no cached block that is large enough, and one that is
shorter leaves parts of blocks; so what is reserved depends on the lengths and on their order, and is far
above what texts of one length take. Where a table says how long its texts are, and not in which order they
came, orders are drawn, and the median of what they reserve stands for the run.

The events of a pass are the same at every length, and each size is a polynomial of second degree in it, but
for what a kernel pads to its tiles: the traces are at multiples of 128, which are tiles of attention.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autofit_workers.replay.allocator.caching import make_pools
from autofit_workers.replay.allocator.pools import Block, BlockPools
from autofit_workers.replay.allocator.settings import DEFAULT_SETTINGS, SMALL_REQUEST_BYTES
from autofit_workers.spec.trace import Trace

TRACED_LENGTHS = (256, 512, 1024)
NUM_ORDERS = 5
MOST_TEXTS = 480  # of an order: later ones add little, as few are longer than all before them


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """A data set's texts, by what is published of their numbers of tokens.

    Lengths are of the gamma distribution with that mean and deviation, within the bounds.

    Attributes:
        num_texts: that the data set has, or that were taken of it before long ones were left out.
        longest_taken: texts with more tokens are left out of the training.
    """

    num_texts: int
    mean: float
    deviation: float
    shortest: int
    longest: int
    longest_taken: int

    def drawn(self, source: random.Random) -> list[int]:
        """Lengths in an order, without those that are left out."""
        shape = (self.mean / self.deviation) ** 2
        lengths = (int(source.gammavariate(shape, self.mean / shape)) for _ in range(self.num_texts))
        return [
            length for length in lengths if self.shortest <= length <= min(self.longest, self.longest_taken)
        ]


def batches(data: Sequence[Texts], batch_size: int, *, seed: int) -> list[int]:
    """Tokens of each of the first batches, which are padded to the longest of their texts."""
    source = random.Random(seed)
    lengths = [length for texts in data for length in texts.drawn(source)]
    source.shuffle(lengths)
    lengths = lengths[: MOST_TEXTS * batch_size]
    whole = range(0, len(lengths) - batch_size + 1, batch_size)
    return [max(lengths[start : start + batch_size]) for start in whole]


class PassesOfLengths:
    """A training's passes at any length.

    Args:
        traces: at `TRACED_LENGTHS`, of steps of two passes, or of one where none is accumulated; each with
            the bytes of all its allocations.

    Raises:
        ValueError: the events depend on the length.
    """

    def __init__(self, traces: Sequence[tuple[Trace, Sequence[int]]]) -> None:
        first, _ = traces[0]
        if any(trace.events != first.events for trace, _ in traces[1:]):
            raise ValueError("what is allocated in a pass depends on the length, not its sizes alone")
        self._polynomials = [_through(each) for each in zip(*(sizes for _, sizes in traces), strict=True)]
        self._by_length: dict[int, list[int]] = {}
        self._parts = _parts(first)
        start_of_third = _first_allocation(self._parts["step 3 input"][0])
        self._start_of_third = start_of_third
        self._one_step = start_of_third - _first_allocation(self._parts["step 2 input"][0])

    def reserved(self, tokens: Sequence[int], *, accumulated: int, limit_bytes: int | None) -> int:
        """The most that is reserved while batches of so many tokens come in turn.

        Args:
            accumulated: passes before each step of the optimizer.
            limit_bytes: what may be reserved; what is cached is given back before it is exceeded.

        Raises:
            AllocatorOutOfMemory: the limit leaves no room.
        """
        memory = _Memory(make_pools(DEFAULT_SETTINGS, limit_bytes=limit_bytes), self._named)
        memory.play(self._parts["model"][0], self._sizes(TRACED_LENGTHS[0]))
        groups = [tokens[start : start + accumulated] for start in range(0, len(tokens), accumulated)]
        for number, group in enumerate(groups, 1):
            step = f"step {min(number, 3)}"
            for position, length in enumerate(group):
                passes = self._parts[f"{step} input"]
                one = passes[0] if position == 0 else passes[-1]
                memory.play(one, self._sizes(length), ends_alone=0 < position < len(group) - 1)
            memory.play(self._parts[f"{step} optimizer"][0], self._sizes(group[-1]))
        return memory.pools.peak_reserved_bytes

    def _named(self, allocation: int) -> int:
        """An allocation of the third step by the same one of the second, as steps are alike from there."""
        return allocation - self._one_step if allocation >= self._start_of_third else allocation

    def _sizes(self, length: int) -> list[int]:
        if length not in self._by_length:
            at_0, at_1, _ = TRACED_LENGTHS
            asked = [
                round(size + line * (length - at_0) + bend * (length - at_0) * (length - at_1))
                for size, line, bend in self._polynomials
            ]
            self._by_length[length] = [DEFAULT_SETTINGS.round_size(n) if n > 0 else 0 for n in asked]
        return self._by_length[length]


class _Memory:
    """An allocator while parts of a trace are played, repeated ones among them."""

    def __init__(self, pools: BlockPools, named: Callable[[int], int]) -> None:
        self.pools = pools
        self._named = named
        self._blocks: defaultdict[int, deque[Block]] = defaultdict(deque)
        self._small, self._large = pools.pool(is_small=True), pools.pool(is_small=False)

    def play(self, events: Sequence[int], sizes: Sequence[int], *, ends_alone: bool = False) -> None:
        """Plays a part; of one that `ends_alone` what it leaves is freed, as the next would do."""
        taken: list[int] = []
        for event in events:
            if event >= 0:
                if size := sizes[event]:
                    pool = self._small if size <= SMALL_REQUEST_BYTES else self._large
                    name = self._named(event)
                    self._blocks[name].append(self.pools.take(size, pool))
                    taken.append(name)
            elif blocks := self._blocks[self._named(~event)]:
                self.pools.give(blocks.popleft())
        if ends_alone:
            for name in taken:
                if blocks := self._blocks[name]:
                    self.pools.give(blocks.pop())


def _through(sizes: tuple[int, ...]) -> tuple[int, float, float]:
    """Newton's polynomial through the sizes at the traced lengths."""
    at_0, at_1, at_2 = TRACED_LENGTHS
    size_0, size_1, size_2 = sizes
    line = (size_1 - size_0) / (at_1 - at_0)
    return size_0, line, ((size_2 - size_1) / (at_2 - at_1) - line) / (at_2 - at_0)


def _parts(trace: Trace) -> dict[str, list[tuple[int, ...]]]:
    """The events by what they are of: the model, the passes of each step, and its optimizer."""
    marks = [mark for mark in trace.marks if mark.name.endswith(("model", "input", "optimizer"))]
    bounds = [*(mark.position for mark in marks), len(trace.events)]
    parts: dict[str, list[tuple[int, ...]]] = {}
    for mark, (start, end) in zip(marks, pairwise(bounds), strict=True):
        parts.setdefault(mark.name, []).append(tuple(trace.events[start:end]))
    return parts


def _first_allocation(events: Sequence[int]) -> int:
    return next(event for event in events if event >= 0)
