"""Real allocations beside predicted ones, in order: where each has one that the other lacks, and why.

    real         a b c c' d e      size by size in their order; where lines of both are known, line by line
    predicted    a b C    d e f    here `c` is `C` of another size, `c'` is real alone, `f` predicted alone

The sequences are aligned with the fewest insertions (E. W. Myers, "An O(ND) difference algorithm", 1986).
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from autofit.explain.profile import Profile, lifetimes, peak_position, phases
from autofit.explain.snapshots.run import NO_LINE, Run
from autofit_workers.replay.snapshots.frames import short
from autofit_workers.spec.trace import Category, last_step

_MOST_EDITS = 1500  # beyond, sequences are taken to have nothing in common from there on
_LINES_SHARE = 0.3  # of the real lines that a prediction has to name, to compare line by line
_RUN = 6  # requests that show where a recorded step begins
_WITHOUT_SHARE = 0.05  # of the real requests that have no line
_WORKSPACE_OPERATORS = ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "convolution")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Allocations of one operator at one line that a real step has otherwise than the predicted one.

    Attributes:
        operator: the operator, such as `aten.mm`; empty if neither frames nor prediction name one.
        line: `file:line:function` without folders; in brackets where there is none.
        real_bytes, predicted_bytes: what the real step and the predicted one request in these allocations.
        peak_bytes: bytes by which they are more at the real peak than at the predicted one.
        real_count, predicted_count: number of these allocations.
        why: what it looks like, in a few words; empty if nothing is known.
    """

    operator: str
    line: str
    real_bytes: int
    predicted_bytes: int
    peak_bytes: int
    real_count: int
    predicted_count: int
    why: str

    @property
    def extra_bytes(self) -> int:
        """Bytes that the real step requests more; negative if it requests less."""
        return self.real_bytes - self.predicted_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Recorded step beside a predicted one.

    Attributes:
        num_real, num_predicted: allocations of the step.
        num_matched: those of both that are the same, in order.
        by_line: whether lines were compared, and not sizes alone.
        before_bytes: bytes by which the real run holds more before the step.
        differences: by operator and line, the largest effect first.
    """

    num_real: int
    num_predicted: int
    num_matched: int
    by_line: bool
    before_bytes: int
    differences: tuple[Difference, ...]

    @property
    def matched_share(self) -> float:
        return self.num_matched / max(self.num_real, self.num_predicted, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """Allocation of a step, real or predicted.

    Attributes:
        is_at_peak: whether it is alive at the peak.
        is_kept: whether it is never freed.
        is_backward: whether backward asked.
    """

    num_bytes: int
    line: str
    operator: str
    category: str
    is_at_peak: bool
    is_kept: bool
    is_backward: bool


def match(run: Run, profile: Profile) -> Matched:
    """Compares a recorded step with the last whole step of a prediction.

    Args:
        run: a recorded run; its last whole step is taken, or all of it if no steps are known.
        profile: the prediction.
    """
    real, real_before = _real_step(run)
    step = _PredictedStep(profile)
    turned = _turned([each.num_bytes for each in real], [each.num_bytes for each in step.requests])
    predicted, predicted_before = step.from_request(turned)
    lines = {each.line for each in real} - {NO_LINE}
    shared = lines & {each.line for each in predicted}
    by_line = bool(lines) and len(shared) >= _LINES_SHARE * len(lines)
    # Where real requests of backward have no lines, those of a prediction count as if they had none.
    real_without, predicted_without = (
        sum(each.line == NO_LINE for each in part) for part in (real, predicted)
    )
    without = real_without - predicted_without > _WITHOUT_SHARE * len(real)
    named = shared if by_line else set()
    left, right = (
        [
            (each.num_bytes, each.line if each.line in named and not (without and each.is_backward) else "")
            for each in part
        ]
        for part in (real, predicted)
    )
    differences: dict[tuple[str, str], list[tuple[_Request | None, _Request | None, str]]] = defaultdict(list)
    gaps = list(_gaps(_common(left, right), len(left), len(right)))
    moved = _moved(left, right, gaps)
    for start, stop, other_start, other_stop in gaps:
        here_alone = [real[place] for place in range(start, stop) if place not in moved[0]]
        there_alone = [predicted[place] for place in range(other_start, other_stop) if place not in moved[1]]
        before = real[start - 1] if start else None
        for here, there in _pairs(here_alone, there_alone):
            one = here or there
            assert one is not None
            operator = (there.operator if there else "") or (here.operator if here else "")
            differences[operator, one.line].append((here, there, _why(here, there, before)))
    num_other = sum(1 for found in differences.values() for here, _, _ in found if here is not None)
    return Matched(
        num_real=len(real),
        num_predicted=len(predicted),
        num_matched=len(real) - num_other,
        by_line=by_line,
        before_bytes=real_before - predicted_before,
        differences=tuple(
            sorted(
                (_difference(*key, found) for key, found in differences.items()),
                key=lambda each: (-abs(each.peak_bytes), -abs(each.extra_bytes), each.line, each.operator),
            )
        ),
    )


def _real_step(run: Run) -> tuple[list[_Request], int]:
    """Requests of the last whole step of a run, and what was held before it."""
    start, stop = run.starts[-2:] if run.num_steps else (run.followed.num_before, run.num_events)
    followed, peak = run.followed, run.peak_position
    if run.num_steps:
        inside = followed.allocated[start:stop]
        peak = start + inside.index(max(inside)) + 1
    found = []
    for event in followed.events[start:stop]:
        if event < 0 or not followed.requested_bytes[event]:
            continue
        source = followed.sources[event]
        found.append(
            _Request(
                num_bytes=followed.requested_bytes[event],
                line=run.line(event),
                operator=source.operator,
                category=source.category,
                is_at_peak=run.births[event] < peak <= run.deaths[event],
                is_kept=run.deaths[event] == run.num_events,
                is_backward=source.is_backward,
            )
        )
    before = sum(followed.requested_bytes[each] for each in run.alive_at(start))
    return found, before


class _PredictedStep:
    """Last whole step of a prediction, which a recorded one may begin anywhere in.

    Attributes:
        requests: requests of the step, in order.
    """

    def __init__(self, profile: Profile) -> None:
        trace, sizes = profile.trace, profile.requested_bytes
        start, stop = last_step(trace.marks, len(trace.events))
        if start >= len(trace.events):
            start, stop = 0, len(trace.events)
        self._lives, self._sizes = lifetimes(profile), sizes
        self._positions = [start]
        self.requests: list[_Request] = []
        peak = peak_position(profile, start, stop)
        backward = [(each.start, each.stop) for each in phases(profile) if each.name == "backward"]
        for event in trace.events[start:stop]:
            if event < 0 or not sizes[event]:
                continue
            birth, death = self._lives.births[event], self._lives.deaths[event]
            allocation = trace.allocations[event]
            self._positions.append(birth)
            self.requests.append(
                _Request(
                    num_bytes=sizes[event],
                    line=short(allocation.source) if allocation.source else NO_LINE,
                    operator=allocation.operator,
                    category=allocation.category.value,
                    is_at_peak=birth < peak <= death,
                    is_kept=death == len(trace.events),
                    is_backward=any(begin <= birth < end for begin, end in backward),
                )
            )

    def from_request(self, number: int) -> tuple[list[_Request], int]:
        """Requests of a step that begins with another one, and what is held before it."""
        position = self._positions[number + 1] if number else self._positions[0]
        held = sum(self._sizes[each] for each in self._lives.alive_at(position))
        return self.requests[number:] + self.requests[:number], held


def _turned(real: Sequence[int], predicted: Sequence[int]) -> int:
    """Number of the predicted request that a recorded step begins with, as most of its runs of sizes say.

    Runs that come once in the predicted step vote; without any it is the first one.
    """
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    around = [*predicted, *predicted[: _RUN - 1]]
    for place in range(len(predicted)):
        places[tuple(around[place : place + _RUN])].append(place)
    votes: Counter[int] = Counter()
    for place in range(len(real) - _RUN + 1):
        found = places.get(tuple(real[place : place + _RUN]), ())
        if len(found) == 1:
            votes[(found[0] - place) % len(predicted)] += 1
    # What was put in or left out turns all that comes after it: the beginning decides between equals.
    near = votes.most_common(1)
    return near[0][0] if near and votes[0] < near[0][1] else 0


def _gaps(
    pairs: Sequence[tuple[int, int]], num_left: int, num_right: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yields the parts, of one sequence and of the other, between which both are the same."""
    start = other_start = 0
    for place, other in [*pairs, (num_left, num_right)]:
        if place > start or other > other_start:
            yield start, place, other_start, other
        start, other_start = place + 1, other + 1


