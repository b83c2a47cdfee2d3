"""Storage of traces on this machine, so that a second question needs no PyTorch.

    spec ─ digest with surroundings ─▶ kept/<digest> ─▶ outcome without its trace ─▶ traces/<digest>.json.gz
                                          │ whole, and the user's files are unchanged: the outcome
                                          ├ else, between batch sizes whose traces agree: theirs at this size
                                          └ else: a trial, whose outcome is kept

Whatever decides a trace is in the digest, or is one of the user's files that the trace's trial used, whose
content is compared. Of files that a C library reads, such as a tokenizer's, nobody is told: so the files that
lie beside used ones, and in the current folder, must have their size and time of change too. Files that are
missing, damaged or unreadable cost a trial, and change no answer.

Traces agree if every number in them, such as a dimension or a position, is a line in the batch size (bytes: a
product of lines), and all else is equal. Then the trace of a size between them is known in everything that
it says, its digest included.

Also kept is up to which batch size a trace was seen to agree with the curve through smaller ones.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import itertools
import json
import logging
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from autofit import paths, surroundings
from autofit.dispatch.base import Runner
from autofit.errors import StorageError
from autofit.identity import fingerprint, versions
from autofit.predict.tracing import known_models
from autofit_workers.process.sources import content_digest
from autofit_workers.replay.curve.lines.polynomials import NotPolynomialError
from autofit_workers.replay.curve.lines.trace_lines import TraceLines
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES
from autofit_workers.spec.documents import parse_json
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict

# Traces of one model take some 100 kB.
_MOST_BYTES = 512 * 1024**2
_MOST_SECONDS = 90 * 24 * 3600.0
_MOST_SIZES = 64  # batch sizes that are noted for a setting
_MOST_BESIDE = 1000  # files in a folder whose times of change are looked at
# Time before a trial in which a process may have begun that read a file before it changed.
_SLACK_SECONDS = 3.0

# Surroundings in which this process ran its first trial, by the variables that are kept.
_at_start: dict[tuple[str, ...], list[object] | None] = {}

_log = logging.getLogger(__name__)


class KeptTraces:
    """Runs trials that make traces, each once, until something that decides its trace changes.

    Also knows up to which batch sizes traces agreed with curves through the traces of small sizes. Between
    sizes that agree, a step is taken to allocate alike. So a batch size needs no trace of its own if a larger
    one agreed: a question about a smaller budget needs none, one about a larger budget does.

    Args:
        run: runs a trial, one prediction in a process of its own.
        start: starts the processes that trials run in; called before the first trial, and never without one.
        fresh: whether to run all trials anew, and to keep their outcomes in place of earlier ones.
    """

    def __init__(self, run: Runner, start: Callable[[], None], *, fresh: bool = False) -> None:
        self._run = run
        self._start = start
        self._fresh = fresh
        self._is_started = False
        self._between: dict[str, TrialOutcome | None] = {}  # found by `may_hold`, by name

    def run(self, spec: TrialSpec) -> TrialOutcome:
        """Outcome of a trial, known from earlier trials or else run now; a `Runner`."""
        name = _name(spec)
        found = None if self._fresh or name is None else _find(name) or self._found_between(name, spec)
        if found is not None:
            return found
        if spec.workload.script is None and not self._is_started:  # a script gets processes of its own
            self._is_started = True
            with suppress(OSError):  # the trial reports it
                self._start()
        # The processes that predict have the variables and the folder of this process's first trial.
        kept, begin_seconds = spec.setup.kept_variables, time.time()
        found_here = _surroundings_or_none(kept)
        is_as_at_start = _at_start.setdefault(kept, found_here) == found_here
        outcome = self._run(spec)
        digest = None if outcome.trace_json is None else _keep_trace(outcome.trace_json)
        # What changed while the trial ran may have changed before it looked, or after.
        if name is not None and name == _name(spec) and is_as_at_start:
            _keep(name, spec, outcome, digest, since_seconds=begin_seconds - _SLACK_SECONDS)
        return outcome

    def may_hold(self, spec: TrialSpec) -> bool:
        """Whether a trial's outcome is known, unless the user's files have changed since it was kept."""
        name = None if self._fresh else _name(spec)
        if name is None:
            return False
        if not _exists(name):
            self._between[name] = _between(spec)
            return self._between[name] is not None
        return True

    def _found_between(self, name: str, spec: TrialSpec) -> TrialOutcome | None:
        return self._between.pop(name) if name in self._between else _between(spec)

    def is_proved(self, spec: TrialSpec) -> bool:
        """Whether the curve of a trial's setting agreed with a trace at its batch size, or a larger one."""
        name = None if self._fresh else _name_of_proof(spec)
        body = None if name is None else _read(name)
        if body is None:
            return False
        try:
            proof = from_plain(_Proof, parse_json(body))
        except ValueError as error:
            _log.info("a kept proof cannot be read: %s", error)
            return False
        is_covered = spec.batch_size <= proof.largest_batch
        return is_covered and _are_unchanged(proof.sources) and _are_as_before(proof.beside)

    def prove(self, spec: TrialSpec, sources: Mapping[str, str]) -> None:
        """Keeps that the curve of a trial's setting agrees with a trace at its batch size.

        Args:
            sources: digest of each of the user's files that the traces used, by path.
        """
        name = _name_of_proof(spec)
        if name is None or self.is_proved(spec):
            return
        beside = _beside(spec, sources, since_seconds=time.time() - _SLACK_SECONDS)
        if beside is not None:
            _write(name, json.dumps(dataclasses.asdict(_Proof(spec.batch_size, dict(sources), beside))))


