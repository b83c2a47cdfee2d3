"""The CUDA probe on a real card, through every verdict that it can give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.conv_algo import CUDA_POLICIES
from autofit_workers.spec.knobs.optimizer import NAMED
from autofit_workers.spec.knobs.optimizer_impl import OPTIMIZER_IMPLS
from autofit_workers.spec.knobs.precision import PRECISIONS
from autofit_workers.spec.protocol import Evidence, Probe, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.trials.measure.card import Card
from autofit_workers.trials.run import run
from tests.workers.predicted import peaks_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

WORKLOADS = Path(__file__).with_name("gpu_workloads.py")
MIB = 2**20


def spec_of(attribute: str, **settings) -> TrialSpec:
    reference = WorkloadRef(kind="file", target=f"{WORKLOADS}:{attribute}")
    return TrialSpec(workload=reference, **{"batch_size": 8, "probe": Probe.CUDA, **settings})


@pytest.fixture(scope="module")
def linear():
    return run(spec_of("linear"))


def test_a_trial_without_a_budget_fits_and_is_measured(linear):
    assert linear.error is None
    assert linear.verdict is Verdict.FITS
    assert linear.evidence is Evidence.MEASURED
    assert linear.device.kind == "cuda"
    assert linear.device.name == torch.cuda.get_device_name(0)
    assert linear.num_steps_done == 4
    assert (linear.num_alloc_retries, linear.num_ooms) == (0, 0)
    assert linear.step_seconds > 0


def test_the_three_peaks_are_three_numbers_in_order(linear):
    for peaks in (linear.first_step, linear.steady):
        assert 4 * 256 * 256 * 4 < peaks.allocated_bytes <= peaks.reserved_bytes < peaks.device_bytes
    assert linear.steady.reserved_bytes % (2 * MIB) == 0


def test_the_context_is_what_the_device_holds_beside_the_allocator(linear):
    assert 50 * MIB < linear.context_bytes < 2048 * MIB
    assert linear.steady.device_bytes == linear.steady.reserved_bytes + linear.context_bytes


def test_the_same_trial_has_the_same_allocator_history(linear):
    again = run(spec_of("linear"))
    assert int(linear.environment["history_events"]) > 10
    assert again.environment["history_sha256"] == linear.environment["history_sha256"]
    assert again.steady.allocated_bytes == linear.steady.allocated_bytes


def test_a_budget_is_enforced_and_running_out_is_oom():
    fits = run(spec_of("hungry", batch_size=4, budget_bytes=512 * MIB))
    fails = run(spec_of("hungry", batch_size=16, budget_bytes=512 * MIB, is_own_budget=True))
    assert fits.verdict is Verdict.FITS
    assert fits.steady.reserved_bytes <= 512 * MIB
    assert fits.evidence is Evidence.EMULATED
    assert fails.verdict is Verdict.OOM
    assert fails.error is None
    assert fails.evidence is Evidence.MEASURED
    assert "OutOfMemoryError" in fails.environment["out_of_memory"]
    assert fails.environment["out_of_memory"].endswith("(in warm-up step 1)")
    assert fails.phase == "warm-up step 1"
    assert fails.num_ooms >= 1


_CAREFUL = """
import sys, torch
batch_size = int(sys.argv[2])
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    torch.empty(2**30, dtype=torch.uint8, device="cuda")
except RuntimeError as error:
    DOES
while True:
    model(torch.randn(batch_size, 4, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "does", ["pass", "sys.exit('no memory left')", "batch_size //= 2", "raise ValueError(1) from error"]
)
def test_a_script_that_catches_that_memory_ran_out_is_oom_still(tmp_path, does):
    (tmp_path / "careful.py").write_text(_CAREFUL.replace("DOES", does))
    script = Script(path=str(tmp_path / "careful.py"), batch_argument="-n")
    spec = TrialSpec(workload=script.reference(), batch_size=8, probe=Probe.CUDA, budget_bytes=512 * MIB)
    outcome = run(spec)
    assert outcome.verdict is Verdict.OOM, outcome.error
    assert "the script caught an out-of-memory error, once" in outcome.environment["out_of_memory"]


def test_running_out_in_the_evaluation_alone_is_oom_too():
    outcome = run(spec_of("hungry_in_evaluation", batch_size=16, budget_bytes=512 * MIB))
    assert outcome.verdict is Verdict.OOM
    assert (outcome.phase, outcome.num_steps_done) == ("evaluation", 4)
    assert outcome.steady.reserved_bytes < 512 * MIB
    assert run(spec_of("hungry_in_evaluation", batch_size=4, budget_bytes=512 * MIB)).verdict is Verdict.FITS


def test_evaluation_and_checkpoint_have_peaks_of_their_own(linear):
    assert linear.evaluation.allocated_bytes > 0
    assert linear.checkpoint.allocated_bytes > 0
    assert int(linear.environment["checkpoint_bytes"]) > 3 * 256 * 256 * 4  # weights and Adam's two


def test_a_size_that_runs_only_after_a_release_thrashes():
    outcome = run(spec_of("fragmented", budget_bytes=512 * MIB))
    assert outcome.verdict is Verdict.THRASH
    assert outcome.num_alloc_retries > 0
    assert outcome.steady.reserved_bytes <= 512 * MIB
    assert run(spec_of("fragmented", budget_bytes=1024 * MIB)).verdict is Verdict.FITS


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("vacuous", "changed no parameter"),
        ("ignores_batch_size", "ignores the batch size"),
        ("idle", "used no memory of the device"),
    ],
)
def test_work_that_is_not_done_is_invalid(attribute, words):
    outcome = run(spec_of(attribute))
    assert outcome.verdict is Verdict.INVALID
    assert words in outcome.error.message
    assert outcome.device.name == torch.cuda.get_device_name(0)


