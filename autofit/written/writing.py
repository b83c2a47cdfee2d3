"""Writes settings into files: reads `FORMAT=FILE`, checks the files, merges, and writes all or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit.errors import StorageError, UsageError, did_you_mean
from autofit.paths import require_writable, write_atomically
from autofit.written.formats import FORMATS
from autofit.written.formats.format import Format
from autofit.written.setting import Setting
from autofit.written.told import Told, unsaid
from autofit_workers.spec.documents import read_file, resolved

_MOST_BYTES = 1 << 20  # of a file that values are merged into


@dataclass(frozen=True, slots=True)
class Wish:
    """A file that a setting is to be written into, in a format."""

    format: Format
    path: Path

    @classmethod
    def parse(cls, text: str) -> Wish:
        """Reads `FORMAT=FILE`.

        Raises:
            UsageError: there is no such format, or no file is named.
        """
        name, _, path = text.partition("=")
        if not path:
            raise UsageError(f"--write {text!r} is no FORMAT=FILE, as in {next(iter(FORMATS))}=args.json")
        return cls(format_named(name), Path(path))

    def found(self) -> str | None:
        """Text of the file that exists, checked to be of this format; None if there is none.

        Raises:
            UsageError: the file cannot be read or written, is broken, or is another tool's.
        """
        try:
            require_writable(self.path)
            if not self.path.exists():
                return None
            text = read_file(self.path, _MOST_BYTES).decode()
            self.format.file.read(text)
        except StorageError as error:
            raise UsageError(error.message) from error
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{self.path} is no text: name a file of {self.format.tool}") from error
        except ValueError as error:
            raise UsageError(f"{self.path} {error}; nothing was written") from error
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file that was written, how its tool is given it, and what it does not hold.

    Attributes:
        format: name of the format.
        use: command or call that takes the file.
        notes: sentences on what the tool has no key for, and on what else it needs.
        is_changed: whether the file has other content than before; False if nothing had to be written.
    """

    path: Path
    format: str
    use: str
    notes: tuple[str, ...]
    is_changed: bool


def format_named(name: str) -> Format:
    """Format of `--write` with a name.

    Raises:
        UsageError: there is no such format.
    """
    if name not in FORMATS:
        raise UsageError(
            f"no format is called {name!r}: there are {', '.join(FORMATS)}.{did_you_mean(name, FORMATS)}"
        )
    return FORMATS[name]


def wishes(texts: Iterable[str]) -> tuple[Wish, ...]:
    """Reads all `FORMAT=FILE`, and checks the files; called before long work whose answer is written.

    Raises:
        UsageError: a format or a file is wrong, or two name one file.
    """
    read = tuple(map(Wish.parse, texts))
    for wish in read:
        wish.found()
    _require_different(read)
    return read


def _require_different(read: Iterable[Wish]) -> None:
    places: dict[Path, Wish] = {}
    for wish in read:
        if (other := places.setdefault(resolved(wish.path), wish)) is not wish:
            raise UsageError(f"{wish.path} is named twice, as {other.format.name} and as {wish.format.name}")


def write_setting(setting: Setting, into: Iterable[Wish]) -> tuple[Written, ...]:
    """Writes a setting into files; first all are merged, so that a file that is wrong leaves none written.

    Raises:
        UsageError: a file cannot be read or written, is broken, or is another tool's.
    """
    merged = [(wish, *_merged(setting, wish)) for wish in into]
    said = {name for _, _, _, told in merged for name in told.said}
    done = []
    for wish, before, after, told in merged:
        if after != (before or ""):
            _write(wish.path, after)
        use = wish.format.use.replace("FILE", str(wish.path))
        named = tuple(note.replace("FILE", str(wish.path)) for note in told.notes)
        if left := "; ".join(unsaid(setting, said)):
            named += (f"{wish.format.tool} cannot say what is left to the script: {left}",)
        done.append(
            Written(
                path=wish.path,
                format=wish.format.name,
                use=use,
                notes=named,
                is_changed=after != (before or ""),
            )
        )
    return tuple(done)


def _merged(setting: Setting, wish: Wish) -> tuple[str | None, str, Told]:
    """Text of a file before and after, and what it is told.

    Raises:
        UsageError: the file is wrong, or the setting is of no training run, and the format is of one.
    """
    if wish.format.of_training and not setting.trains:
        raise UsageError(
            f"{wish.format.name} is about training, and the setting is not: leave {wish.path} out, or search "
            "with --mode train"
        )
    before = wish.found()
    kind = wish.format.file
    found: Mapping[str, Any] = {} if before is None else kind.read(before)
    told = wish.format.tell(setting, found)
    return before, kind.merged(before, told.values), told


def _write(path: Path, text: str) -> None:
    """Writes a file atomically; one that exists keeps its permissions."""
    mode = path.stat().st_mode if path.is_file() else None
    try:
        write_atomically(path, text)
        if mode is not None:
            path.chmod(mode & 0o777)
    except StorageError as error:
        raise UsageError(error.message) from error
