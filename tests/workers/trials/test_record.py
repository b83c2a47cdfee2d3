"""The recorder of ground truth: its order, its rows, its time limit; trials are faked by its door."""

from __future__ import annotations

import dataclasses
import json
from itertools import islice

import pytest
import torch

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.conv_algo import CUDA_POLICIES
from autofit_workers.spec.knobs.precision import PRECISIONS
from autofit_workers.spec.protocol import (
    Device,
    Evidence,
    Peaks,
    Probe,
    TrialError,
    TrialOutcome,
    TrialSpec,
    Verdict,
)
from autofit_workers.spec.trace import Allocation, Category, Trace
from autofit_workers.trials import record
from autofit_workers.workload.workload import resolve

PEAKS = Peaks(allocated_bytes=10, reserved_bytes=20, device_bytes=30)


def traced(spec: TrialSpec) -> TrialOutcome:
    """A step that holds 40 MiB."""
    weight = Allocation(num_bytes=40 << 20, category=Category.PARAMETER, shape=(10 << 20,))
    trace = Trace(
        workload=spec.workload.name,
        batch_size=spec.batch_size,
        mode="train",
        optimizer="",
        knobs=spec.knobs,
        allocations=(weight,),
        events=(0,),
        versions={"torch": torch.__version__},
    )
    return TrialOutcome(
        verdict=Verdict.TRACED,
        evidence=Evidence.PREDICTED,
        device=Device(kind="cuda", name=spec.architecture),
        batch_size=spec.batch_size,
        knobs=spec.knobs,
        trace_json=trace.to_json(),
    )


class Machine:
    """A machine on which every trial takes ten seconds."""

    def __init__(self, verdict: Verdict = Verdict.FITS) -> None:
        self.now = 0.0
        self.verdict = verdict
        self.specs: list[TrialSpec] = []

    def clock(self) -> float:
        return self.now

    def run(self, spec: TrialSpec) -> TrialOutcome:
        self.now += 10.0
        self.specs.append(spec)
        failed = self.verdict is not Verdict.FITS
        if spec.probe is Probe.PREDICT:
            return traced(spec)
        return TrialOutcome(
            verdict=self.verdict,
            evidence=Evidence.MEASURED,
            device=Device(kind="cuda", name="a card", driver="570.1"),
            batch_size=spec.batch_size,
            knobs=spec.knobs,
            first_step=PEAKS,
            steady=PEAKS,
            environment={"architecture": "sm_90"},
            error=TrialError(kind="environment", message="no card") if failed else None,
        )


def record_on(machine: Machine, *, seconds: float, models=("davenet", "gpt2")) -> list[record.Row]:
    return list(record.record(models, seconds=seconds, run=machine.run, clock=machine.clock))


def test_every_model_is_measured_once_before_any_is_measured_twice():
    models = list(record.BATCH_SIZES)
    first = [spec.workload.target for spec in islice(record.plan(models), len(models))]
    assert first == models


def test_no_trial_is_planned_twice_and_models_without_convolutions_get_no_conv_algo():
    specs = list(record.plan(list(record.BATCH_SIZES)))
    keys = [(spec.workload.target, spec.batch_size, spec.knobs) for spec in specs]
    assert len(set(keys)) == len(keys)
    assert {spec.knobs.conv_algo for spec in specs if spec.workload.target == "gpt2"} == {"cudnn"}
    assert {spec.knobs.conv_algo for spec in specs} == set(CUDA_POLICIES)
    assert {spec.probe for spec in specs} == {Probe.CUDA}


def test_rows_come_in_order_of_value_and_predictions_last():
    rows = record_on(Machine(), seconds=200)
    kinds = [row["kind"] for row in rows]
    assert kinds[0] == "context"
    assert kinds == sorted(kinds, key=["context", "trial", "prediction"].index)
    assert kinds.count("trial") > 5
    assert kinds.count("prediction") >= 2


def test_recording_ends_in_time():
    machine = Machine()
    record_on(machine, seconds=200)
    assert machine.now <= 210  # the trial that is running then is cut short by its deadline
    assert all(spec.deadline_seconds <= 200 for spec in machine.specs[1:])


def test_a_trial_row_holds_what_the_suite_needs_to_repeat_and_to_check_it():
    row = record_on(Machine(), seconds=60)[1]
    assert (row["workload"], row["batch_size"], row["verdict"]) == ("davenet", 32, "FITS")
    assert Knobs(**row["knobs"]) == Knobs()
    assert row["steady"] == dataclasses.asdict(PEAKS)
    assert row["device"] == {"kind": "cuda", "name": "a card", "driver": "570.1"}


