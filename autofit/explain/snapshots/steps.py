"""Where the steps of a recorded run begin: where the program named them, or by what repeats.

A request that comes once a step divides the record into parts that are alike. Layers repeat too, but the
part between two of them lacks most kinds of requests that the record has:

    requests    a b b b c | a b b b c | a b b b c        `a` and `c` divide steps, `b` divides layers
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from autofit_workers.replay.snapshots import Snapshot
from autofit_workers.replay.snapshots.blocks import Followed

# A profiler's names, common ones of users, and those of phases in autofit's own snapshots.
_NAMED = re.compile(
    r"(?:ProfilerStep#|(?:train(?:ing)?[ _])?step[ _#]?)(\d+)(?: input| forward)?", re.IGNORECASE
)
_LIKE_SHARE = 0.9  # of the requests of a step that the next one has too
_KINDS_SHARE = 0.8  # of the kinds of requests that a step has
_LONGER = 1.02
_WHOLE_SHARE = 0.98  # of the requests of the step before, which make a last one a whole step
_KEPT_SHARE = 0.2  # of what is requested, as layers of a forward pass keep it and steps do not
_FEWEST_REQUESTS = 4  # of a step
_MOST_STEPS = 2000
_TRIED_OF_A_COUNT = 3  # requests that divide into as many parts
_TRIED_COUNTS = 60


def step_starts(snapshot: Snapshot, followed: Followed) -> tuple[tuple[int, ...], bool]:
    """Positions, in the followed events, where steps begin, and whether the program named them.

    Whole steps lie between two of them. Empty if fewer than two whole steps are found.
    """
    named: dict[str, int] = {}
    for place, name in snapshot.annotations:
        if found := _NAMED.fullmatch(name):
            named.setdefault(found[1], place)
    if len(named) > 1:
        ends = [*followed.positions, len(followed.events)]
        starts = [ends[place] for place in named.values()][:_MOST_STEPS]
        return _with_end(list(dict.fromkeys(starts)), followed), True
    first = followed.num_before
    requests = [(place, event) for place, event in enumerate(followed.events) if event >= first]
    sources, sizes = followed.sources, followed.requested_bytes
    numbers: dict[tuple[int, str], int] = {}
    kinds = [numbers.setdefault((sizes[event], sources[event].where), len(numbers)) for _, event in requests]
    before = [followed.allocated[place - 1] if place else 0 for place, _ in requests]
    made = list(itertools.accumulate((sizes[event] for _, event in requests), initial=0))
    starts = [requests[place][0] for place in _divided(kinds, before, made)]
    return _with_end(starts, followed), False


def _with_end(starts: list[int], followed: Followed) -> tuple[int, ...]:
    """Positions where steps begin, and the end of the record if what comes after the last is a whole step."""
    num_events = len(followed.events)
    if len(starts) > 1:
        last, rest = (
            sum(event >= 0 for event in followed.events[start:stop])
            for start, stop in ((starts[-2], starts[-1]), (starts[-1], num_events))
        )
        if rest >= _WHOLE_SHARE * last:
            starts.append(num_events)
    return tuple(starts)


def _divided(kinds: Sequence[int], before: Sequence[int], made: Sequence[int]) -> list[int]:
    """Indices of the requests with which steps begin; the least is allocated before them.

    Args:
        kinds: kind of each request.
        before: bytes that were allocated before each.
        made: bytes of all requests before each.
    """
    places: dict[int, list[int]] = defaultdict(list)
    for place, kind in enumerate(kinds):
        places[kind].append(place)
    counts: dict[int, list[list[int]]] = defaultdict(list)
    for found in places.values():
        if 2 <= len(found) <= _MOST_STEPS:
            counts[len(found)].append(found)
    for count in sorted(counts)[:_TRIED_COUNTS]:
        by_memory = sorted(counts[count], key=lambda found: min(before[place] for place in found[1:]))
        for found in by_memory[:_TRIED_OF_A_COUNT]:
            start, stop = found[-2:]
            is_kept = before[stop] - before[start] > _KEPT_SHARE * (made[stop] - made[start])
            if not is_kept and _are_steps(kinds, found):
                return found
    return []


def _are_steps(kinds: Sequence[int], starts: Sequence[int]) -> bool:
    """Whether the last parts between `starts` are alike, and have most kinds of requests of the record."""
    whole = [kinds[start:stop] for start, stop in itertools.pairwise(starts[-3:])]
    # What comes after the last is a step too, where whole steps were recorded; with what comes before the
    # first, if the record begins within one.
    after = kinds[starts[-1] :]
    others = [*whole[:-1], after, [*after, *kinds[: starts[0]]]]
    last = Counter(whole[-1])
    from_here = starts[min(1, len(starts) - 2)]  # a first step also makes the optimizer's state
    longest = max(stop - start for start, stop in itertools.pairwise(starts))
    rest = len(kinds) - starts[-1]
    # After the last layer comes what is no layer; after the last step nothing that is longer than a step.
    return (
        len(whole[-1]) >= _FEWEST_REQUESTS
        and len(last) >= _KINDS_SHARE * len(set(kinds[from_here:]))
        and rest <= _LONGER * longest + 1
        and any(_are_alike(last, Counter(other)) for other in others)
    )


def _are_alike(one: Counter[int], other: Counter[int]) -> bool:
    return (one & other).total() >= _LIKE_SHARE * max(one.total(), other.total())