@pytest.mark.parametrize(
    ("attribute", "settings", "words"),
    [
        ("hangs", {"deadline_seconds": 60.0}, "did not end within 60 s (last heard of in step 1 after "),
        ("stops", {"heartbeat_seconds": 5.0}, "fell silent for 5 s (last heard of in step 1 after "),
    ],
)
def test_a_hang_is_ended_and_says_where_and_on_what(attribute, settings, words):
    outcome = run(spec_of(attribute, **settings))
    assert outcome.verdict is Verdict.TIMEOUT
    assert words in outcome.error.message
    assert (outcome.phase, outcome.num_steps_done) == ("step 1", 1)
    assert outcome.device.name == torch.cuda.get_device_name(0)


def test_a_killed_process_is_lost_and_leaves_the_card():
    free_bytes, _ = torch.cuda.mem_get_info(0)
    outcome = run(spec_of("killed"))
    assert outcome.verdict is Verdict.LOST
    assert outcome.environment["exit"] == "SIGKILL"
    assert outcome.device.name == torch.cuda.get_device_name(0)
    assert abs(torch.cuda.mem_get_info(0)[0] - free_bytes) < 32 * MIB


def test_a_card_whose_memory_another_process_holds_is_refused_by_its_number():
    card = Card.at_hand()
    if card.occupancy is None:
        pytest.skip("NVML is not to be had: install nvidia-ml-py")
    held = torch.empty(card.total_bytes // 2, dtype=torch.uint8, device="cuda")
    refused = run(spec_of("linear", budget_bytes=card.total_bytes * 3 // 4))
    allowed = run(spec_of("linear", budget_bytes=256 * MIB))
    assert refused.verdict is Verdict.FAILED
    assert refused.error.kind == "environment"
    assert "is busy" in refused.error.message
    assert allowed.verdict is Verdict.FITS
    assert "in use" in allowed.environment["busy"]
    assert int(allowed.environment["other_processes_bytes"]) >= held.nbytes
    del held
    torch.cuda.empty_cache()


def test_a_users_error_names_the_card_too():
    outcome = run(spec_of("mistaken"))
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error.kind == "user"
    assert outcome.device.name == torch.cuda.get_device_name(0)


@pytest.mark.parametrize("conv_algo", CUDA_POLICIES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_conv_algo_runs_in_every_precision(conv_algo, precision):
    outcome = run(spec_of("convolution", knobs=Knobs(conv_algo=conv_algo, precision=precision)))
    assert outcome.error is None
    assert outcome.verdict is Verdict.FITS
    assert outcome.num_steps_done == 4


@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(memory_format="channels_last", precision="amp-fp16"),
        Knobs(set_to_none=False),
        Knobs(compile=True),
        Knobs(allocator="expandable_segments"),
        Knobs(grad_accumulation=2),
        *(Knobs(optimizer="adam", optimizer_impl=implementation) for implementation in OPTIMIZER_IMPLS),
        Knobs(optimizer="adam", optimizer_in_backward=True),
        Knobs(clip_grad_norm=1.0, precision="amp-fp16"),
    ],
    ids=str,
)
def test_every_other_knob_runs(knobs):
    outcome = run(spec_of("convolution", knobs=knobs))
    assert outcome.error is None
    assert outcome.verdict is Verdict.FITS


@pytest.mark.parametrize(
    "optimizer", [name for name, named in NAMED.items() if not named.tells_hidden_weights]
)
def test_every_named_optimizer_keeps_what_is_predicted(optimizer):
    pytest.importorskip(NAMED[optimizer].library)
    knobs = Knobs(optimizer=optimizer)
    measured = run(spec_of("linear", knobs=knobs))
    assert measured.error is None
    architecture = "sm_{}{}".format(*torch.cuda.get_device_capability(0))
    predicted = run(spec_of("linear", knobs=knobs, probe=Probe.PREDICT, architecture=architecture))
    assert measured.steady.allocated_bytes == pytest.approx(peaks_of(predicted).allocated_bytes, rel=0.05)


def test_predictions_create_no_context_on_the_card():
    free_bytes, _ = torch.cuda.mem_get_info(0)
    outcome = run(spec_of("convolution", probe=Probe.PREDICT))
    assert outcome.verdict is Verdict.TRACED
    assert abs(torch.cuda.mem_get_info(0)[0] - free_bytes) < 32 * MIB