def test_a_prediction_is_for_the_recorded_card_and_beside_what_was_measured():
    machine = Machine()
    row = record_on(machine, seconds=200)[-1]
    assert row["kind"] == "prediction"
    assert row["verdict"] == "FITS"
    assert row["steady"]["predicted"]["reserved_bytes"] == 40 << 20
    assert row["steady"]["measured"] == dataclasses.asdict(PEAKS)
    assert (machine.specs[-1].probe, machine.specs[-1].architecture) == (Probe.PREDICT, "sm_90")


def test_only_sizes_that_ran_are_predicted():
    rows = record_on(Machine(Verdict.OOM), seconds=200)
    assert "prediction" not in {row["kind"] for row in rows}
    assert {row["error"]["message"] for row in rows} == {"no card"}


def test_a_row_is_one_line_with_its_schema():
    lines: list[str] = []
    for row in record_on(Machine(), seconds=200):
        record.write_row(lines.append, row)
    assert all(line.endswith("}\n") and line.count("\n") == 1 for line in lines)
    assert {json.loads(line)["schema"] for line in lines} == {"autofit.ground-truth/1"}


def test_the_context_is_measured_with_a_workload_that_a_worker_can_load():
    machine = Machine()
    record_on(machine, seconds=60)
    workload = resolve(machine.specs[0].workload)
    model = workload.build_model()
    assert workload.loss(model, workload.make_batch(2, torch.device("cpu"))).requires_grad


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_it_says_so_in_one_sentence_and_writes_nothing(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    assert record.main(["--out", str(out)]) == 5
    assert capsys.readouterr().err.count("\n") == 1
    assert not out.exists()


def test_an_unknown_model_is_a_usage_error(tmp_path, capsys):
    assert record.main(["--out", str(tmp_path / "rows"), "--models", "davenet,unheard-of"]) == 2
    assert "unheard-of" in capsys.readouterr().err


def test_every_model_is_planned_in_every_precision_with_every_policy_that_applies():
    planned = {(spec.workload.target, spec.knobs) for spec in record.plan(list(record.BATCH_SIZES))}
    for model in record.BATCH_SIZES:
        for knobs in record.COMBINATIONS:
            assert ((model, knobs) in planned) == record.applies(model, knobs)
    assert len(record.COMBINATIONS) == len(PRECISIONS) * len(CUDA_POLICIES)


def test_recording_goes_on_after_a_trial_that_failed():
    rows = record_on(Machine(Verdict.FAILED), seconds=200)
    assert [row["kind"] for row in rows].count("trial") > 5


def test_what_was_recorded_before_is_not_run_again_unless_the_machine_was_to_blame(tmp_path):
    path = tmp_path / "rows.jsonl"
    first = record_on(Machine(), seconds=100)
    trials = [row for row in first if row["kind"] == "trial"]
    trials[0] |= {"verdict": "LOST"}
    trials[1] |= {"verdict": "FAILED", "error": {"kind": "environment", "message": "busy"}}
    trials[2] |= {"verdict": "FAILED", "error": {"kind": "user", "message": "a mistake"}}
    with path.open("w") as file:
        for row in first:
            record.write_row(file.write, row)
        file.write('{"schema":"autofit.ground-tr')  # killed as it wrote
    earlier = record.rows_in(path)
    assert len(earlier) == len(first)
    assert path.read_text().endswith("}\n")
    machine = Machine()
    list(
        record.record(
            ("davenet", "gpt2"), seconds=9999, earlier=earlier, run=machine.run, clock=machine.clock
        )
    )
    repeated = [spec for spec in machine.specs[1:] if spec.probe is Probe.CUDA]
    plan = list(record.plan(("davenet", "gpt2")))
    assert [spec.knobs for spec in repeated[:2]] == [spec.knobs for spec in plan[:2]]
    assert len(repeated) == len(plan) - len(trials) + 2


@pytest.mark.parametrize("text", ['{"schema": "another/1"}\n', "a note without an end", "a note\n"])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(ValueError):
        record.rows_in(path)
    assert path.read_text() == text


def test_a_file_that_is_not_there_has_no_rows(tmp_path):
    assert record.rows_in(tmp_path / "none") == []
