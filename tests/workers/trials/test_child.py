"""How exceptions become outcomes, in this process: `answer` is what a trial's process calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autofit_workers.process.messages import user_error
from autofit_workers.spec.protocol import ALLOCATOR_PEAK, Probe, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.setup import Setup
from autofit_workers.trials.child import answer

FAULTY = Path(__file__).parents[2] / "faults" / "faulty.py"


def answer_to(attribute: str, **settings):
    reference = WorkloadRef(kind="file", target=f"{FAULTY}:{attribute}")
    return answer(
        TrialSpec(workload=reference, **{"batch_size": 3, "probe": Probe.CPU, **settings}).to_json()
    )


def test_a_trial_that_does_its_work_fits():
    outcome = answer_to("healthy")
    assert outcome.verdict is Verdict.FITS
    assert outcome.num_steps_done == 4
    assert outcome.num_ooms == 0


def test_inference_takes_no_optimizer_steps_and_still_fits():
    assert answer_to("vacuous", setup=Setup(mode="infer")).verdict is Verdict.FITS


@pytest.mark.parametrize(
    ("attribute", "words"),
    [("ignores_batch_size", "ignores the batch size"), ("vacuous", "changed no parameter")],
)
def test_work_that_is_not_done_is_invalid(attribute, words):
    outcome = answer_to(attribute)
    assert outcome.verdict is Verdict.INVALID
    assert outcome.error.kind == "user"
    assert words in outcome.error.message


def test_a_failure_says_where_the_trial_was():
    outcome = answer_to("mistaken")
    assert (outcome.phase, outcome.num_steps_done) == ("warm-up step 1", 0)


def test_every_phase_is_reported_as_it_begins():
    phases = []
    spec = TrialSpec(
        workload=WorkloadRef(kind="file", target=f"{FAULTY}:healthy"),
        batch_size=3,
        probe=Probe.CPU,
        num_steps=1,
    )
    outcome = answer(spec.to_json(), lambda beat: phases.append(beat.phase))
    assert outcome.phase == ""
    assert phases == ["build", "warm-up step 1", "step 1", "evaluation", "checkpoint", ALLOCATOR_PEAK]


def test_an_allocator_peak_that_cannot_be_had_is_a_remark_and_no_failure():
    outcome = answer_to("healthy", deadline_seconds=1.0)  # too near for one step more
    assert outcome.verdict is Verdict.FITS
    assert outcome.steady.allocated_bytes is None
    assert "could not be measured: TimeoutError: the deadline" in outcome.environment["allocated_bytes"]


def test_leaving_the_interpreter_is_the_users_error():
    outcome = answer_to("leaving")
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error.message.startswith("SystemExit: 3 (")


def test_an_operator_that_depends_on_data_has_its_own_kind():
    outcome = answer_to("data_dependent")
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error.kind == "data-dependent"
    assert "measure instead" in outcome.error.message


def test_a_workload_that_does_not_exist_fails_in_its_own_words():
    outcome = answer_to("nothing_of_that_name")
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error.kind == "unknown-model"
    assert "nothing_of_that_name" in outcome.error.message


def test_a_module_that_does_not_import_shows_the_users_traceback(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("value = 1 / 0\n")
    reference = WorkloadRef(kind="file", target=f"{path}:value")
    outcome = answer(TrialSpec(workload=reference, batch_size=1, probe=Probe.CPU).to_json())
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error.kind == "user"
    assert "value = 1 / 0" in outcome.error.traceback
    assert "ZeroDivisionError" in outcome.error.traceback


def test_a_conv_algo_that_does_not_apply_is_unsupported():
    spec = json.loads(
        TrialSpec(
            workload=WorkloadRef(kind="file", target=f"{FAULTY}:healthy"), batch_size=1, probe=Probe.CPU
        ).to_json()
    )
    spec["knobs"]["conv_algo"] = "cudnn-benchmark"
    outcome = answer(json.dumps(spec))
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error.kind == "unsupported"
    assert "use onednn, native" in outcome.error.message


@pytest.mark.parametrize("text", ["{}", "no json", '{"schema":"autofit.trial-spec/0","batch_size":1}', "[]"])
def test_a_spec_of_another_version_is_refused_by_name(text):
    outcome = answer(text)
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error.kind == "protocol"
    assert "install the same autofit" in outcome.error.message


def test_a_users_error_without_a_text_is_its_name():
    told = user_error(KeyError())
    assert told.message == "KeyError"
    assert told.kind == "user"


def test_only_the_first_line_of_a_long_message_is_told():
    told = user_error(RuntimeError("the sentence\nand a page of details"))
    assert told.message == "RuntimeError: the sentence"
    assert "and a page of details" in told.traceback
