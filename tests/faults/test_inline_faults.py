"""Faults that really happen to trials on this machine, each in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from autofit_workers.spec.protocol import Evidence, Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.trials.isolate import Child
from autofit_workers.trials.run import run

pytestmark = pytest.mark.process

FAULTY = Path(__file__).with_name("faulty.py")
BUDGET_BYTES = 1200 * 2**20  # about 300 MiB of it are PyTorch's own
HEARTBEAT_SECONDS = 5.0  # on a machine at its limits even a healthy process is silent for two


def spec_of(attribute: str, **settings) -> TrialSpec:
    reference = WorkloadRef(kind="file", target=f"{FAULTY}:{attribute}")
    usual = {"batch_size": 4, "probe": Probe.CPU, "num_threads": 1, "deadline_seconds": 120.0}
    return TrialSpec(workload=reference, **{**usual, **settings})


TRIALS = {
    "hungry, little": spec_of("hungry", batch_size=1, budget_bytes=BUDGET_BYTES),
    "hungry, much": spec_of("hungry", batch_size=64, budget_bytes=BUDGET_BYTES),
    "killed under a limit": spec_of("killed", budget_bytes=BUDGET_BYTES),
    "crashed": spec_of("crash"),
    "mistaken": spec_of("mistaken"),
    "unnamed error under the limit": spec_of("unnamed_error_under_limit", budget_bytes=BUDGET_BYTES),
    "unnamed error that stays": spec_of("unnamed_error_that_stays", budget_bytes=BUDGET_BYTES),
    "stopped": spec_of("stopped", heartbeat_seconds=HEARTBEAT_SECONDS),
    "deadlocked": spec_of("deadlocked", heartbeat_seconds=HEARTBEAT_SECONDS),
    "slow": spec_of("slow", heartbeat_seconds=HEARTBEAT_SECONDS),
    "leaks shared memory": spec_of("leaks_shared_memory", budget_bytes=BUDGET_BYTES),
    "forks memory": spec_of("forks_memory", budget_bytes=BUDGET_BYTES),
    "hoards in daemons": spec_of("hoards_in_daemons", budget_bytes=BUDGET_BYTES),
    "floods": spec_of("floods"),
    "unnamed error always": spec_of("unnamed_error_always", budget_bytes=BUDGET_BYTES),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, TrialOutcome]:
    """Every trial's outcome; they run two at a time, as on a machine with two workers."""
    before = children()
    with ThreadPoolExecutor(2) as pool:
        outcomes = dict(zip(TRIALS, pool.map(run, TRIALS.values()), strict=True))
    assert children() <= before, "a trial's process was left behind"
    return outcomes


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def test_a_size_that_the_limit_allows_fits_and_says_what_it_ran_under(outcomes):
    outcome = outcomes["hungry, little"]
    assert outcome.verdict is Verdict.FITS
    assert outcome.evidence is Evidence.MEASURED_CPU
    assert (outcome.device.kind, outcome.batch_size, outcome.num_steps_done) == ("cpu", 1, 4)
    assert outcome.device.name
    assert outcome.error is None
    assert 64 * 2**20 < outcome.first_step.device_bytes <= BUDGET_BYTES
    assert 64 * 2**20 < outcome.steady.device_bytes <= BUDGET_BYTES
    assert outcome.steady.reserved_bytes is None
    assert outcome.step_seconds > 0
    assert outcome.wall_seconds > outcome.step_seconds
    assert outcome.environment["threads"] == "1"
    assert outcome.environment["OMP_NUM_THREADS"] == "1"
    assert outcome.environment["MALLOC_ARENA_MAX"] == "1"
    assert outcome.environment["MALLOC_MMAP_THRESHOLD_"] == "131072"
    assert outcome.environment["MALLOC_TRIM_THRESHOLD_"] == "131072"


