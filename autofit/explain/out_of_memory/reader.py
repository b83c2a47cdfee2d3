"""Reads the out-of-memory errors in a log: sizes, device, rank, other processes, and the line that asked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass

from autofit.explain.out_of_memory.wordings import DEVICE, OTHERS, PROCESS, SIZES, WORDINGS, Kind, Wording

MOST_ERRORS = 50  # different ones that are told of one log, the last
_MOST_BYTES = 1 << 62
_MOST_READ = 10_000  # errors of a log, the last
_WINDOW = 4000  # characters of a message, from its marker on
_TRACEBACK = 40_000  # characters of a traceback, back from the marker
_SHOWN = 400
_MOST_DIGITS = 9
_NO_LIMIT = "17179869184"  # GiB: 2**64 bytes, as cudaMallocAsync writes that nothing is limited
_NEAR = 800  # characters in which the driver's error is named twice
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}  # MPS writes GB for 2**30 bytes
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)")
# What launchers write in front of a line: torchrun's rank, Ray's process, a container's time.
_PREFIX = re.compile(
    r"^(?:(?:\[(?:rank|default)?\d+\](?::| ?\|)?|\(\w+ pid=\d+[^)\n]*\)|\d{4}-\d\d-\d\dT[\d:.]+Z?) *)+",
    re.MULTILINE,
)
_RANK = re.compile(r"^ *\[(?:rank|default)?(\d+)\]:", re.MULTILINE)
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in ([^\s,]+)')
_OF_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d[\d.]*[/\\]|^<")
_NEW_TRACEBACK = "Traceback (most recent call last)"
_MARKERS = tuple(
    re.compile(each.marker.replace(": ", r":\s+").replace(" out of", r"\s+out\s+of")) for each in WORDINGS
)


class UnreadableErrorError(ValueError):
    """A text has no out-of-memory error that can be read; the message is a predicate, to follow its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherProcess:
    """Process besides the failing one that held memory of the card.

    Attributes:
        pid: number of the process.
        num_bytes: bytes that it held.
    """

    pid: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFailure:
    """Out-of-memory error as a log states it; a size that it does not state is None.

    Attributes:
        who: who ran out of memory, in words.
        kind: `allocator` (with numbers), `driver`, `library`, `communicator`, or `host` (not the card).
        message: the error's text, shortened.
        device: number of the card; None if it is not stated.
        rank: rank that failed; None if the log does not say.
        requested_bytes: bytes that were asked for.
        total_bytes: the card's memory.
        free_bytes: bytes of the card that no process held.
        allowed_bytes: bytes that the process was allowed to take, by `set_per_process_memory_fraction`.
        process_bytes: bytes of the card that this process held in all.
        allocated_bytes: of these, bytes of live blocks.
        unallocated_bytes: of these, bytes that PyTorch had reserved and no block used.
        private_bytes: of the live blocks, bytes in pools of CUDA graphs.
        processes: other processes that the error names.
        line: the user's line that asked, as `train.py:12:step`; empty if the log has no traceback.
        count: number of errors with these words and of this rank in the log.
    """

    who: str
    kind: Kind
    message: str
    device: int | None = None
    rank: int | None = None
    requested_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allowed_bytes: int | None = None
    process_bytes: int | None = None
    allocated_bytes: int | None = None
    unallocated_bytes: int | None = None
    private_bytes: int | None = None
    processes: tuple[OtherProcess, ...] = ()
    line: str = ""
    count: int = 1

    @property
    def reserved_bytes(self) -> int | None:
        """Bytes that PyTorch had reserved; None if the error does not say."""
        if self.allocated_bytes is None or self.unallocated_bytes is None:
            return None
        return self.allocated_bytes + self.unallocated_bytes


def names_failure(data: bytes) -> bool:
    """Whether a text has an out-of-memory error of one of the known forms."""
    text = data.decode("utf-8", "replace")
    return any(marker.search(text) for marker in _MARKERS)


def read_failures(data: bytes) -> tuple[MemoryFailure, ...]:
    """Out-of-memory errors of a log, in its order; equal ones of one rank are one.

    Raises:
        UnreadableErrorError: it has none, is binary, or states sizes that no memory has.
    """
    text = _text(data)
    failures: dict[tuple[str, int | None], MemoryFailure] = {}
    for rank, lines in _of_ranks(text):
        _read(lines, rank, failures)
    if not failures:
        raise UnreadableErrorError(_why_none(text))
    return tuple(failures.values())[-MOST_ERRORS:]


def _of_ranks(text: str) -> Iterator[tuple[int | None, str]]:
    """Yields the lines of each rank of a log, in which ranks write in turn, without their prefixes.

    The rank is None for lines that name none.
    """
    if not _RANK.search(text):
        yield None, _PREFIX.sub("", text)
        return
    found: dict[int | None, list[str]] = {}
    for line in text.splitlines():
        named = _RANK.match(line)
        found.setdefault(int(named[1][:_MOST_DIGITS]) if named else None, []).append(_PREFIX.sub("", line))
    for rank, lines in found.items():
        yield rank, "\n".join(lines)


