"""Compares a configuration's memory before and after: whether its peak grew, and by which lines.

Whether something grew is decided by the peaks. The lines tell where: each holder before is matched with one
after, and only what has no counterpart of its size is shown. So code that moved, or that was given another
name, shows nothing:

    1  text, module and size        code that moved
    2  line, module and size
    3  module and size              code that was rewritten, or is in another file
    4  text and size                a module of another name
    5  module and text              code whose memory changed
    6  module and line
    7  size                         code and module of other names
    8  text, then line
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from autofit.locks.lock_file import LockedHolder, LockedPeak
from autofit_workers.spec.pythons import Self, StrEnum

DEFAULT_TOLERANCE = Decimal("0.02")
PHASE = "("  # begins what stands in the place of a line that no code of the user's is behind


class Change(StrEnum):
    """Whether a configuration's peak is higher than before, by more than the tolerance."""

    GREW = "grew"
    SAME = "same"
    SHRANK = "shrank"
    NEW = "new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Predicted memory of a configuration on one side of a comparison, in bytes.

    Attributes:
        likely_bytes: likely reserved peak.
        high_bytes: high end of the reserved peak's interval.
        allocated_bytes: allocated peak, of which the lines are parts.
        parameters_bytes, activations_bytes: parts of the allocated peak.
        largest_batch: largest batch that fits the card; null where it was not asked for.
        step_seconds: likely time of a step; null where none is stated.
    """

    likely_bytes: int
    high_bytes: int
    allocated_bytes: int
    parameters_bytes: int
    activations_bytes: int
    largest_batch: int | None = None
    step_seconds: float | None = None

    @classmethod
    def of(cls, peak: LockedPeak) -> Self:
        """Memory of a locked peak, without its holders."""
        return cls(
            likely_bytes=peak.likely_bytes,
            high_bytes=peak.high_bytes,
            allocated_bytes=peak.allocated_bytes,
            parameters_bytes=peak.parameters_bytes,
            activations_bytes=peak.activations_bytes,
            largest_batch=peak.largest_batch,
            step_seconds=peak.step_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChange:
    """Memory at the peak that a source line holds in a module, before and after.

    Attributes:
        module: path of the module, in which `*` stands for the numbers of repeated blocks.
        file: file of the line, relative to the project's folder; null where no line causes it.
        line: number of the line; null likewise.
        former_line: number of the line before, if it had another one; else null.
        code: text of the line, or what it holds, as `(parameters)`.
        before_bytes, after_bytes: bytes at the allocated peak before and after.
    """

    module: str
    file: str | None
    line: int | None
    former_line: int | None
    code: str
    before_bytes: int
    after_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Bytes by which the line holds more than before; negative if it holds less."""
        return self.after_bytes - self.before_bytes

    @property
    def place(self) -> str:
        """Line as `file:number`; a phase such as `(parameters)` where there is none."""
        return self.code if self.file is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One configuration before and after, with one release of PyTorch on one card.

    Attributes:
        name: name of the configuration.
        torch: version of PyTorch.
        gpu: key of the card; `any` where none was named.
        change: `grew` if the likely peak, the high end or the allocated peak grew by more than the tolerance,
            `shrank` if none grew, and the likely peak or the high end fell by more, `same` between, `new`
            where there is nothing to compare with.
        before: memory before; null where there is none.
        after: memory after.
        lines: lines that hold more or less than before, the largest growth first.
        others_bytes: difference of all lines that are too small to be listed.
    """

    name: str
    torch: str
    gpu: str
    change: Change
    before: Memory | None
    after: Memory
    lines: tuple[LineChange, ...] = ()
    others_bytes: int = 0

    @property
    def difference_bytes(self) -> int:
        """Bytes by which the likely reserved peak is higher than before; 0 if there is nothing before."""
        return 0 if self.before is None else self.after.likely_bytes - self.before.likely_bytes

    @property
    def grown_lines(self) -> tuple[LineChange, ...]:
        """Lines that hold more than before, the largest growth first."""
        return tuple(line for line in self.lines if line.difference_bytes > 0)


def compare(name: str, before: LockedPeak | None, after: LockedPeak, tolerance: Decimal) -> Comparison:
    """Comparison of a configuration's memory before and after.

    Args:
        name: name of the configuration.
        before: peak before; None if there is none.
        after: peak after, with all its holders.
        tolerance: share of a peak by which it may grow and count as the same.
    """
    compared = Comparison(
        name=name, torch=after.torch, gpu=after.gpu, change=Change.NEW, before=None, after=Memory.of(after)
    )
    if before is None:
        return compared
    lines = line_changes(before, after)
    listed = sum(line.difference_bytes for line in lines)
    return dataclasses.replace(
        compared,
        change=_change(before, after, tolerance),
        before=Memory.of(before),
        lines=lines,
        others_bytes=after.allocated_bytes - before.allocated_bytes - listed,
    )


def _change(before: LockedPeak, after: LockedPeak, tolerance: Decimal) -> Change:
    reserved = ((before.likely_bytes, after.likely_bytes), (before.high_bytes, after.high_bytes))
    # A larger step may happen to leave fewer gaps between blocks: what is allocated shows that it grew.
    allocated = (before.allocated_bytes, after.allocated_bytes)
    if any(new > old * (1 + tolerance) for old, new in (*reserved, allocated)):
        return Change.GREW
    return Change.SHRANK if any(new < old * (1 - tolerance) for old, new in reserved) else Change.SAME


def line_changes(before: LockedPeak, after: LockedPeak) -> tuple[LineChange, ...]:
    """Lines whose memory changed between two peaks, the largest growth first.

    A peak may list its largest holders alone; a holder of the other side that would not have been listed
    either is left out.
    """
    matched = _Matching(before.holders, after.holders)
    least_before, least_after = _least_listed(before), _least_listed(after)
    changes = [_line_change(old, new) for old, new in matched.pairs if old.num_bytes != new.num_bytes]
    changes += [_line_change(None, new) for new in matched.added if new.num_bytes > least_before]
    changes += [_line_change(old, None) for old in matched.removed if old.num_bytes > least_after]
    return tuple(sorted(changes, key=lambda each: (-each.difference_bytes, each.place, each.module)))


def _least_listed(peak: LockedPeak) -> int:
    """Bytes up to which a holder may be missing from a peak's list; 0 if it lists all."""
    return min((each.num_bytes for each in peak.holders), default=0) if peak.other_bytes else 0


