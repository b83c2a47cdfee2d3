"""Searches in a storage, written by the code of real searches, without trials that take time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry

from autofit.search.space import SearchSpace
from autofit.serve.metrics import Metrics
from autofit.serve.reader import DirectoryReader, StorageReader, reader_of
from autofit.study.study import Ask, TuningStudy
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, Peaks, TrialOutcome, Verdict
from tests.conformance.dispatcher import ROOT

GIB = 2**30
BUDGET_BYTES = 15 * GIB

# As `session` describes a search to its study.
SETTINGS: dict[str, Any] = {
    "workload": {"kind": "builtin", "target": "resnet50"},
    "probe": "cuda",
    "mode": None,
    "num_threads": None,
}

# A search in a process of its own: two trials told, a third under way until a line comes.
_SEARCH = """
import sys
from tests.autofit.serve.searches import open_search, tell
with open_search(sys.argv[1], name="elsewhere") as study:
    for _ in range(2):
        tell(study, study.ask(num_workers=4), gib=14)
    ask = study.ask(num_workers=4)
    print(ask.asked_seconds, flush=True)
    sys.stdin.readline()
    tell(study, ask, gib=16)
"""


def open_search(storage: str | None, *, name: str = "mine", gpu: str = "t4", **options: Any) -> TuningStudy:
    """Begins a search of ResNet-50, or takes it up again."""
    space = SearchSpace(choices={"conv_algo": ("cudnn",)}, fixed=Knobs(precision="amp-fp16"), max_batch=4096)
    given = {"settings": SETTINGS, "workload": "resnet50", "budget_bytes": BUDGET_BYTES, **options}
    return TuningStudy.open(space, name=name, storage=storage, gpu=gpu, **given)


def outcome_of(ask: Ask, *, gib: int, verdict: Verdict | None = None) -> TrialOutcome:
    """Outcome of a measured trial that reserved `gib`; the verdict follows from that unless given."""
    by_size = Verdict.FITS if gib * GIB <= BUDGET_BYTES else Verdict.OOM
    return TrialOutcome(
        verdict=verdict or by_size,
        evidence=Evidence.MEASURED,
        device=Device(kind="cuda", name="Tesla T4"),
        batch_size=ask.batch_size,
        knobs=ask.knobs,
        steady=Peaks(reserved_bytes=gib * GIB),
        wall_seconds=7.0,
    )


def tell(study: TuningStudy, ask: Ask | None, *, gib: int = 14, verdict: Verdict | None = None) -> int:
    """Ends a trial of which 12 GiB were predicted; returns its batch size."""
    assert ask is not None
    study.tell(ask.trial_number, outcome_of(ask, gib=gib, verdict=verdict), predicted_bytes=12 * GIB)
    return ask.batch_size


def search_elsewhere(storage: str) -> subprocess.Popen[str]:
    """Starts a process with two told trials and one that runs until a line is written to its stdin."""
    return subprocess.Popen(
        [sys.executable, "-c", _SEARCH, storage],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class Reading:
    """A reader of a storage, with the metrics made of its events.

    Attributes:
        said: the lines for the operator.
        seconds: the time of the reader's clock, which a test moves.
    """

    def __init__(self, storage: str | None) -> None:
        self.said: list[str] = []
        self.seconds = 0.0
        self._registry = CollectorRegistry()
        self._reader = self._open(storage, Metrics(self._registry))

    def _open(self, storage: str | None, emit: Callable[[Any], None]) -> StorageReader | DirectoryReader:
        if storage is None:
            return reader_of(None, emit=emit, log=self.said.append)
        return StorageReader(storage, emit=emit, log=self.said.append, clock=lambda: self.seconds)

    def read(self, num_times: int = 1) -> dict[str, float]:
        """Reads `num_times`; returns samples, but zeros and buckets, by name and label values."""
        for _ in range(num_times):
            self._reader.read()
        return {
            " ".join([sample.name.removeprefix("autofit_"), *sample.labels.values()]): sample.value
            for family in self._registry.collect()
            for sample in family.samples
            if sample.value and not sample.name.endswith(("_bucket", "_created", "_info"))
        }

    def close(self) -> None:
        self._reader.close()