def _read(text: str, rank: int | None, failures: dict[tuple[str, int | None], MemoryFailure]) -> None:
    """Adds the errors of one rank's lines to those that were found, in their order."""
    found = sorted(
        (match.start(), number, match)
        for number, marker in enumerate(_MARKERS)
        for match in marker.finditer(text)
    )[-_MOST_READ:]
    starts = [start for start, _, _ in found] + [len(text)]
    last: tuple[int, str] = (-_NEAR, "")
    for index, (start, number, match) in enumerate(found):
        wording = WORDINGS[number]
        if wording.kind == "driver" and last[1] == "driver" and start - last[0] < _NEAR:
            continue  # the driver's name of an error stands beside its words
        last = start, wording.kind
        failure = _failure(text, match, wording, starts[index + 1], rank)
        key = failure.message, failure.rank
        if earlier := failures.pop(key, None):
            failure = dataclasses.replace(failure, count=earlier.count + 1)
        failures[key] = failure


def main_failure(failures: tuple[MemoryFailure, ...]) -> MemoryFailure:
    """Error of a log that says most of why it ended: the last with sizes, else the last."""
    sized = [each for each in failures if each.allocated_bytes is not None]
    sized = sized or [each for each in failures if each.requested_bytes is not None]
    return (sized or failures)[-1]


def _text(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # what PowerShell writes
        return _ANSI.sub("", data.decode("utf-16", "replace"))
    if b"\0" in data:
        raise UnreadableErrorError("is binary, and no text of an error")
    return _ANSI.sub("", data.decode("utf-8", "replace"))


def _why_none(text: str) -> str:
    for name, marker in OTHERS:
        if re.search(marker, text):
            return f"has an out-of-memory error of {name}; errors of PyTorch alone are read"
    return "has no out-of-memory error of PyTorch"


def _failure(text: str, match: re.Match[str], wording: Wording, end: int, rank: int | None) -> MemoryFailure:
    """Error that a marker begins.

    Args:
        end: where the next error begins.
        rank: rank whose lines the text is.
    """
    start = match.start()
    window = text[start : min(end, start + _WINDOW)]
    window = window.split(_NEW_TRACEBACK)[0]
    said = " ".join(window.split())
    sizes = {name: _size(said, patterns, name) for name, patterns in SIZES.items()}
    named = next((each for each in match.groups() if each), "CUDNN").upper()
    device = DEVICE.search(said)
    allocated, reserved = sizes["allocated"], sizes["reserved"]
    if sizes["unallocated"] is None and reserved is not None and allocated is not None:
        sizes["unallocated"] = max(0, reserved - allocated)
    if sizes["process"] is None and sizes["other_allocations"] is not None and allocated is not None:
        sizes["process"] = allocated + sizes["other_allocations"]
    line_start = text.rfind("\n", 0, start) + 1
    return MemoryFailure(
        who=wording.name.format(named),
        kind=wording.kind,
        message=_shortened(text[line_start:start], said),
        device=None if device is None else int(device[1]),
        rank=rank,
        processes=tuple(
            OtherProcess(pid=int(pid), num_bytes=_bytes(*size)) for pid, *size in PROCESS.findall(said)
        ),
        line=_line(text[max(0, start - _TRACEBACK) : start]),
        requested_bytes=sizes["requested"],
        total_bytes=sizes["total"],
        free_bytes=sizes["free"],
        allowed_bytes=sizes["allowed"],
        process_bytes=sizes["process"],
        allocated_bytes=allocated,
        unallocated_bytes=sizes["unallocated"],
        private_bytes=sizes["private"],
    )


def _size(said: str, patterns: tuple[str, ...], name: str) -> int | None:
    for pattern in patterns:
        if found := re.search(pattern, said):
            if name == "allowed" and found[1].startswith(_NO_LIMIT):
                return None
            return _bytes(found[1], found[2])
    return None


def _bytes(number: str, unit: str) -> int:
    """Bytes that a number with its unit states; raises `UnreadableErrorError` if no memory has so many."""
    value = float(number.replace(",", "")) * _UNITS.get(unit[0].lower(), 1)
    if not 0 <= value < _MOST_BYTES:
        raise UnreadableErrorError(f"states a size that no memory has, {number[:20]} {unit}: it is damaged")
    return round(value)


def _shortened(before: str, said: str) -> str:
    """Text of an error, with the name of its class in front, without general advice at its end."""
    name = re.search(r"([\w.]*(?:Error|WARN)):? *$", before)
    whole = f"{name[1]}: {said}" if name else said
    whole = re.split(r" If reserved|  ?See documentation| Compile with| For debugging", whole)[0]
    return whole if len(whole) <= _SHOWN else f"{whole[:_SHOWN]}…"


def _line(before: str) -> str:
    """Last line of a traceback that is no library's, as `train.py:12:step`; empty if there is none."""
    lines = before[max(0, before.rfind(_NEW_TRACEBACK)) :]
    frames = [frame for frame in _FRAME.findall(lines) if not _OF_LIBRARY.search(frame[0])]
    if not frames:
        return ""
    path, number, function = frames[-1]
    name = re.split(r"[/\\]", path)[-1]
    return f"{name}:{number}:{function}"
