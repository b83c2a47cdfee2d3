"""Records branches that a program takes on made-up values, and sizes that were assumed.

Made-up values stand for unknown ones; a branch on one is taken as if it were real. If the program then raises
an error, the caller may trace it again with the branches at some places turned (argument `turned`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from autofit_workers.spec.setup import LIKELY_SHARE
from autofit_workers.spec.trace import Assumption
from autofit_workers.tracing.recording.call_sites import user_frame, user_source
from autofit_workers.tracing.values.effort import Effort

_NUM_SHOWN = 3  # branches named in the note
_UNKNOWN_LINE = "an unknown line"  # branch within PyTorch, such as one in an optimizer
_OF_DEEPSPEED = "/deepspeed/runtime/"  # its branches ask whether gradients overflowed, which none does


class Decisions:
    """Guesses about values that only a real run has: branches taken on them, and sizes assumed.

    Args:
        turned: places (`file:line:function`) at which branches are taken against the likely way.
        share: share of its elements that an unknown mask is assumed to select, from 0 to 1.

    Attributes:
        taken: by place, which way the last branch there was taken.
        assumptions: the largest size assumed for each place and kind of size.
        effort: limits on the bytes of values that are computed.
    """

    def __init__(self, turned: Iterable[str] = (), share: float = LIKELY_SHARE) -> None:
        self.share = share
        self.effort = Effort()
        self.taken: dict[str, bool] = {}
        self._turned = frozenset(turned)
        self._seen: dict[tuple[str, int, str, int], set[int]] = {}
        self._assumed: dict[tuple[str, str], Assumption] = {}

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        return tuple(self._assumed.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """Note for the user on the branches taken on unknown values; empty without such branches."""
        ways = [
            f"{site} was taken as {way}"
            for site, way in self.taken.items()
            if site != _UNKNOWN_LINE and _OF_DEEPSPEED not in site
        ]
        more = f", and {len(ways) - _NUM_SHOWN} more" if len(ways) > _NUM_SHOWN else ""
        said = f"branches on values that are not known: {'; '.join(ways[:_NUM_SHOWN])}{more}"
        return (said,) if ways else ()

    def decide(self, likely: bool) -> bool:
        """Records a branch on an unknown value at the running line of the user's code; returns the condition.

        Args:
            likely: the condition, unless the line is one of the `turned` places; there it is the opposite.
        """
        site = here()
        way = likely if site not in self._turned else not likely
        self.taken[site] = way
        return way

    def assume(self, what: str, likely: int, largest: int | None) -> int:
        """Records and returns an assumed size.

        Args:
            what: name for the user of the thing that has the size.
            likely: the assumed size.
            largest: largest possible size; None if there is no limit.
        """
        site = here()
        before = self._assumed.get((site, what))
        if before is None or before.size < likely:
            self._assumed[site, what] = Assumption(site=site, what=what, size=likely, largest=largest)
        return likely

    def counted(self, what: str, size: int, largest: int) -> int:
        """Number of elements that a known mask or comparison selects, or an assumed larger one.

        If the number has differed between batches, it is recorded as an assumption, as batches that are not
        traced may select more. It is then `largest` if unknown masks are assumed to select all (`share` is
        1).

        Args:
            what: name, for the user, of the thing that is selected.
            size: number of elements that are selected.
            largest: most elements that can be selected.
        """
        frame = user_frame(sys._getframe(1))
        place = -1 if frame is None else frame.f_lasti  # a line may select several times
        seen = self._seen.setdefault((here(), place, what, largest), set())
        seen.add(size)
        if len(seen) == 1:
            return size
        self.assume(what, max(seen), largest)
        return largest if self.share == 1 else size

    def share_of(self, what: str, largest: int) -> int:
        """Number of elements that an unknown mask is assumed to select of `largest`; recorded as assumed.

        Args:
            what: name, for the user, of the thing that is selected.
            largest: most elements that can be selected.
        """
        return self.assume(what, round(self.share * largest), largest)


_running: list[Decisions] = [Decisions()]


def begin(decisions: Decisions) -> None:
    """Records branches on unknown values, and assumed sizes, in `decisions` from now on in this process."""
    _running[:] = [decisions]


def running() -> Decisions:
    """Branches and assumed sizes of the program that runs in this process."""
    return _running[0]


def here() -> str:
    """Running line of the user's code as `file:line:function`."""
    return user_source(sys._getframe(1)) or _UNKNOWN_LINE
