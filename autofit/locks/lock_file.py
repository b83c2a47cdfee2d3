"""Lock of memory: the file `memory.lock.toml`, of schema `autofit.lock/1`.

    schema = "autofit.lock/1"

    [configurations.davenet-64]
    arguments = ["--model", "davenet", "--batch-size", "64", "--gpu", "rtx-3090"]

    [[configurations.davenet-64.peaks]]          one for each release of PyTorch and card
    torch = "2.13.0"
    gpu = "rtx-3090"
    likely_bytes = 1234567890
    …
    holders = [
        { module = "features", line = "model.py:12", code = "x = self.conv(x)", bytes = 123456 },
        …
    ]

Equal locks are equal bytes: names, releases and cards are in order, and nothing depends on the day or on the
time that anything took. Lines of `holders` are what `autofit check --lock` shows a growth by; whether
something grew is decided by the peaks alone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit.errors import UsageError, did_you_mean
from autofit.paths import write_atomically
from autofit_workers.spec.documents import DocumentError, parse_toml, read_file
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.versions import release_of

LOCK_SCHEMA = "autofit.lock/1"
LOCK_NAME = "memory.lock.toml"
ANY_CARD = "any"  # in the place of a card, where none was named
UPDATE_COMMAND = "autofit lock"

_HEADING = "Written by `autofit lock`. Compare with: autofit check --lock"
_MOST_NAME = 200
_MOST_BYTES = 1 << 50
_MOST_FILE_BYTES = 4 << 20  # thousands of peaks, which are parsed within a second or two
_SCHEMA_FAMILY = "autofit.lock/"


class LockError(UsageError):
    """A lock cannot be read, is damaged or of another version, or lacks an entry that is asked for."""

    kind = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedHolder:
    """Memory at a locked peak that one source line holds in one module.

    Attributes:
        module: path of the `nn.Module`, in which `*` stands for the numbers of repeated blocks, as in
            `layers.*.attn`; empty outside any.
        line: the user's line, `file:number`, or the phase such as `(optimizer)` where no line causes it.
        code: text of that line, by which it is found again after it moved; may be empty.
        num_bytes: bytes of all its blocks together; `bytes` in the file.
    """

    module: str
    line: str
    num_bytes: int
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPeak:
    """Predicted memory of a configuration with one release of PyTorch on one card.

    Attributes:
        torch: version of PyTorch, such as `2.13.0`, without the name of a build.
        gpu: key of the card in the catalogue; `any` where none was named.
        likely_bytes, high_bytes: reserved peak: the likely one, and the high end of its interval.
        allocated_bytes: allocated peak, which is the sum of all holders and `other_bytes`.
        parameters_bytes, activations_bytes: parts of the allocated peak.
        largest_batch: largest batch that fits the card; None where it was not asked for.
        step_seconds: likely time of a step; None where none is stated.
        holders: largest holders at the allocated peak, the largest first.
        other_bytes: what smaller holders hold together.
    """

    torch: str
    gpu: str
    likely_bytes: int
    high_bytes: int
    allocated_bytes: int
    parameters_bytes: int
    activations_bytes: int
    largest_batch: int | None = None
    step_seconds: float | None = None
    other_bytes: int = 0
    holders: tuple[LockedHolder, ...] = ()

    @property
    def place(self) -> tuple[str, str]:
        """Release of PyTorch and card, of which a configuration has one peak at most."""
        return release_of(self.torch), self.gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedConfiguration:
    """Configuration of a lock: the options of `autofit estimate` that describe it, and its peaks.

    Attributes:
        name: its name in the file.
        arguments: options of `autofit estimate`; empty where something else, such as a test, describes it.
        peaks: a peak for each version of PyTorch and card, in the order of `place`.
    """

    name: str
    arguments: tuple[str, ...] = ()
    peaks: tuple[LockedPeak, ...] = ()

    def peak(self, torch: str, gpu: str) -> LockedPeak | None:
        """Peak of a release of PyTorch and a card; None if it is not locked.

        Args:
            torch: a version of that release: 2.13.1 finds what was locked with 2.13.0.
            gpu: key of the card, or `any`.
        """
        place = release_of(torch), gpu
        return next((peak for peak in self.peaks if peak.place == place), None)

    def with_peak(self, peak: LockedPeak) -> LockedConfiguration:
        """Configuration with a peak, in the place of an earlier one of the same release and card."""
        others = tuple(each for each in self.peaks if each.place != peak.place)
        return dataclasses.replace(self, peaks=(*others, peak))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Content of a lock.

    Attributes:
        configurations: the locked configurations by name.
    """

    configurations: Mapping[str, LockedConfiguration] = dataclasses.field(default_factory=dict)

    def configuration(self, name: str, where: str | Path = LOCK_NAME) -> LockedConfiguration:
        """Configuration of a name.

        Args:
            name: name of the configuration.
            where: file of the lock, for the message.

        Raises:
            LockError: there is none of that name.
        """
        found = self.configurations.get(name)
        if found is None:
            raise LockError(
                f"{where} has no configuration {name!r}.{did_you_mean(name, self.configurations)} "
                f"`{UPDATE_COMMAND}` writes what is configured"
            )
        return found

    def with_configuration(self, configuration: LockedConfiguration) -> Lock:
        """Lock with a configuration, in the place of an earlier one of its name."""
        return Lock(configurations={**self.configurations, configuration.name: configuration})

    def without(self, names: Iterable[str]) -> Lock:
        """Lock without the configurations of some names."""
        left_out = set(names)
        kept = {name: each for name, each in self.configurations.items() if name not in left_out}
        return Lock(configurations=kept)


