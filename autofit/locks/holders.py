"""Holders of memory at a peak: which module and which source line hold how many bytes.

Modules of repeated blocks are one row (`layers.*.attn` for `layers.0.attn`, `layers.1.attn`, …), and paths
are relative to the project's folder, so that equal code has equal rows on every machine.
"""

from __future__ import annotations

import collections
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from autofit.errors import UsageError
from autofit.explain.profile import Profile, alive_at, peak_position
from autofit.locks.lock_file import LockedHolder
from autofit_workers.spec.documents import read_file
from autofit_workers.spec.trace import Allocation, Category

_PLACES = {
    Category.PARAMETER: "(parameters)",
    Category.GRADIENT: "(gradients)",
    Category.OPTIMIZER_STATE: "(optimizer state)",
    Category.ACTIVATION: "(forward pass)",
    Category.INPUT: "(batch)",
    Category.WORKSPACE: "(workspace)",
    Category.OTHER: "(temporaries)",
}
# Where a free block is a little larger than a request, the request gets all of it. That depends on what was
# freed before, so it would make lines differ that are the same.
_UNUSED = "(unused ends of blocks)"
_UNIT_BYTES = 512  # `kMinBlockSize` of c10/core/CachingDeviceAllocator.h: requests are rounded up to it
_NUM_SUFFIXES = {Category.PARAMETER: 1, Category.OPTIMIZER_STATE: 2}  # of `conv1.weight.exp_avg`
_MOST_CODE = 100  # characters of a line's text
_MOST_SOURCE_BYTES = 4 << 20
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def holders_at_peak(
    profile: Profile, folder: Path, *, checkout: Path | None = None
) -> tuple[LockedHolder, ...]:
    """All holders of memory at a profile's allocated peak, the largest first; they add up to that peak.

    A line holds what it asked for, rounded to 512 bytes; what blocks have beyond that is a holder of its own.

    Args:
        profile: profile of a step.
        folder: absolute folder of the project, to which paths are relative.
        checkout: folder whose code must not be in the profile, as another revision is meant; None for none.

    Raises:
        UsageError: code of that folder is.
    """
    sizes = collections.Counter[tuple[str, str]]()
    for number in alive_at(profile, peak_position(profile)):
        allocation = profile.trace.allocations[number]
        block_bytes = profile.block_bytes[number]
        num_bytes = min(block_bytes, -(-profile.requested_bytes[number] // _UNIT_BYTES) * _UNIT_BYTES)
        sizes[_module_of(allocation), _source_of(allocation)] += num_bytes
        sizes["", _UNUSED] += block_bytes - num_bytes
    lines = Lines(folder, checkout)
    merged = collections.Counter[tuple[str, str, str]]()
    for (module, source), num_bytes in sizes.items():
        merged[module, lines.place(source), lines.code(source)] += num_bytes
    holders = (
        LockedHolder(module=module, line=line, code=code, num_bytes=num_bytes)
        for (module, line, code), num_bytes in merged.items()
        if num_bytes
    )
    return tuple(sorted(holders, key=lambda each: (-each.num_bytes, each.module, each.line, each.code)))


def _module_of(allocation: Allocation) -> str:
    """Path of an allocation's module, with `*` for numbers; of a parameter or its state, its owner's."""
    module = allocation.module
    if not module and allocation.name and allocation.category in _NUM_SUFFIXES:
        module = ".".join(allocation.name.split(".")[: -_NUM_SUFFIXES[allocation.category]])
    return _NUMBER.sub("*", module)


def _source_of(allocation: Allocation) -> str:
    """Line of an allocation, `file:line:function`, or in its place what it holds, as `(parameters)`."""
    source = allocation.source
    is_of_a_file = source and not source.startswith("<") and source.count(":") > 1
    return source if is_of_a_file else _PLACES[allocation.category]


class Lines:
    """Source lines as a lock names them: relative to the project, with their text.

    Args:
        folder: absolute folder of the project.
        checkout: folder whose code must not be named; None for none.
    """

    def __init__(self, folder: Path, checkout: Path | None = None) -> None:
        self._folder, self._checkout = folder, checkout
        self._libraries = _library_folders()
        self._texts: dict[str, Sequence[str]] = {}

    def place(self, source: str) -> str:
        """Line as `file:number`, made from `file:number:function`; a phase such as `(batch)` stays."""
        if source.startswith("("):
            return source
        file, number, _function = source.rsplit(":", 2)
        return f"{self._relative(Path(file))}:{number}"

    def _relative(self, file: Path) -> str:
        if file.is_relative_to(self._folder):
            return file.relative_to(self._folder).as_posix()
        if self._checkout is not None and file.is_relative_to(self._checkout) and not is_of_libraries(file):
            raise UsageError(
                f"{file.relative_to(self._checkout)} was imported from the checkout, not from the revision: "
                "name the model by its file, as in --model train.py:workload, or add its folder to PYTHONPATH"
            )
        for folder in self._libraries:
            if file.is_relative_to(folder):
                return file.relative_to(folder).as_posix()
        return file.name if file.is_absolute() else file.as_posix()

    def code(self, source: str) -> str:
        """Text of a line without its indentation; empty if its file cannot be read, or it is a phase."""
        if source.startswith("("):
            return ""
        file, number, _function = source.rsplit(":", 2)
        lines = self._texts.get(file)
        if lines is None:
            lines = self._texts[file] = _lines_of(file)
        index = int(number) - 1 if number.isdecimal() else -1
        text = lines[index].strip() if 0 <= index < len(lines) else ""
        return text if len(text) <= _MOST_CODE else f"{text[: _MOST_CODE - 1]}…"


def is_of_libraries(path: Path) -> bool:
    """Whether a path is one of installed libraries, such as those of a virtual environment in a checkout."""
    return bool({"site-packages", "dist-packages"} & set(path.parts)) or path.is_relative_to(sys.prefix)


def _library_folders() -> list[Path]:
    """Folders that Python imports from, the innermost first, for lines of libraries."""
    folders = {Path(folder) for folder in sys.path if folder}
    return sorted(folders, key=lambda folder: (-len(folder.parts), folder))


def _lines_of(file: str) -> Sequence[str]:
    try:
        return read_file(file, _MOST_SOURCE_BYTES).decode(errors="replace").splitlines()
    except OSError:  # compiled or generated code has no file: its line is shown without a text
        return ()
