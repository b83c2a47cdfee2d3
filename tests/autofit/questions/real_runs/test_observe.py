"""An observed peak held against its prediction, and what is no such peak."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autofit.errors import UsageError
from autofit.predict.intervals.observations import Observations, PeakKind
from autofit.predict.predictor import Predictor
from autofit.questions.real_runs.observe import ObservedPeak, RealPeak, measured_in, run_observe
from autofit.settings.resolve import resolve_one_configuration
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import WorkloadRef

MIB, GIB = 1024**2, 1024**3


@pytest.fixture
def observe(workload: WorkloadRef, worker: Any, state_dir: Path) -> Any:
    """Observes a peak of the stand-in's step at batch 8, of which 260 MiB are predicted."""

    def call(peak_mib: int, kind: str = "reserved", gpu: str | None = "rtx-3090") -> ObservedPeak:
        settings = resolve_one_configuration({"model": "step", "gpu": gpu}, "an observation")
        predictor = Predictor(workload, worker, plans=FormulaPlans, observations=Observations.load(workload))
        peak = RealPeak(kind=PeakKind(kind), num_bytes=peak_mib * MIB, batch_size=8)
        return run_observe(settings, workload, predictor, peak)

    return call


def test_a_peak_inside_the_range_is_said_to_be_and_kept(observe: Any, workload: WorkloadRef) -> None:
    found = observe(260)
    assert found.is_inside
    assert found.off_by == 0
    assert found.predicted.likely_bytes == 260 * MIB
    assert "inside the predicted range" in found.in_words()
    assert found.observation.id in found.in_words()
    assert "1 observed peak of this workload (batch 8, " in found.note
    assert Observations.load(workload).digest
    assert json.loads(found.to_json())["schema"] == "autofit.observation/1"


@pytest.mark.parametrize(
    ("kind", "peak_mib", "reason"),
    [
        ("reserved", 400, "fragmentation"),
        ("allocated", 400, "tensors that are kept between steps"),
        ("device", 2000, "other processes on the card"),
        ("reserved", 150, "another precision, optimizer or checkpointing"),
    ],
)
def test_a_peak_outside_is_said_with_what_it_may_come_from_and_widens(
    observe: Any, kind: str, peak_mib: int, reason: str
) -> None:
    found = observe(peak_mib, kind)
    assert not found.is_inside
    assert reason in found.in_words()
    seen = found.observation
    assert found.interval.low_bytes <= seen.low_bytes
    assert found.interval.high_bytes >= seen.high_bytes


def test_of_a_device_peak_the_context_is_taken_off_within_its_bounds(observe: Any) -> None:
    seen = observe(700, "device").observation
    assert seen.peak_bytes == 700 * MIB
    assert 0 < seen.low_bytes < seen.high_bytes < 700 * MIB


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0,), "at least 1 byte"),
        ((1,), "check the options and the unit"),
        ((3000,), "check the options and the unit"),
        ((30 * 1024,), "more than the 23.56 GiB of rtx-3090"),
        ((260, "device", None), "name it with --gpu"),
    ],
)
def test_what_cannot_be_such_a_peak_is_one_sentence_and_not_kept(
    observe: Any, workload: WorkloadRef, arguments: tuple[Any, ...], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        observe(*arguments)
    assert Observations.load(workload).digest == ""


def row(**changes: Any) -> dict[str, Any]:
    none = {"allocated_bytes": None, "reserved_bytes": None, "device_bytes": None, "private_bytes": None}
    return {
        "schema": "autofit.ground-truth/1",
        "kind": "trial",
        "workload": "resnet50",
        "batch_size": 32,
        "mode": None,
        "knobs": Knobs().to_dict(),
        "verdict": "FITS",
        "evidence": "measured",
        "device": {"kind": "cuda", "name": "NVIDIA GeForce RTX 3090", "driver": None},
        "first_step": {**none, "reserved_bytes": 3 * GIB},
        "steady": {**none, "reserved_bytes": 2 * GIB},
        "evaluation": none,
        "checkpoint": none,
        **changes,
    }


def test_rows_of_a_recorder_are_read_where_they_were_measured_and_fit(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [
        {"schema": "autofit.ground-truth/1", "kind": "device"},
        row(),
        row(verdict="OOM"),
        row(evidence="emulated"),
    ]
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    (found,) = measured_in(file)
    assert (found.workload, found.batch_size, found.peak_bytes) == ("resnet50", 32, 3 * GIB)
    assert (found.gpu.key, found.knobs, found.mode) == ("rtx-3090", Knobs(), "train")


def test_of_an_answer_the_measured_sizes_are_read(tmp_path: Path) -> None:
    entry = {"knobs": Knobs().to_dict(), "largest_batch": 64, "peak_reserved_bytes": 5 * GIB}
    document = {
        "schema": "autofit.tune/1",
        "workload": "resnet50",
        "device": {"kind": "cuda", "name": "NVIDIA A100-SXM4-40GB", "driver": "570"},
        "estimate": {"mode": "infer"},
        "frontier": [
            {**entry, "evidence": "measured"},
            {**entry, "evidence": "predicted", "largest_batch": 9},
        ],
    }
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(document))
    (found,) = measured_in(file)
    assert (found.batch_size, found.peak_bytes, found.mode) == (64, 5 * GIB, "infer")
    assert found.gpu.key == "a100-40g"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no JSON", "is no document of"),
        ("[]", "is no document of"),
        ('{"schema": "autofit.estimate/1"}', "is no document of"),
        (json.dumps(row(evidence="predicted")), "has no measurement on a GPU"),
        (json.dumps(row(device={"kind": "cuda", "name": "Voodoo"})), "not in the catalogue"),
    ],
)
def test_a_file_that_holds_no_measured_peak_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=says):
        measured_in(file)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        measured_in(tmp_path / "none.json")
