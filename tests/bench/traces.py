"""Traces of settings, kept on disk, so that a second run of the bench only replays.

The cache has a folder for every state of the code that traces, named by its digest; in it a file
for each setting and batch size, with the seconds that the trace took in the first line.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import importlib.metadata
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autofit.paths import write_atomically
from autofit_workers.replay.curve.lines.step_lines import BatchDependentEventsError
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES, PeakCurve
from autofit_workers.spec.trace import Trace
from tests.bench.tables.setting import Setting
from tests.bench.tracer import Tracer

ROOT = Path(__file__).parents[2]
_FOLDERS = {"autofit_workers": ROOT / "workers", "tests": ROOT}  # where the packages that trace lie
# What a trace depends on is what these import, directly or not.
_TRACING_MODULES = ("tests.bench.tracer",)
_LIBRARIES = ("torch", "timm", "torchvision", "transformers")


@dataclass(slots=True, kw_only=True)
class Traced:
    """The traces of one setting, and the curve through them, made once.

    Attributes:
        usual: at the usual sizes.
        trace_at: that at any size.
        seconds: that one of them took when it was made.
    """

    usual: tuple[Trace, ...]
    trace_at: Callable[[int], Trace]
    seconds: float
    _curve: PeakCurve | None = field(default=None, init=False, repr=False)

    @property
    def curve(self) -> PeakCurve:
        """Through the usual traces or, where those disagree, by a trace for each size that is asked for."""
        if self._curve is None:
            try:
                self._curve = PeakCurve.through(self.usual)
            except BatchDependentEventsError:
                self._curve = PeakCurve.traced_anew(self.trace_at)
        return self._curve


class Traces:
    """The traces of settings, from the cache or from a worker.

    Args:
        folder: the cache.
        digest: of the code that traces (`tracing_digest`); the cache has a folder for each.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder = folder / digest
        self._folder.mkdir(parents=True, exist_ok=True)
        self._tracer = Tracer()

    def traced(self, setting: Setting) -> Traced:
        """A setting's traces at the three usual sizes, and at any other that is asked for.

        Raises:
            NotTracedError: the model cannot be loaded or its step not traced.
        """
        timed = self.usual(setting)
        return Traced(
            usual=tuple(trace for trace, _ in timed),
            trace_at=lambda batch_size: self._trace(setting, batch_size)[0],
            seconds=statistics.median(seconds for _, seconds in timed),
        )

    def usual(self, setting: Setting) -> list[tuple[Trace, float]]:
        """The traces at the usual sizes, each with its seconds; raises `NotTracedError` likewise."""
        return [self._trace(setting, batch_size) for batch_size in TRACED_BATCH_SIZES]

    def _trace(self, setting: Setting, batch_size: int) -> tuple[Trace, float]:
        path = self._folder / f"{setting.key}-{batch_size}.json.gz"
        if path.exists():
            seconds, trace_json = gzip.decompress(path.read_bytes()).decode().split("\n", 1)
        else:
            trace_json, took_seconds = self._tracer.trace(setting, batch_size)
            seconds = f"{took_seconds:.3f}"
            text = f"{seconds}\n{trace_json}".encode()
            write_atomically(path, gzip.compress(text, compresslevel=3, mtime=0))
        return Trace.from_json(trace_json), float(seconds)


def tracing_digest() -> str:
    """Names the code and the libraries that shape a trace; imports and comments do not count."""
    digest = hashlib.sha256()
    for path in sorted(_import_closure(_TRACING_MODULES)):
        digest.update(_statements(path).encode())
    versions = {name: _version(name) for name in _LIBRARIES}
    digest.update(json.dumps([versions, TRACED_BATCH_SIZES]).encode())
    return digest.hexdigest()[:16]


def _statements(path: Path) -> str:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    kept = [
        node
        for node in body
        if not isinstance(node, (ast.Import, ast.ImportFrom))
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    return "\n".join(map(ast.dump, kept))


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
        if path is None or path in found:
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def _file_of(module: str) -> Path | None:
    folder = _FOLDERS.get(module.partition(".")[0])
    if folder is None:
        return None
    path = folder.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.exists()), None)