@dataclasses.dataclass(frozen=True, slots=True)
class _Proof:
    largest_batch: int
    sources: dict[str, str]
    beside: dict[str, dict[str, tuple[int, int]]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """Content of a kept file.

    Attributes:
        outcome: JSON of the trial's outcome, with the digest of its trace in place of the trace.
        beside: for each folder, the size and time of change of files in it, by name.
    """

    outcome: str
    beside: dict[str, dict[str, tuple[int, int]]]


def _between(spec: TrialSpec) -> TrialOutcome | None:
    """Outcome of a trial whose trace lies between kept ones; None if these do not determine it.

    The curve's traces, and the nearest ones below and above the batch size, have to agree.
    """
    if spec.batch_size < TRACED_BATCH_SIZES[0]:
        return None  # shapes of 1 take branches of their own
    nearest = _nearest(spec)
    if nearest is None:
        return None
    first, second, third = TRACED_BATCH_SIZES
    outcomes, documents = [], []
    for size in dict.fromkeys((first, third, second, *nearest)):
        name = _name(dataclasses.replace(spec, batch_size=size))
        outcome = None if name is None else _find(name)
        if outcome is None or outcome.trace_json is None:
            return None
        document = json.loads(outcome.trace_json)  # the digest is right: it is as it was read once
        if not isinstance(document, dict) or document.get("batch_size") != size:
            return None  # the workload makes batches of its own size
        outcomes.append(outcome)
        documents.append(document)
    try:
        lines = TraceLines.through(documents)
    except NotPolynomialError as error:
        _log.info("batch size %d is traced: %s", spec.batch_size, error)
        return None
    return dataclasses.replace(
        outcomes[0],
        batch_size=spec.batch_size,
        trace_json=lines.text_at(spec.batch_size),
        sources={file: digest for each in outcomes for file, digest in each.sources.items()},
    )


def _nearest(spec: TrialSpec) -> tuple[int, int] | None:
    """Nearest batch sizes below and above a trial's whose traces are kept; None if one is missing.

    The sizes of the curve are even. Code that treats odd batches differently, as halves of a batch that are
    rounded, is seen at an odd size alone, so such a size has to be above an odd one. Of the built-in models
    it is known that they do not.
    """
    of_one = _name_of_sizes(spec)
    body = None if of_one is None else _read(of_one)
    try:
        noted = () if body is None else from_plain(tuple[int, ...], parse_json(body))
    except ValueError as error:
        _log.info("kept batch sizes cannot be read: %s", error)
        return None
    known = {size for size in (*TRACED_BATCH_SIZES, *noted) if _is_kept_at(spec, size)}
    needs_odd = spec.batch_size % 2 == 1 and spec.workload.kind != "builtin"
    below = [size for size in known if TRACED_BATCH_SIZES[0] <= size <= spec.batch_size]
    above = [size for size in known if size >= spec.batch_size and (size % 2 == 1 or not needs_odd)]
    return (max(below), min(above)) if below and above else None


def _is_kept_at(spec: TrialSpec, batch_size: int) -> bool:
    name = _name(dataclasses.replace(spec, batch_size=batch_size))
    return name is not None and _exists(name)


def _exists(name: str) -> bool:
    try:
        return (paths.kept_path() / name).exists()
    except (OSError, StorageError):
        return False


def _note_size(spec: TrialSpec) -> None:
    """Notes that the trace at a trial's batch size is kept."""
    name = _name_of_sizes(spec)
    if name is None or spec.batch_size in TRACED_BATCH_SIZES:
        return
    try:
        noted = from_plain(tuple[int, ...], parse_json(_read(name) or "[]"))
    except ValueError:  # of another version
        noted = ()
    if spec.batch_size not in noted:
        _write(name, json.dumps([*noted, spec.batch_size][-_MOST_SIZES:]))


def _find(name: str) -> TrialOutcome | None:
    """Kept outcome of a trial that made a trace; None without one, or if one of the user's files changed."""
    body = _read(name)
    if body is None:
        return None
    try:
        entry = from_plain(_Entry, parse_json(body))
        outcome = TrialOutcome.from_json(entry.outcome)
        if not _are_unchanged(outcome.sources) or not _are_as_before(entry.beside):
            return None
        trace_json = None if outcome.trace_json is None else _read_trace(outcome.trace_json)
        return dataclasses.replace(outcome, trace_json=trace_json)
    except (OSError, ValueError, StorageError) as error:
        _log.info("a kept trace cannot be read and is made again: %s", error)
        return None


def _keep(
    name: str, spec: TrialSpec, outcome: TrialOutcome, digest: str | None, *, since_seconds: float
) -> None:
    """Writes an outcome if later questions may use it.

    Args:
        digest: digest of the trace, which is written already; None without a trace.
        since_seconds: time since which none of the user's files may have changed.
    """
    has_changed = any(_changed_seconds(file) > since_seconds for file in outcome.sources)
    beside = None if has_changed else _beside(spec, outcome.sources, since_seconds=since_seconds)
    if beside is None or (digest is None and not _fails_again(spec, outcome)):
        return
    lasting = dataclasses.replace(outcome, trace_json=digest, log_tail="")
    _write(name, json.dumps(dataclasses.asdict(_Entry(lasting.to_json(), beside))))
    known_models.note(spec.workload.target, with_calls=spec.with_calls)
    if digest is not None:
        _note_size(spec)


def _changed_seconds(file: str) -> float:
    """Time when a file last changed, by `time.time`; 0 if there is no such file."""
    try:
        return Path(file).stat().st_mtime
    except OSError:
        return 0.0


def _beside(
    spec: TrialSpec, sources: Iterable[str], *, since_seconds: float
) -> dict[str, dict[str, tuple[int, int]]] | None:
    """Size and time of change of the files beside used ones and in the current folder, by folder and name.

    Where this process prints is left out.

    Args:
        sources: paths of the user's files that the trial used.
        since_seconds: time since which none of the files may have changed.

    Returns:
        None if a file has changed since then, so that the trial may have read it before or after.
    """
    folders = {str(Path(file).parent) for file in sources}
    if spec.workload.kind not in ("builtin", "library"):
        folders.add(str(Path.cwd()))
    outputs, now = _outputs(), time.time()
    beside = {}
    for folder in sorted(folders):
        files = [(name, at) for name, at in _files_in(folder) if (at.st_dev, at.st_ino) not in outputs]
        if any(since_seconds <= at.st_mtime <= now for _, at in files):
            return None
        beside[folder] = {name: (at.st_size, at.st_mtime_ns) for name, at in files}
    return beside


def _outputs() -> set[tuple[int, int]]:
    """Device and number of the files that this process prints to."""
    found = set()
    for descriptor in (1, 2):
        with suppress(OSError):  # it is closed
            status = os.fstat(descriptor)
            found.add((status.st_dev, status.st_ino))
    return found


def _files_in(folder: str) -> list[tuple[str, os.stat_result]]:
    """Names and states of the files in a folder; empty if there are very many, as of images."""
    try:
        with os.scandir(folder) as entries:
            some = list(itertools.islice(entries, _MOST_BESIDE + 1))
        return [(e.name, e.stat()) for e in some if e.is_file()] if len(some) <= _MOST_BESIDE else []
    except OSError:
        return []


def _are_as_before(beside: Mapping[str, Mapping[str, tuple[int, int]]]) -> bool:
    """Whether files have the size and time of change that they had, given by folder and name."""
    every = [(Path(folder, name), at) for folder, files in beside.items() for name, at in files.items()]
    try:
        found = [(path.stat(), at) for path, at in every]
    except OSError:
        return False
    return all((status.st_size, status.st_mtime_ns) == at for status, at in found)


def _fails_again(spec: TrialSpec, outcome: TrialOutcome) -> bool:
    """Whether a trial fails whenever it is run, as a model does that needs two samples in a batch.

    This is not known of the user's own workloads: a module whose import fails is in no list of used files.
    """
    is_of_step = outcome.error is not None and outcome.error.kind == "user"
    # Others may come from a machine that is full.
    is_of_model = is_of_step and outcome.environment.get("exception") == "ValueError"
    return spec.workload.kind == "builtin" and outcome.verdict is Verdict.FAILED and is_of_model


def _are_unchanged(sources: Mapping[str, str]) -> bool:
    """Whether the user's files, given by path, have the same digests as when a trial used them."""
    return all(content_digest(Path(file)) == known for file, known in sources.items())


# ── files ───────────────────────────────────────────────────────────────────────────────────────


def _write(name: str, body: str) -> None:
    content = f"{_sha256(body.encode())}\n{body}"
    paths.keep(paths.kept_dir, name, lambda: content, replaces=True)
    _bound()


def _read(name: str) -> str | None:
    """Body of a kept file; None if there is none, or it is damaged or unreadable."""
    try:
        path = paths.kept_path() / name
        digest, _, body = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    except (OSError, StorageError) as error:
        _log.info("a kept file cannot be read: %s", error)
        return None
    if _sha256(body).encode() != digest:
        _log.info("%s is damaged, and is written again", path)
        return None
    paths.touch(path)
    return body.decode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _keep_trace(trace_json: str) -> str:
    """Writes a trace into the state directory, named by the digest of its text, which is returned."""
    text = trace_json.encode()
    digest = _sha256(text)
    paths.keep(
        paths.traces_dir, _trace_path(digest).name, lambda: gzip.compress(text, compresslevel=1, mtime=0)
    )
    return digest


def _read_trace(digest: str) -> str:
    """Text of a kept trace; a damaged file is removed, so that the trace is written again.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: the file is damaged.
    """
    path = _trace_path(digest)
    try:
        text = gzip.decompress(path.read_bytes())
    except (zlib.error, gzip.BadGzipFile, EOFError) as error:
        path.unlink(missing_ok=True)
        raise ValueError(f"{path.name}: {error}") from error
    if _sha256(text) != digest:
        path.unlink(missing_ok=True)
        raise ValueError(f"{path.name}: its content was changed")
    paths.touch(path)
    return text.decode()


def _trace_path(digest: str) -> Path:
    return paths.traces_path() / f"{digest}.json.gz"


def _is_kept(spec: TrialSpec) -> bool:
    """Whether a trial's outcome is decided by what is known before it, and by the user's files.

    A script may read any file and variable, and so may a workload that starts processes or uses the network.
    Traces for the CPU depend on the processor and its libraries.
    """
    reads_more = spec.setup.allows_network or spec.setup.allows_subprocesses
    is_predicted = spec.probe is Probe.PREDICT and not spec.is_for_host
    return is_predicted and spec.workload.script is None and not reads_more


def _name(spec: TrialSpec) -> str | None:
    """Name of a trial's kept file; None if its outcome is not kept, or its surroundings cannot be read."""
    found = _surroundings_or_none(spec.setup.kept_variables) if _is_kept(spec) else None
    if found is None:
        return None
    return fingerprint({"spec": json.loads(spec.to_json()), "surroundings": found})[:40]


def _name_of_proof(spec: TrialSpec) -> str | None:
    return _name_of_setting(spec, "proof")


def _name_of_sizes(spec: TrialSpec) -> str | None:
    return _name_of_setting(spec, "sizes")


def _name_of_setting(spec: TrialSpec, what: str) -> str | None:
    """Name of the file that keeps something of all batch sizes of a trial's setting."""
    name = _name(dataclasses.replace(spec, batch_size=1))
    return None if name is None else f"{name}-{what}"


def _surroundings_or_none(kept_variables: tuple[str, ...]) -> list[object] | None:
    """Surroundings that decide a trace, as JSON values; None if they cannot be read (a deleted folder)."""
    try:
        return [
            versions(),
            [str(folder) for folder in sys.path],
            str(Path.cwd()),  # the user's code may read files from there
            os.geteuid(),  # root can be kept from more than other users, which the trace's notes tell
            surroundings.environment(kept_variables, with_secrets=False, on_this_machine=True),
            surroundings.installed_packages(),
            surroundings.own_files(),
        ]
    except (OSError, ValueError) as error:
        _log.info("no trace is kept: %s", error)
        return None


@cache  # once in a process
def _bound() -> None:
    """Removes files that were long not used, and the oldest of those that take too much space."""
    with suppress(StorageError):  # reported where something is written
        for folder in (paths.kept_path(), paths.traces_path()):
            paths.bound(folder, most_bytes=_MOST_BYTES, most_seconds=_MOST_SECONDS)
