"""Locks that reviews are answered from, read again when their files change.

In a cluster they are keys of a ConfigMap, which Kubernetes mounts as files and replaces while the server
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autofit.errors import did_you_mean
from autofit.locks.lock_file import LockedConfiguration, LockError, read_lock
from autofit.paths import FileStamp, stamp_of

_ENDING = ".toml"
_MOST_SHOWN = 100
_MOST_COMPARED = 20_000  # characters


class UnknownConfigurationError(Exception):
    """No lock has a configuration of a name, or several have; the message says what to do."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Configurations of a file, and its stamp when it was read."""

    stamp: FileStamp
    configurations: Mapping[str, LockedConfiguration] = field(default_factory=dict)


class KeptLocks:
    """Locks in files and folders.

    A file that can no longer be read, or that holds no lock, keeps what it had: whoever replaces it by a
    broken one does not change what is admitted. What is wrong is logged once.

    Args:
        paths: lock files, and folders whose `.toml` files are locks.
        log: writes a sentence for the operator.
    """

    def __init__(self, paths: Sequence[Path], *, log: Callable[[str], None]) -> None:
        self._paths = tuple(paths)
        self._log = log
        self._files: dict[Path, _Read] = {}
        self._failures: dict[Path, str] = {}

    @property
    def failures(self) -> Mapping[Path, str]:
        """Sentences on files that cannot be read, by file."""
        return self._failures

    @property
    def num_configurations(self) -> int:
        """Number of configurations in all locks."""
        return sum(len(file.configurations) for file in self._files.values())

    def refresh(self) -> None:
        """Reads the files that have changed, and forgets those that are gone."""
        found, failures = {}, {}
        for path in self._all_files():
            try:
                found[path] = self._read(path)
            except (OSError, LockError) as error:
                failures[path] = str(error)
                if path in self._files:
                    found[path] = self._files[path]
        for sentence in failures.values():
            if sentence not in self._failures.values():
                self._log(sentence)
        # Readers in other threads see all of the former files, or all of the new ones.
        self._files, self._failures = found, failures

    def _all_files(self) -> Iterator[Path]:
        for path in self._paths:
            if path.is_dir():
                yield from sorted(each for each in path.iterdir() if each.suffix == _ENDING)
            else:
                yield path

    def _read(self, path: Path) -> _Read:
        stamp = stamp_of(path)
        known = self._files.get(path)
        if known is not None and known.stamp == stamp and path not in self._failures:
            return known
        return _Read(stamp, read_lock(path).configurations)

    def configuration(self, name: str) -> LockedConfiguration:
        """Configuration of a name, or of `FILE:NAME` where several files have that name.

        Raises:
            UnknownConfigurationError: there is none, or there are several.
        """
        files = self._files
        found = {
            path.name: file.configurations[name]
            for path, file in files.items()
            if name in file.configurations
        }
        if not found:
            in_file, _, own = name.partition(":")
            for path, file in files.items():
                if path.name == in_file and own in file.configurations:
                    return file.configurations[own]
        if len(found) > 1:
            first = min(found)
            raise UnknownConfigurationError(
                f"{name} is in {' and '.join(sorted(found))}: write one of them before it, as {first}:{name}"
            )
        if not found:
            names = [each for file in files.values() for each in file.configurations]
            # Looking for similar names takes long for long ones and among many; anyone may send one.
            near = did_you_mean(name, names) if len(name) * len(names) <= _MOST_COMPARED else ""
            raise UnknownConfigurationError(
                f"no lock has a configuration {name[:_MOST_SHOWN]!r}.{near} `autofit lock` writes it"
            )
        return next(iter(found.values()))
