"""A trial's process: what it is given, what it leaves, how it ends."""

from __future__ import annotations

import _thread
import dataclasses
import signal
from pathlib import Path

import psutil
import pytest

from autofit_workers.process import child_process
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialSpec, Verdict, WorkloadRef
from autofit_workers.trials.isolate import Child, environment_of, run_interruptibly
from autofit_workers.trials.outcomes import without_answer

FAULTY = Path(__file__).parents[2] / "faults" / "faulty.py"


def spec_of(attribute: str, **settings) -> TrialSpec:
    reference = WorkloadRef(kind="file", target=f"{FAULTY}:{attribute}")
    return TrialSpec(workload=reference, **{"batch_size": 2, "probe": Probe.CPU, **settings})


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@pytest.fixture(scope="module")
def others():
    """Processes that other tests keep, such as the one of the predictions."""
    return children()


@pytest.fixture(scope="module")
def child(others):
    with Child(environment_of(spec_of("healthy"))) as child:
        child.start()
        yield child
    assert children() <= others


@pytest.mark.process
def test_a_process_is_given_its_environment_and_no_gpu(child):
    outcome = child.run(spec_of("chatty"))
    assert outcome.verdict is Verdict.FITS
    assert "CUDA_VISIBLE_DEVICES is ''" in outcome.log_tail
    assert outcome.environment["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.process
def test_a_process_that_was_asked_nothing_is_ended_without_waiting_for_its_imports():
    idle = Child(environment_of(spec_of("healthy")))
    before = children()
    idle.start()
    assert len(children() - before) == 1
    idle.close()
    assert children() <= before
    assert idle.busy_seconds == idle.start_seconds == 0


@pytest.mark.process
def test_a_process_runs_one_trial_at_a_time_and_says_when_it_is_busy(child):
    with child._lock:  # as while a trial runs
        assert child.run_if_free(spec_of("healthy")) is None
    busy_seconds = child.busy_seconds
    assert child.run_if_free(spec_of("healthy")).verdict is Verdict.FITS
    assert child.busy_seconds > busy_seconds
    assert child.start_seconds > 0


@pytest.mark.process
def test_nothing_is_put_in_front_of_the_import_path(child):
    assert str(Path.cwd()) not in child.run(spec_of("chatty")).log_tail.split(";")[0]


@pytest.mark.process
def test_a_warm_process_runs_trial_after_trial_and_each_log_is_its_own(child, others):
    chatty, healthy = child.run(spec_of("chatty")), child.run(spec_of("healthy"))
    assert chatty.log_tail
    assert healthy.log_tail == ""
    assert len(children() - others) == 1


@pytest.mark.process
def test_a_spec_larger_than_a_pipe_arrives_whole(child):
    spec = spec_of("healthy")
    padded = dataclasses.replace(spec.workload, payload_base64="A" * 300_000)  # a pipe holds 65536
    assert child.run(dataclasses.replace(spec, workload=padded)).verdict is Verdict.FITS


@pytest.mark.process
def test_a_trial_that_failed_leaves_a_process_that_can_go_on(child):
    assert child.run(spec_of("mistaken")).verdict is Verdict.FAILED
    assert child.run(spec_of("healthy")).verdict is Verdict.FITS


@pytest.mark.process
def test_what_cannot_be_read_as_an_outcome_is_a_lost_trial(child):
    outcome = child.run(spec_of("garbled"))
    assert outcome.verdict is Verdict.LOST
    assert outcome.error.kind == "protocol"
    assert child.run(spec_of("healthy")).verdict is Verdict.FITS


@pytest.mark.process
def test_a_process_that_dies_between_trials_is_replaced(child, others):
    (process,) = children() - others
    process.kill()
    psutil.wait_procs([process], timeout=10)
    assert child.run(spec_of("healthy")).verdict is Verdict.FITS
    assert len(children() - others) == 1


def test_closing_ends_a_process_that_is_still_starting():
    before = children()
    child = Child({})
    child.start()
    assert len(children() - before) == 1
    child.close()
    assert children() <= before
    child.close()


def test_a_process_that_cannot_be_started_is_a_lost_trial(monkeypatch, tmp_path):
    monkeypatch.setattr(child_process.sys, "executable", str(tmp_path / "no-python"))
    outcome = Child({}).run(spec_of("healthy"))
    assert outcome.verdict is Verdict.LOST
    assert outcome.error.kind == "environment"
    assert "no-python" in outcome.error.message


@pytest.mark.parametrize(
    ("probe", "num_threads", "given"),
    [
        (Probe.PREDICT, 2, {"CUDA_VISIBLE_DEVICES": ""}),
        (Probe.CUDA, None, {}),
        (Probe.CUDA, 4, {"OMP_NUM_THREADS": "4"}),
    ],
)
def test_only_cpu_trials_pin_malloc_and_only_cuda_trials_see_a_gpu(probe, num_threads, given):
    assert environment_of(spec_of("healthy", probe=probe, num_threads=num_threads)) == given


def test_what_a_backend_reads_when_it_is_loaded_is_set_before():
    spec = spec_of("healthy", probe=Probe.CUDA, knobs=Knobs(conv_algo="cudnn-capped:64"))
    assert environment_of(spec) == {"CUDNN_CONV_WSCAP_DBG": "64"}


def test_the_allocators_settings_are_set_before_under_both_of_their_names():
    spec = spec_of("healthy", probe=Probe.CUDA, knobs=Knobs(allocator="max_split:128"))
    assert environment_of(spec) == dict.fromkeys(
        ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "max_split_size_mb:128"
    )


def test_the_supervisors_own_environment_is_left_as_it_is():
    before = dict(child_process.os.environ)
    given = environment_of(spec_of("healthy", num_threads=3))
    assert given["OMP_NUM_THREADS"] == "3"
    assert dict(child_process.os.environ) == before


@pytest.fixture
def interrupts_are_raised():
    """Whatever starts the tests in the background may have them ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.process
def test_an_interruption_while_a_process_is_being_ended_leaves_none(interrupts_are_raised):
    before = children()

    def run(spec):
        child = Child(environment_of(spec))
        child.start(None)
        assert len(children() - before) == 1
        _thread.interrupt_main()  # raised in the main thread before its next line
        child.close()

    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(run, spec_of("healthy"))
    assert children() <= before


def test_a_trial_that_runs_interruptibly_gives_its_outcome_and_its_error():
    outcome = without_answer(spec_of("healthy"), Verdict.FITS, None)
    assert run_interruptibly(lambda _: outcome, spec_of("healthy")) is outcome

    def run(spec):
        raise OSError("no file descriptors")

    with pytest.raises(OSError, match="descriptors"):
        run_interruptibly(run, spec_of("healthy"))