def _common(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pairs of places of a longest common subsequence, or of its beginning if there is little in common."""
    num_left, num_right = len(left), len(right)
    most = min(num_left + num_right, _MOST_EDITS)
    middle = most + 1  # index of diagonal 0
    furthest = [0] * (2 * most + 3)
    history: list[array[int]] = []
    for edits in range(most + 1):
        history.append(array("q", furthest[middle - edits - 1 : middle + edits + 2]))
        for diagonal in range(-edits, edits + 1, 2):
            below, above = furthest[middle + diagonal - 1], furthest[middle + diagonal + 1]
            x = above if _goes_down(diagonal, edits, below, above) else below + 1
            y = x - diagonal
            while x < num_left and y < num_right and left[x] == right[y]:
                x, y = x + 1, y + 1
            furthest[middle + diagonal] = x
            if diagonal == num_left - num_right and x >= num_left:
                return _backwards(history, x, y)
    inside = (
        (2 * furthest[middle + diagonal] - diagonal, furthest[middle + diagonal], diagonal)
        for diagonal in range(-most, most + 1, 2)
        if furthest[middle + diagonal] <= num_left and furthest[middle + diagonal] - diagonal <= num_right
    )
    _, x, diagonal = max(inside)
    return _backwards(history, x, x - diagonal)


def _goes_down(diagonal: int, edits: int, below: int, above: int) -> bool:
    return diagonal == -edits or (diagonal != edits and below < above)


def _backwards(history: Sequence[array[int]], x: int, y: int) -> list[tuple[int, int]]:
    """Pairs on the way from a point back to the beginning.

    Args:
        history: before each number of edits, how far each diagonal from one below `-edits` on was reached.
    """
    pairs = []
    for edits in range(len(history) - 1, -1, -1):
        reached, diagonal = history[edits], x - y
        place = diagonal + edits + 1
        step = 1 if _goes_down(diagonal, edits, reached[place - 1], reached[place + 1]) else -1
        start = reached[place + step]
        other = start - (diagonal + step)
        while x > start and y > other and x > 0 and y > 0:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = start, other
    return pairs[::-1]


# ── what a gap means ────────────────────────────────────────────────────────────────────────────


def _moved(
    left: Sequence[Hashable], right: Sequence[Hashable], gaps: Sequence[tuple[int, int, int, int]]
) -> tuple[set[int], set[int]]:
    """Places, in both sequences, of what comes in gaps of both, only in another order."""
    waiting: dict[Hashable, deque[int]] = defaultdict(deque)
    for _, _, start, stop in gaps:
        for place in range(start, stop):
            waiting[right[place]].append(place)
    moved: tuple[set[int], set[int]] = (set(), set())
    for start, stop, _, _ in gaps:
        for place in range(start, stop):
            if found := waiting.get(left[place]):
                moved[0].add(place)
                moved[1].add(found.popleft())
    return moved


def _pairs(left: list[_Request], right: list[_Request]) -> Iterator[tuple[_Request | None, _Request | None]]:
    """Yields what differs between two parts: pairs of the same line with two sizes, then what is left."""
    for key in (_size, _own_line):
        waiting: dict[Hashable, deque[_Request]] = defaultdict(deque)
        for other in right:
            waiting[key(other)].append(other)
        kept = []
        for one in left:
            found = waiting[key(one)]
            if key(one) is None or not found:
                kept.append(one)
                continue
            other = found.popleft()
            if one.num_bytes != other.num_bytes:
                yield one, other
        left, right = kept, [each for found in waiting.values() for each in found]
    for one in left:
        yield one, None
    for other in right:
        yield None, other


def _size(request: _Request) -> Hashable:
    return request.num_bytes


def _own_line(request: _Request) -> Hashable:
    return None if request.line == NO_LINE else request.line


def _why(here: _Request | None, there: _Request | None, before: _Request | None) -> str:
    """Looks of a difference, in a few words.

    Args:
        before: the real allocation before.
    """
    is_workspace = any(each and each.category == Category.WORKSPACE for each in (here, there))
    if here is None or there is None:
        alone = "only predicted" if here is None else _of_real_alone(here, before)
        return "workspace" if is_workspace else alone
    if is_workspace:
        return "workspace"
    if here.num_bytes == 2 * there.num_bytes:
        return "32 bits where 16 are predicted"
    return "16 bits where 32 are predicted" if 2 * here.num_bytes == there.num_bytes else "another size"


def _of_real_alone(here: _Request, before: _Request | None) -> str:
    if here.is_kept:
        return "kept, and not predicted"
    if before is not None and here.num_bytes == 2 * before.num_bytes:
        return "a copy in 32 bits"
    is_product = here.operator.removeprefix("aten.") in _WORKSPACE_OPERATORS
    return "workspace" if is_product else "not predicted"


def _difference(
    operator: str, line: str, found: Sequence[tuple[_Request | None, _Request | None, str]]
) -> Difference:
    real = [here for here, _, _ in found if here is not None]
    predicted = [there for _, there, _ in found if there is not None]
    words = Counter(why for _, _, why in found)
    return Difference(
        operator=operator,
        line=line,
        real_bytes=sum(each.num_bytes for each in real),
        predicted_bytes=sum(each.num_bytes for each in predicted),
        peak_bytes=sum(each.num_bytes for each in real if each.is_at_peak)
        - sum(each.num_bytes for each in predicted if each.is_at_peak),
        real_count=len(real),
        predicted_count=len(predicted),
        why=words.most_common(1)[0][0],
    )
