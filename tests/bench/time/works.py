"""The work of the steps of a table's rows, traced once and kept on disk."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from autofit import paths
from autofit.paths import write_atomically
from autofit_workers.spec.trace import Trace
from autofit_workers.spec.work import WorkCall
from tests.bench.tables.setting import Setting
from tests.bench.tracer import NotTracedError, Tracer


class Works:
    """The last step's work of settings at batch sizes, from the cache or from a process that traces."""

    def __init__(self) -> None:
        self._folder = paths.state_dir() / "bench-works"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._tracer = Tracer()

    def path(self, setting: Setting, batch_size: int) -> Path:
        return self._folder / f"{setting.key}-{batch_size}.json.gz"

    def known(self, setting: Setting, batch_size: int) -> bool:
        return self.path(setting, batch_size).exists()

    def of(self, setting: Setting, batch_size: int) -> tuple[WorkCall, ...] | str:
        """The work of a step; why there is none where it cannot be traced."""
        path = self.path(setting, batch_size)
        if not path.exists():
            self._make(setting, batch_size, path)
        data = json.loads(gzip.decompress(path.read_bytes()))
        return str(data["failure"]) if "failure" in data else Trace.from_dict(data).work

    def _make(self, setting: Setting, batch_size: int, path: Path) -> None:
        try:
            text, _ = self._tracer.trace(setting, batch_size)
            data = json.loads(text)
            data.update(allocations=[], events=[], stacks=[], host_waits=[])
            for name in ("stacked", "named", "counted", "streams", "alike_ranks"):
                data.pop(name, None)
        except NotTracedError as error:
            data = {"failure": str(error)}
        write_atomically(path, gzip.compress(json.dumps(data).encode(), 5))