def test_running_out_of_memory_is_oom_in_the_words_of_what_ran_out(outcomes):
    outcome = outcomes["hungry, much"]
    assert outcome.verdict is Verdict.OOM
    assert "DefaultCPUAllocator: can't allocate memory" in outcome.environment["out_of_memory"]
    assert outcome.num_steps_done == 0
    assert outcome.error is None


def test_a_killed_process_is_lost_and_never_taken_for_out_of_memory(outcomes):
    outcome = outcomes["killed under a limit"]
    assert outcome.verdict is Verdict.LOST
    assert outcome.environment["exit"] == "SIGKILL"
    assert "SIGKILL" in outcome.error.message


def test_a_crash_is_lost_and_leaves_its_stack_in_the_log(outcomes):
    outcome = outcomes["crashed"]
    assert outcome.verdict is Verdict.LOST
    assert outcome.environment["exit"] == "SIGSEGV"
    assert "Fatal Python error: Segmentation fault" in outcome.log_tail
    assert "in loss" in outcome.log_tail


def test_a_users_mistake_is_told_with_the_line_of_the_users_file(outcomes):
    outcome = outcomes["mistaken"]
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error.kind == "user"
    assert outcome.error.message.startswith("TypeError: ")
    assert f"({FAULTY}:" in outcome.error.message
    assert outcome.error.message.endswith(", in loss)")
    assert outcome.error.traceback.splitlines()[1].startswith(f'  File "{FAULTY}"')


def test_an_error_that_goes_away_with_the_limit_is_oom(outcomes):
    outcome = outcomes["unnamed error under the limit"]
    assert outcome.verdict is Verdict.OOM
    assert outcome.error is None
    assert "could not execute a primitive" in outcome.environment["out_of_memory"]
    assert "it completes without the limit, with a peak" in outcome.environment["out_of_memory"]
    assert 0 < outcome.steady.device_bytes < BUDGET_BYTES, "as far as it came under the limit"


def test_what_failed_once_and_for_all_is_tried_in_another_process(outcomes):
    outcome = outcomes["unnamed error that stays"]
    assert outcome.verdict is Verdict.OOM
    assert "without the limit the same size completes 1 step with" in outcome.environment["out_of_memory"]


def test_an_error_that_stays_without_the_limit_is_the_users(outcomes):
    outcome = outcomes["unnamed error always"]
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error.message.startswith("SystemError: ")
    assert "NULL" in outcome.environment["under_the_limit"]


def test_a_stopped_process_is_ended_when_it_has_been_silent_for_too_long(outcomes):
    outcome = outcomes["stopped"]
    assert outcome.verdict is Verdict.TIMEOUT
    assert "fell silent for 5 s (last heard of in step 2 after " in outcome.error.message
    assert (outcome.phase, outcome.num_steps_done) == ("step 2", 2)
    assert outcome.environment["last_heard"].startswith("last heard of in step 2 after ")


def test_a_step_that_hangs_with_the_interpreters_lock_is_ended_likewise(outcomes):
    outcome = outcomes["deadlocked"]
    assert outcome.verdict is Verdict.TIMEOUT
    assert "fell silent for 5 s (last heard of in warm-up step 1 after " in outcome.error.message


def test_a_long_operator_is_no_hang(outcomes):
    assert outcomes["slow"].verdict is Verdict.FITS


@pytest.mark.parametrize("name", ["leaks shared memory", "forks memory", "hoards in daemons"])
def test_memory_that_the_limit_does_not_see_is_out_of_memory_too(outcomes, name):
    outcome = outcomes[name]
    assert outcome.verdict is Verdict.OOM
    assert outcome.error is None
    assert f"beyond the budget of {BUDGET_BYTES} bytes" in outcome.environment["out_of_memory"]
    assert "last heard of in warm-up step 1" in outcome.environment["out_of_memory"]
    assert outcome.phase == "warm-up step 1"
    assert outcome.num_ooms == 1