def require_name(name: str) -> str:
    """Checks the name of a configuration, and returns it.

    Raises:
        UsageError: it is empty, too long, or has characters that no terminal shows.
    """
    if not name.strip() or len(name) > _MOST_NAME or not name.isprintable():
        raise UsageError(
            f"{name[:40]!r} cannot name a configuration: give 1 to {_MOST_NAME} printable characters"
        )
    return name


def read_lock(path: Path) -> Lock:
    """Reads a lock from a file.

    Raises:
        LockError: the file is missing, cannot be read, is damaged, or is of another version; the message
            names it.
    """
    try:
        data = read_file(path)
    except FileNotFoundError as error:
        raise LockError(f"there is no lock {path}: write it with `{UPDATE_COMMAND}`") from error
    except OSError as error:
        raise LockError(f"cannot read {path}: {error.strerror or error}; name a lock with --file") from error
    return parse_lock(data, path)


def read_lock_if_any(path: Path) -> Lock:
    """Lock of a file, empty if there is no file of that name; raises as `read_lock`."""
    return read_lock(path) if path.exists() else Lock()


def parse_lock(data: str | bytes, where: str | Path = LOCK_NAME) -> Lock:
    """Lock from the text of its file.

    Args:
        data: the text.
        where: file of the lock, for messages.

    Raises:
        LockError: the text is no lock, is damaged, or is of another version.
    """
    again = f"restore it from version control, or delete it and write it anew with `{UPDATE_COMMAND}`"
    try:
        document = parse_toml(data, _MOST_FILE_BYTES)
    except UnicodeDecodeError as error:
        raise LockError(f"{where} is not UTF-8 text: {again}") from error
    except DocumentError as error:
        raise LockError(f"{where} {error}: {again}") from error
    schema = document.get("schema")
    if schema != LOCK_SCHEMA:
        raise LockError(_other_schema(schema, where))
    try:
        return _lock_of(document)
    except (ValueError, UsageError) as error:
        raise LockError(f"{where} is damaged ({error}): {again}") from error


def _other_schema(schema: object, where: str | Path) -> str:
    """Sentence on a document that is no lock, or a lock of another version."""
    if isinstance(schema, str) and re.fullmatch(re.escape(_SCHEMA_FAMILY) + r"\d{1,6}", schema):
        return (
            f"{where} is of schema {schema}, and this autofit reads {LOCK_SCHEMA}: install the autofit that "
            f"wrote it, or write it again with `{UPDATE_COMMAND}`"
        )
    return (
        f'{where} is no lock, as it does not say schema = "{LOCK_SCHEMA}": name a file that '
        f"`{UPDATE_COMMAND}` wrote"
    )


