"""Trials of several ranks, with gloo on the CPU, that end in every way; one rank's fault ends them all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from autofit_workers.spec.protocol import Evidence, Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.setup import Parallel, Setup
from autofit_workers.trials.run import run
from tests.conformance.dispatcher import survivors

pytestmark = pytest.mark.process

FAULTY = Path(__file__).with_name("faulty.py")
MIB = 2**20
BUDGET_BYTES = 1200 * MIB
ROOT = Path(__file__).parents[2]
COORDINATOR = """
import sys
from autofit_workers.spec.protocol import TrialSpec
from autofit_workers.trials.run import run
run(TrialSpec.from_json(sys.argv[1]))
"""


def spec_of(attribute: str, *, parallel: str = "ddp:2", **settings) -> TrialSpec:
    reference = WorkloadRef(kind="file", target=f"{FAULTY}:{attribute}")
    usual = {"probe": Probe.CPU, "num_threads": 1, "deadline_seconds": 120.0, "budget_bytes": BUDGET_BYTES}
    setup = Setup(parallel=Parallel.parse(parallel))
    return TrialSpec(workload=reference, batch_size=4, setup=setup, **{**usual, **settings})


def outcome_of(attribute: str, **settings) -> TrialOutcome:
    """The trial's outcome, once nothing of it is left."""
    before = set(psutil.Process().children(recursive=True))
    outcome = run(spec_of(attribute, **settings))
    assert set(psutil.Process().children(recursive=True)) <= before, "a rank was left behind"
    _require_no_listener(outcome)
    return outcome


def _require_no_listener(outcome: TrialOutcome) -> None:
    port = int(outcome.environment["MASTER_PORT"])
    listening = [each for each in psutil.Process().net_connections("tcp") if each.status == "LISTEN"]
    assert port not in [each.laddr.port for each in listening]


def test_ranks_that_fit_have_their_own_peaks_and_the_worst_is_the_trials():
    outcome = outcome_of("uneven_ranks")
    assert (outcome.verdict, outcome.evidence) == (Verdict.FITS, Evidence.MEASURED_CPU)
    assert (outcome.parallel, outcome.rank, outcome.num_steps_done) == ("ddp:2", 1, 4)
    small, large = (each.peaks for each in outcome.ranks)
    assert outcome.peaks == large
    assert large.allocated_bytes - small.allocated_bytes > 63 * MIB
    assert large.device_bytes - small.device_bytes > 32 * MIB


@pytest.mark.parametrize(
    ("parallel", "share", "num_kept", "num_batches"),
    [
        ("ddp:2", 1, 4, 2),  # parameters, gradients, their buckets, momenta
        ("fsdp:2", 1 / 2, 3, 2),
        ("tp:2", 1 / 2, 3, 1),
    ],
)
def test_each_rank_has_its_part_of_the_model(parallel: str, share: float, num_kept: int, num_batches: int):
    outcome = outcome_of("sharded_ranks", parallel=parallel)
    assert (outcome.verdict, outcome.parallel) == (Verdict.FITS, parallel)
    part_bytes = share * 2 * 8 * (MIB // 2) * 4
    # Parameters and momenta, and little beside them.
    assert 2 * part_bytes <= int(outcome.environment["checkpoint_bytes"]) < 2.2 * part_bytes
    assert all(rank.peaks.allocated_bytes > num_kept * part_bytes for rank in outcome.ranks)
    assert outcome.samples_per_second == pytest.approx(num_batches * 4 / outcome.step_seconds)


def test_a_rank_that_runs_out_of_memory_is_oom_for_all():
    outcome = outcome_of("hungry_rank")
    assert (outcome.verdict, outcome.rank, outcome.error) == (Verdict.OOM, 1, None)
    assert outcome.environment["out_of_memory"].startswith("rank 1 of 2: RuntimeError: ")
    assert "DefaultCPUAllocator: can't allocate memory" in outcome.environment["out_of_memory"]


def test_a_failure_that_goes_away_with_the_limit_is_tried_again_with_all_ranks():
    outcome = outcome_of("rank_with_unnamed_error_under_limit")
    assert (outcome.verdict, outcome.rank, outcome.error) == (Verdict.OOM, 1, None)
    assert "without the limit the same size completes" in outcome.environment["out_of_memory"]


def test_a_mistake_on_one_rank_is_told_with_its_number_and_ends_the_others():
    outcome = outcome_of("mistaken_rank", parallel="ddp:3")
    assert (outcome.verdict, outcome.rank) == (Verdict.FAILED, 1)
    assert outcome.error.kind == "user"
    assert outcome.error.message.startswith("rank 1 of 3: TypeError: ")
    assert f"({FAULTY}:" in outcome.error.message


def test_a_killed_rank_is_lost_whatever_the_others_say_of_it():
    outcome = outcome_of("killed_rank")
    assert (outcome.verdict, outcome.rank) == (Verdict.LOST, 1)
    assert outcome.environment["exit"] == "SIGKILL"
    assert outcome.error.message.startswith("rank 1 of 2: the trial's process died (SIGKILL, ")


def test_a_rank_that_hangs_while_others_wait_for_it_ends_them_all_at_the_deadline():
    outcome = outcome_of("hung_rank", deadline_seconds=15.0)
    assert outcome.verdict is Verdict.TIMEOUT
    assert outcome.phase == "step 1"
    assert outcome.error.message.startswith("2 of 2 ranks, of which some may wait for others: the trial did")


def test_no_rank_outlives_a_coordinator_that_is_killed(tmp_path):
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    coordinator = subprocess.Popen(
        [sys.executable, "-c", COORDINATOR, spec_of("waiting_ranks").to_json()],
        env={**os.environ, "PYTHONPATH": str(ROOT), "FAULTY_PID_FILE": str(pids)},
        cwd=tmp_path,
    )
    # Which writes too, so that it sees no end between two of the ranks.
    with os.fdopen(os.open(pids, os.O_RDWR), "r+b", buffering=0) as lines:
        ranks = [psutil.Process(int(lines.readline())) for _ in range(2)]
    coordinator.send_signal(signal.SIGKILL)
    coordinator.wait()
    assert survivors(ranks) == []