def test_of_a_gigabyte_that_is_printed_both_ends_are_kept(outcomes):
    outcome = outcomes["floods"]
    assert outcome.verdict is Verdict.FITS
    assert "alpha\nxxx" in outcome.log_tail
    assert outcome.log_tail.endswith("xxx\nomega\n")
    assert len(outcome.log_tail) < 10_000
    left_out = re.search(r"\n\[([\d,]+) bytes left out\]\n", outcome.log_tail)
    assert int(left_out[1].replace(",", "")) > 2**30


def test_a_daemon_that_hides_ends_with_its_trial(tmp_path):
    pid_file = tmp_path / "pid"
    with Child({"FAULTY_PID_FILE": str(pid_file)}) as child:
        assert child.run(spec_of("leaves_a_daemon")).verdict is Verdict.FITS
        daemon = psutil.Process(int(pid_file.read_text()))
        assert "TEST" not in "".join(daemon.environ())
        assert os.getpgid(daemon.pid) != os.getpgid(child._process.group)
    assert is_gone(daemon.pid)


def test_running_out_of_memory_names_the_phase(outcomes):
    outcome = outcomes["hungry, much"]
    assert outcome.phase == "warm-up step 1"
    assert outcome.environment["out_of_memory"].endswith("(in warm-up step 1)")
    assert outcomes["hungry, little"].phase == ""


def test_a_trial_that_fits_says_what_pytorchs_allocator_came_to(outcomes):
    outcome = outcomes["hungry, little"]
    assert 64 * 2**20 < outcome.steady.allocated_bytes < 65 * 2**20
    assert outcomes["hungry, much"].steady.allocated_bytes is None


def test_a_hang_is_ended_at_its_deadline_with_every_process_of_the_trial(tmp_path):
    pid_file = tmp_path / "pid"
    before = children()
    with Child({"FAULTY_PID_FILE": str(pid_file)}) as child:
        assert child.run(spec_of("healthy")).verdict is Verdict.FITS  # torch is imported by now
        outcome = child.run(spec_of("hang", deadline_seconds=4.0))
        assert outcome.verdict is Verdict.TIMEOUT
        assert "within 4 s (last heard of in warm-up step 1 after " in outcome.error.message
        assert (outcome.phase, outcome.num_steps_done) == ("warm-up step 1", 0)
        assert is_gone(int(pid_file.read_text()))
        assert children() <= before
        assert child.run(spec_of("healthy")).verdict is Verdict.FITS


def is_gone(pid: int) -> bool:
    """Whether a process ends within seconds; the system, not we, reaps what a trial started."""
    try:
        psutil.Process(pid).wait(timeout=60)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


# Whatever starts the tests in the background may have them ignore interrupts, and children inherit that.
SUPERVISOR = """
import signal
import sys
from autofit_workers.trials.isolate import Child
from autofit_workers.spec.protocol import TrialSpec
signal.signal(signal.SIGINT, signal.default_int_handler)
child = Child({"FAULTY_PID_FILE": sys.argv[1]})
child.start(None)  # a measured trial runs outside of the boundary of predictions
print(child._process.group, flush=True)
child.run(TrialSpec.from_json(sys.argv[2]))
"""


@pytest.fixture
def supervisor(tmp_path):
    """A process that supervises a hanging trial, and the numbers of the trial's two processes."""
    pid_file = tmp_path / "pid"
    arguments = [str(pid_file), spec_of("hang").to_json()]
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, *arguments],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        trial = psutil.Process(int(process.stdout.readline()))
        while not pid_file.exists() or not pid_file.read_text():
            assert trial.is_running()
            psutil.wait_procs([trial], timeout=0.05)
        yield process, [trial.pid, int(pid_file.read_text())]
        process.kill()


def test_a_trial_does_not_outlive_a_supervisor_that_is_killed(supervisor):
    process, trial = supervisor
    process.kill()
    assert all(is_gone(pid) for pid in trial)


def test_an_interrupted_supervisor_takes_its_trial_with_it(supervisor):
    process, trial = supervisor
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert all(is_gone(pid) for pid in trial)