def _lock_of(document: Mapping[str, Any]) -> Lock:
    """Lock from its parsed file; raises `ValueError` or `UsageError` if it is incomplete or impossible."""
    tables = from_plain(dict[str, Any], document.get("configurations", {}))
    made = (_configuration_of(name, table) for name, table in tables.items())
    return Lock(configurations={each.name: each for each in made})


def _configuration_of(name: str, plain: object) -> LockedConfiguration:
    try:
        table = from_plain(dict[str, Any], plain)
        made = LockedConfiguration(
            name=require_name(name),
            arguments=from_plain(tuple[str, ...], table.get("arguments", [])),
            peaks=_ordered(map(_peak_of, from_plain(tuple[dict[str, Any], ...], table.get("peaks", [])))),
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    places = [peak.place for peak in made.peaks]
    if twice := next((place for place in places if places.count(place) > 1), None):
        raise ValueError(f"{name} has two peaks for PyTorch {twice[0]} on {twice[1]}")
    return made


def _peak_of(table: Mapping[str, Any]) -> LockedPeak:
    holders = from_plain(tuple[dict[str, Any], ...], table.get("holders", []))
    renamed = [{**each, "num_bytes": each.get("bytes")} for each in holders]
    peak = from_plain(LockedPeak, {**table, "holders": renamed})
    peak_sizes = (peak.likely_bytes, peak.high_bytes, peak.allocated_bytes)
    part_sizes = (peak.parameters_bytes, peak.activations_bytes, peak.other_bytes)
    sizes = (*peak_sizes, *part_sizes, *(each.num_bytes for each in peak.holders))
    if not all(0 <= size <= _MOST_BYTES for size in sizes):
        raise ValueError("a size is negative, or larger than any memory")
    if not (peak.torch.isprintable() and peak.gpu.isprintable()):
        raise ValueError("a release or a card has characters that no terminal shows")
    return peak


def _ordered(peaks: Iterable[LockedPeak]) -> tuple[LockedPeak, ...]:
    return tuple(sorted(peaks, key=lambda peak: (_version_key(peak.torch), peak.gpu)))


def _version_key(version: str) -> tuple[tuple[int, str], ...]:
    """Key by which versions are ordered by their numbers: 2.6 before 2.13."""
    return tuple((int(part) if part.isdecimal() else 0, part) for part in version.split("."))


def write_lock(path: Path, lock: Lock) -> None:
    """Writes a lock to a file, atomically: the file has the former or the new lock, never a part of one.

    Raises:
        StorageError: the file cannot be written.
    """
    write_atomically(path, lock_text(lock))


def lock_text(lock: Lock) -> str:
    """Text of a lock's file; equal locks have equal texts, in whatever order they were put together."""
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment(_HEADING))
    document["schema"] = LOCK_SCHEMA
    tables = tomlkit.table(is_super_table=True)
    for name in sorted(lock.configurations):
        tables.append(tomlkit.key(name), _table_of(lock.configurations[name]))
    if lock.configurations:
        document.add(tomlkit.nl())
        document["configurations"] = tables
    return tomlkit.dumps(document)


def _table_of(configuration: LockedConfiguration) -> Any:
    import tomlkit

    table = tomlkit.table()
    if configuration.arguments:
        table["arguments"] = list(configuration.arguments)
    peaks = tomlkit.aot()
    for peak in _ordered(configuration.peaks):
        entry = tomlkit.table()
        for each in dataclasses.fields(LockedPeak):
            value = getattr(peak, each.name)
            if each.name != "holders" and value is not None:
                entry[each.name] = value
        if peak.holders:
            entry["holders"] = _holders_of(peak.holders)
        peaks.append(entry)
    if configuration.peaks:
        table["peaks"] = peaks
    return table


def _holders_of(holders: Sequence[LockedHolder]) -> Any:
    """Array of holders, one a line, so that a diff of the file shows which line holds more."""
    import tomlkit

    array = tomlkit.array()
    for holder in holders:
        entry = tomlkit.inline_table()
        entry["module"] = holder.module
        entry["line"] = holder.line
        if holder.code:
            entry["code"] = holder.code
        entry["bytes"] = holder.num_bytes
        array.append(entry)
    return array.multiline(True)
