"""Observed peaks of real runs as Prometheus would scrape them, while `autofit observe` stores and forgets."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from autofit import paths
from autofit.errors import StorageError
from autofit.events import Event, RealRunPeak, RealRunsObserved
from autofit.predict.intervals import observations
from autofit.predict.intervals.observations import Observation, PeakKind
from autofit.serve.metrics import OTHER, Metrics
from autofit.serve.observation_reader import BesideObservations, ObservationReader
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.setup import TYPICAL

GPT2 = WorkloadRef(kind="library", target="hf:gpt2")
OBSERVED, PREDICTED = "observed_peak_bytes gpt2 t4", "observed_peak_predicted_bytes gpt2 t4"
SEEN = Observation(
    workload="gpt2",
    kind=PeakKind.RESERVED,
    peak_bytes=1100,
    low_bytes=1100,
    high_bytes=1100,
    predicted_bytes=1000,
    batch_size=8,
    knobs=Knobs(),
    mode="train",
    batch_kind=TYPICAL,
    degrees=(),
    nonzero_share=0.5,
    convolves=False,
    card="t4",
    torch="2.13.0",
    day="2026-11-24",
    expected_bytes=1000,
)


def seen(**changes: Any) -> Observation:
    return dataclasses.replace(SEEN, **changes)


class Shown:
    """A reader of observations with the metrics made of its events.

    Attributes:
        said: the lines for the operator.
        num_events: how often something had changed.
    """

    def __init__(self, *, max_workloads: int = 50) -> None:
        self.said: list[str] = []
        self.num_events = 0
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, max_workloads=max_workloads)
        self.reader = ObservationReader(emit=self._emit, log=self.said.append)

    def _emit(self, event: Event) -> None:
        self.num_events += 1
        self.metrics(event)

    def read(self) -> dict[str, float]:
        self.reader.read()
        return self.samples()

    def samples(self) -> dict[str, float]:
        return {
            " ".join([sample.name.removeprefix("autofit_"), *sample.labels.values()]): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name.startswith("autofit_observed_")
        }


def keep(observation: Observation, *, at_seconds: int = 0) -> Path:
    """Stores a peak as `autofit observe` does; its file is `at_seconds` newer than a fixed time."""
    observations.keep(GPT2, observation)
    (path,) = paths.observations_path().glob(f"*{observation.id}.json")
    os.utime(path, (1_000_000 + at_seconds, 1_000_000 + at_seconds))
    return path


def test_the_newest_peak_of_a_kind_is_shown_beside_its_prediction(state_dir: Path) -> None:
    shown = Shown()
    assert shown.read() == {}
    keep(seen(batch_size=16, peak_bytes=2500, expected_bytes=2000), at_seconds=10)
    keep(SEEN, at_seconds=20)
    keep(seen(kind=PeakKind.ALLOCATED, peak_bytes=900, expected_bytes=800))
    assert shown.read() == {
        f"{OBSERVED} reserved": 1100,
        f"{PREDICTED} reserved": 1000,
        f"{OBSERVED} allocated": 900,
        f"{PREDICTED} allocated": 800,
    }
    keep(seen(peak_bytes=1300), at_seconds=30)  # the same run once more takes the place of the earlier
    assert shown.read()[f"{OBSERVED} reserved"] == 1300
    observations.forget(SEEN.id)
    assert shown.read()[f"{OBSERVED} reserved"] == 2500
    observations.forget(seen(batch_size=16).id)
    observations.forget(seen(kind=PeakKind.ALLOCATED).id)
    assert shown.read() == {}


def test_files_that_did_not_change_are_not_read_again(state_dir: Path) -> None:
    shown = Shown()
    path = keep(SEEN)
    assert shown.read() == shown.read()
    assert shown.num_events == 1
    times = path.stat()
    path.write_text("x" * times.st_size, encoding="utf-8")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as if it had not changed
    assert shown.read()[f"{OBSERVED} reserved"] == 1100
    assert shown.said == []


def test_a_damaged_file_is_said_once_and_the_others_are_shown(state_dir: Path) -> None:
    shown = Shown()
    damaged = keep(seen(card="h200"))
    keep(SEEN)
    damaged.write_text("{}", encoding="utf-8")
    for _ in range(3):
        assert shown.read() == {f"{OBSERVED} reserved": 1100, f"{PREDICTED} reserved": 1000}
    (said,) = shown.said
    assert said.startswith(f"the observation {damaged} cannot be read and is not shown: ")


def test_of_an_earlier_versions_files_only_a_reserved_peak_has_a_prediction(state_dir: Path) -> None:
    shown = Shown()
    for kind in (PeakKind.RESERVED, PeakKind.DEVICE):
        path = keep(seen(kind=kind, expected_bytes=None))
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(',\n    "expected_bytes": null', ""), encoding="utf-8")
        assert "expected_bytes" not in path.read_text(encoding="utf-8")
    assert shown.read() == {
        f"{OBSERVED} reserved": 1100,
        f"{PREDICTED} reserved": 1000,
        f"{OBSERVED} device": 1100,
    }


def test_the_field_that_decides_nothing_changes_no_digest(state_dir: Path) -> None:
    keep(SEEN)
    before = observations.Observations.load(GPT2).digest
    keep(seen(expected_bytes=None))
    assert observations.Observations.load(GPT2).digest == before
    keep(seen(low_bytes=1000))
    assert observations.Observations.load(GPT2).digest != before


def test_a_run_on_an_unnamed_card_and_more_workloads_than_labels_are_bounded() -> None:
    shown = Shown(max_workloads=2)
    newest_first = [
        RealRunPeak(workload=f"w{n}", gpu="", kind="reserved", observed_bytes=n, predicted_bytes=None)
        for n in range(5)
    ]
    shown.metrics(RealRunsObserved(peaks=tuple(newest_first)))
    assert shown.samples() == {
        "observed_peak_bytes w0 unknown reserved": 0,
        "observed_peak_bytes w1 unknown reserved": 1,
        f"observed_peak_bytes {OTHER} unknown reserved": 2,
    }


def test_a_storage_that_cannot_be_read_holds_no_observed_peak_back(state_dir: Path) -> None:
    class Broken:
        def read(self) -> None:
            raise StorageError("the storage is away")

    shown = Shown()
    keep(SEEN)
    with pytest.raises(StorageError, match="is away"):
        BesideObservations(Broken(), shown.reader).read()
    assert f"{OBSERVED} reserved" in shown.samples()
