"""Branches that a program takes on made-up values, and sizes that were assumed.

A branch goes the way that the made-up value says. Where the program then raises, the caller may run it
again with the other choice at some of the places (`Decisions.turned`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from autofit_workers.spec.setup import LIKELY_SHARE
from autofit_workers.spec.trace import Assumption
from autofit_workers.tracing.recording.call_sites import user_frame, user_source
from autofit_workers.tracing.values.effort import Effort

_NUM_SHOWN = 3  # branches
_UNKNOWN_LINE = "an unknown line"  # of PyTorch alone, as an optimizer's that compares norms
_OF_DEEPSPEED = "/deepspeed/runtime/"  # asks whether a gradient overflowed; none does


class Decisions:
    """Decisions of one program by values that are not there.

    Args:
        turned: places (`file:line:function`) where a branch takes the other way.
        share: share of the elements that an unknown mask is taken to select, from 0 to 1.

    Attributes:
        taken: by place, the last way that a branch took.
        assumptions: the sizes that were assumed, each place and operator once.
        effort: what was computed so that values are known.
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
        """Note for the user on the ways that the first branches in the user's code took."""
        ways = [
            f"{site} was taken as {way}"
            for site, way in self.taken.items()
            if site != _UNKNOWN_LINE and _OF_DEEPSPEED not in site
        ]
        more = f", and {len(ways) - _NUM_SHOWN} more" if len(ways) > _NUM_SHOWN else ""
        said = f"branches on values that are not known: {'; '.join(ways[:_NUM_SHOWN])}{more}"
        return (said,) if ways else ()

    def decide(self, likely: bool) -> bool:
        """Decides a branch at the user's line that is running, and notes its way."""
        site = here()
        way = likely if site not in self._turned else not likely
        self.taken[site] = way
        return way

    def assume(self, what: str, likely: int, largest: int | None) -> int:
        """Notes an assumed size and returns it.

        Args:
            what: the thing that has the size, as a reader knows it.
            largest: largest size possible; None where there is no limit.
        """
        site = here()
        before = self._assumed.get((site, what))
        if before is None or before.size < likely:
            self._assumed[site, what] = Assumption(site=site, what=what, size=likely, largest=largest)
        return likely

    def counted(self, what: str, size: int, largest: int) -> int:
        """Size that known values give; `largest` where they differ by batch and unknown masks select all.

        Known values are those of the batches that were seen. Where these differ, others may give more.
        """
        frame = user_frame(sys._getframe(1))
        place = -1 if frame is None else frame.f_lasti  # a line may ask several times
        seen = self._seen.setdefault((here(), place, what, largest), set())
        seen.add(size)
        if len(seen) == 1:
            return size
        self.assume(what, max(seen), largest)
        return largest if self.share == 1 else size

    def share_of(self, what: str, largest: int) -> int:
        """Likely size of a selection from `largest` elements, noted as assumed."""
        return self.assume(what, round(self.share * largest), largest)


_running: list[Decisions] = [Decisions()]


def begin(decisions: Decisions) -> None:
    """Makes this process decide by `decisions` from here on."""
    _running[:] = [decisions]


def running() -> Decisions:
    """Decisions of the program that this process runs."""
    return _running[0]


def here() -> str:
    """Place of the user's line that is running."""
    return user_source(sys._getframe(1)) or _UNKNOWN_LINE
