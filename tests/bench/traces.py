"""Traces of settings, kept on disk, so that a second run of the bench only replays.

The cache has a folder for every state of the code that traces, named by its digest; in it a file
for each setting and batch size, with the seconds that the trace took in the first line.
"""

from __future__ import annotations

import ast
import base64
import gzip
import hashlib
import importlib.metadata
import json
import pickle
import statistics
from dataclasses import dataclass
from pathlib import Path

import workers
from autofit.errors import AutofitError
from autofit.paths import write_atomically
from autofit.prediction import TRACED_BATCH_SIZES, raise_if_failed
from tests.bench.tables.setting import Setting
from workers.predict.curve import BatchDependentEventsError, PeakCurve, TracedCurve
from workers.protocol import Probe, TrialOutcome, TrialSpec, WorkloadRef
from workers.trace import Trace
from workers.workload import Workload

ROOT = Path(__file__).parents[2]
# What a trace depends on is what these import, directly or not; the curve only reads traces.
_TRACING_MODULES = ("workers.predict.probe", "tests.bench.tables.workloads")
_REPLAYING_MODULES = ("workers.predict.curve",)
_LIBRARIES = ("torch", "timm", "torchvision", "transformers")
_DEADLINE_SECONDS = 300.0


class NotTracedError(Exception):
    """A setting has no trace, and why."""


@dataclass(frozen=True)
class _Loader:
    """What a worker unpickles and calls to get the workload; pickled without importing torch."""

    setting: Setting

    def __call__(self) -> Workload:
        from tests.bench.tables.workloads import workload_of

        return workload_of(self.setting)


class Traces:
    """The traces of settings, from the cache or from a worker.

    Args:
        folder: the cache.
        digest: of the code that traces (`tracing_digest`); the cache has a folder for each.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder = folder / digest
        self._folder.mkdir(parents=True, exist_ok=True)

    def curve(self, setting: Setting) -> tuple[PeakCurve | TracedCurve, float]:
        """The peak curve of a setting, and the seconds that one of its traces took when it was made.

        Traced at the three usual sizes or, where those disagree, at each size that is asked for.

        Raises:
            NotTracedError: the model cannot be loaded or its step not traced.
        """
        timed = [self._trace(setting, batch_size) for batch_size in TRACED_BATCH_SIZES]
        seconds = statistics.median(seconds for _, seconds in timed)
        try:
            return PeakCurve([trace for trace, _ in timed]), seconds
        except BatchDependentEventsError:
            return TracedCurve(lambda batch_size: self._trace(setting, batch_size)[0]), seconds

    def _trace(self, setting: Setting, batch_size: int) -> tuple[Trace, float]:
        path = self._folder / f"{setting.key}-{batch_size}.json.gz"
        if path.exists():
            seconds, trace_json = gzip.decompress(path.read_bytes()).decode().split("\n", 1)
        else:
            outcome = _traced(setting, batch_size)
            assert outcome.trace_json is not None
            seconds, trace_json = f"{outcome.wall_seconds:.3f}", outcome.trace_json
            text = f"{seconds}\n{trace_json}".encode()
            write_atomically(path, gzip.compress(text, compresslevel=3, mtime=0))
        return Trace.from_json(trace_json), float(seconds)


def _traced(setting: Setting, batch_size: int) -> TrialOutcome:
    spec = TrialSpec(
        workload=_reference(setting),
        batch_size=batch_size,
        probe=Probe.PREDICT,
        mode=setting.mode,
        deadline_seconds=_DEADLINE_SECONDS,
    )
    outcome = workers.run(spec)
    try:
        raise_if_failed(outcome)
    except AutofitError as error:
        raise NotTracedError(f"batch {batch_size}: {error}") from error
    return outcome


def _reference(setting: Setting) -> WorkloadRef:
    payload = pickle.dumps(_Loader(setting))
    return WorkloadRef(
        kind="pickle",
        target=setting.model,
        source_sha256=hashlib.sha256(payload).hexdigest(),
        search_path=(str(ROOT),),
        payload_base64=base64.b64encode(payload).decode("ascii"),
    )


def tracing_digest() -> str:
    """Names the code and the libraries that shape a trace."""
    digest = hashlib.sha256()
    for path in sorted(_import_closure(_TRACING_MODULES)):
        digest.update(path.read_bytes())
    versions = {name: _version(name) for name in _LIBRARIES}
    digest.update(json.dumps([versions, TRACED_BATCH_SIZES]).encode())
    return digest.hexdigest()[:16]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _import_closure(modules: tuple[str, ...]) -> set[Path]:
    """The project's files that these modules import, at any depth, those that only replay left out."""
    found: set[Path] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if path is None or path in found or name in _REPLAYING_MODULES:
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def _file_of(module: str) -> Path | None:
    if module.partition(".")[0] not in ("workers", "tests"):
        return None
    path = ROOT.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.exists()), None)