_Key = tuple[object, ...]


def _has_code(holder: LockedHolder) -> bool:
    return bool(holder.code)


def _is_any(_holder: LockedHolder) -> bool:
    return True


# By what holders of both sides are matched, in this order, and which of them may be.
_STAGES: tuple[tuple[Callable[[LockedHolder], _Key], Callable[[LockedHolder], bool]], ...] = (
    (lambda each: (each.code, each.module, each.num_bytes), _has_code),
    (lambda each: (each.line, each.module, each.num_bytes), _is_any),
    (lambda each: (each.module, each.num_bytes), _is_any),
    (lambda each: (each.code, each.num_bytes), _has_code),
    (lambda each: (each.module, each.code), _has_code),
    (lambda each: (each.module, each.line), _is_any),
    (lambda each: (each.num_bytes,), _is_any),
    (lambda each: (each.code,), _has_code),
    (lambda each: (each.line,), _is_any),
)


class _Matching:
    """Holders before and after in pairs that stand for the same memory.

    Attributes:
        pairs: each holder before with its counterpart after.
        removed, added: holders without a counterpart, before and after.
    """

    def __init__(self, before: Sequence[LockedHolder], after: Sequence[LockedHolder]) -> None:
        self.pairs: list[tuple[LockedHolder, LockedHolder]] = []
        self.removed, self.added = list(before), list(after)
        for key, may_match in _STAGES:
            self._match(key, may_match)

    def _match(self, key: Callable[[LockedHolder], _Key], may_match: Callable[[LockedHolder], bool]) -> None:
        waiting = collections.defaultdict[_Key, list[LockedHolder]](list)
        for holder in filter(may_match, self.added):
            waiting[key(holder)].append(holder)
        taken = [
            (holder, alike.pop(0))
            for holder in filter(may_match, self.removed)
            if (alike := waiting.get(key(holder)))
        ]
        self.pairs += taken
        self.removed = _without(self.removed, (old for old, _ in taken))
        self.added = _without(self.added, (new for _, new in taken))


def _without(holders: Iterable[LockedHolder], taken: Iterable[LockedHolder]) -> list[LockedHolder]:
    """Holders but those taken, by identity."""
    gone = {id(each) for each in taken}
    return [each for each in holders if id(each) not in gone]


def _line_change(old: LockedHolder | None, new: LockedHolder | None) -> LineChange:
    """Change of a holder that is on at least one side."""
    shown = new or old
    assert shown is not None
    file, number = _split(shown.line)
    former = None if old is None or new is None else _split(old.line)[1]
    return LineChange(
        module=shown.module,
        file=file,
        line=number,
        former_line=None if former == number else former,
        code=shown.code if file is not None else shown.line,
        before_bytes=0 if old is None else old.num_bytes,
        after_bytes=0 if new is None else new.num_bytes,
    )


def _split(line: str) -> tuple[str | None, int | None]:
    """File and number of a line; None for a phase."""
    file, colon, number = line.rpartition(":")
    return (
        (file, int(number)) if colon and number.isdecimal() and not line.startswith(PHASE) else (None, None)
    )
