"""Records branches that a program takes on made-up values, and sizes that were assumed.

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
    """Branches that one program took on made-up values, and the sizes assumed for it.

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
        """Note for the user on how the first branches on made-up values were taken."""
        ways = [
            f"{site} was taken as {way}"
            for site, way in self.taken.items()
            if site != _UNKNOWN_LINE and _OF_DEEPSPEED not in site
        ]
        more = f", and {len(ways) - _NUM_SHOWN} more" if len(ways) > _NUM_SHOWN else ""
        said = f"branches on values that are not known: {'; '.join(ways[:_NUM_SHOWN])}{more}"
        return (said,) if ways else ()

    def decide(self, likely: bool) -> bool:
        """Truth value taken for the branch at the user's running line, which is noted."""
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
        """Size of a selection by known values.

        It is `largest` if sizes differ by batch and unknown masks select all.
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
        """Assumed number of elements that are selected from `largest`."""
        return self.assume(what, round(self.share * largest), largest)


_running: list[Decisions] = [Decisions()]


def begin(decisions: Decisions) -> None:
    """Makes `decisions` the current program's in this process."""
    _running[:] = [decisions]


def running() -> Decisions:
    """`Decisions` of the current program."""
    return _running[0]


def here() -> str:
    """Running line of the user's code as `file:line:function`."""
    return user_source(sys._getframe(1)) or _UNKNOWN_LINE
