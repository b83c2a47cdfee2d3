"""A warm tracer forks what a command would have started: the same answers, rights and ends."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from autofit_workers.process import warm_tracer
from autofit_workers.process.child_process import NO_GPU
from autofit_workers.process.warm_tracer import WarmTracer
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.trials import isolate
from autofit_workers.trials.isolate import Child
from autofit_workers.trials.run import run

pytestmark = pytest.mark.process

_START_SECONDS = 60.0
# A workload that tells by its error what it found; a step of it is never traced.
_TELLS = """
import json, os, random, sys
def workload():
    told = {}
%s
    raise RuntimeError("told " + json.dumps(told))
"""

_SCRIPT = """
import os, sys, torch
print("threads", torch.get_num_threads(), "arguments", sys.argv[1:])
open("written", "w").write("by the script")
model = torch.nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(int(sys.argv[2]), 8, device="cuda")).sum().backward()
    optimizer.step()
"""


def until(is_so: Callable[[], object]) -> None:
    """Waits until something is so."""
    give_up = time.monotonic() + _START_SECONDS
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warm")


@pytest.fixture
def tracer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmTracer]:
    """A warm tracer that runs, and that this process's predicting processes are forked by."""
    tracer = started(folder, monkeypatch)
    yield tracer
    end(tracer)


def started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> WarmTracer:
    tracer = WarmTracer(folder, warm_tracer.of_this_process)
    monkeypatch.setattr(isolate, "_warm_tracer", tracer)
    tracer.was_missed = True
    isolate.leave_warm_tracer(lambda: None)
    until(tracer.state)
    tracer.was_missed = False
    return tracer


def end(tracer: WarmTracer) -> None:
    if (state := tracer.state()) is not None:
        os.kill(state.process, signal.SIGKILL)
        until(lambda: not psutil.pid_exists(state.process) or is_dead(state.process))


def is_dead(process: int) -> bool:
    return psutil.Process(process).status() == psutil.STATUS_ZOMBIE


def spec_of(target: str, kind: str = "builtin", batch_size: int = 2) -> TrialSpec:
    return TrialSpec(
        workload=WorkloadRef(kind=kind, target=target), batch_size=batch_size, probe=Probe.PREDICT
    )


def alike(outcome: TrialOutcome) -> TrialOutcome:
    """The outcome without what differs from run to run."""
    return dataclasses.replace(outcome, wall_seconds=0.0)


def told_by(tmp_path: Path, *lines: str) -> str:
    """What a workload of these lines tells when it is traced."""
    path = tmp_path / "tells.py"
    path.write_text(_TELLS % "\n".join(f"    {line}" for line in lines))
    with Child(NO_GPU) as child:
        outcome = child.run(spec_of(f"{path}:workload", "file"))
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error is not None
    assert "told " in outcome.error.message
    return outcome.error.message


def test_a_fork_answers_what_a_process_of_its_own_answers(tracer, monkeypatch):
    with Child(NO_GPU) as child:
        forked = [child.run(spec_of("davenet", batch_size=size)) for size in (2, 3)]
        assert psutil.Process(child._process.group).parent().pid == tracer.state().process
    assert not tracer.was_missed
    monkeypatch.setattr(isolate, "_warm_tracer", None)
    with Child(NO_GPU) as child:
        own = [child.run(spec_of("davenet", batch_size=size)) for size in (2, 3)]
    assert list(map(alike, forked)) == list(map(alike, own))
    assert forked[0].verdict is Verdict.TRACED


def test_a_fork_has_the_folder_and_the_variables_of_its_command(tracer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOLD_BY_THE_COMMAND", "yes")
    monkeypatch.setenv("SOME_TOKEN", "a secret")
    told = told_by(
        tmp_path,
        "told['folder'] = os.getcwd()",
        "told['said'] = [os.environ.get('TOLD_BY_THE_COMMAND'), os.environ.get('SOME_TOKEN')]",
    )
    assert f'"folder": "{tmp_path}"' in told
    assert '"said": ["yes", null]' in told


def test_a_fork_is_inside_the_boundary_and_cannot_change_its_program(tracer, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("as it was")
    told = told_by(
        tmp_path,
        f"open({str(mine)!r}, 'w').write('changed')",
        "told['pid'] = os.getpid()",
        "told['errors'] = []",
        "for change in (lambda: os.chmod('/proc/self/exe', 0o755), lambda: os.utime('/proc/self/exe')):",
        "    try:",
        "        change()",
        "    except OSError as error:",
        "        told['errors'].append(error.strerror)",
        "told['open'] = []",
        "for number in os.listdir('/proc/self/fd'):",
        "    if os.path.islink(f'/proc/self/fd/{number}'):  # all but that of the listing",
        "        told['open'].append(os.readlink(f'/proc/self/fd/{number}'))",
    )
    assert mine.read_text() == "as it was"
    assert '"errors": ["Read-only file system", "Read-only file system"]' in told
    assert "socket" not in told
    assert str(tracer._folder) not in told


def test_two_forks_draw_different_numbers(tracer, tmp_path):
    lines = ("import numpy", "told['drawn'] = [random.random(), float(numpy.random.random())]")
    first, second = (told_by(tmp_path, *lines).partition("drawn")[2].split()[1:3] for _ in range(2))
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_a_fork_that_dies_is_told_with_its_signal(tracer, tmp_path):
    path = tmp_path / "dies.py"
    path.write_text("import os\ndef workload():\n    os.kill(os.getpid(), 11)\n")
    with Child(NO_GPU) as child:
        outcome = child.run(spec_of(f"{path}:workload", "file"))
    assert outcome.verdict is Verdict.LOST
    assert "SIGSEGV" in outcome.error.message


def test_a_trial_survives_the_tracer_that_it_was_forked_by(tracer):
    with Child(NO_GPU) as child:
        assert child.run(spec_of("davenet")).verdict is Verdict.TRACED
        os.kill(tracer.state().process, signal.SIGKILL)
        until(lambda: tracer.state() is None)
        assert child.run(spec_of("davenet", batch_size=3)).verdict is Verdict.TRACED


def test_nothing_of_a_trial_survives_its_command(tracer):
    child = Child(NO_GPU)
    child.run(spec_of("davenet"))
    forked = psutil.Process(child._process.group)
    processes = [forked, *forked.children(recursive=True)]
    child.close()
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert not alive


def test_a_stopped_tracer_costs_a_command_half_a_second(tracer):
    process = psutil.Process(tracer.state().process)
    process.suspend()
    try:
        begin = time.monotonic()
        assert tracer.fork({}, (0, 1, 2)) is None
        assert time.monotonic() - begin < 3
        assert tracer.was_missed
    finally:
        process.resume()
    until(tracer.state)  # it has noticed that nobody waits


def test_a_fork_whose_command_has_given_up_reads_nothing_of_its_pipes(tracer, monkeypatch):
    """Another process has the pipes then: a request that both read would be answered by either."""
    process = psutil.Process(tracer.state().process)
    process.suspend()
    requests, ours = os.pipe()
    try:
        assert tracer.fork({}, (requests, os.open(os.devnull, os.O_WRONLY), 2)) is None
        os.write(ours, spec_of("davenet").to_json().encode() + b"\n")
    finally:
        process.resume()
    until(tracer.state)
    until(lambda: not [child for child in process.children() if child.status() != psutil.STATUS_ZOMBIE])
    os.set_blocking(requests, False)
    assert os.read(requests, 10)


def test_there_is_never_more_than_one(tracer):
    first = tracer.state().process
    tracer.was_missed = True
    isolate.leave_warm_tracer(lambda: None)
    time.sleep(0.5)
    assert tracer.state().process == first


def test_a_command_with_other_surroundings_ends_it(tracer, folder):
    process = psutil.Process(tracer.state().process)
    other = WarmTracer(folder, lambda: "of other packages")
    assert other.state().is_alike is False
    assert other.fork({}, (0, 1, 2)) is None
    assert other.was_missed
    psutil.wait_procs([process], timeout=15)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_command_whose_model_needs_other_libraries_ends_it(tracer, folder):
    process = psutil.Process(tracer.state().process)
    other = WarmTracer(folder, warm_tracer.of_this_process, libraries=("timm",))
    assert other.fork(dict(os.environ), (0, 1, 2)) is None
    psutil.wait_procs([process], timeout=15)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_script_is_traced_alike_by_a_fork(tracer, tmp_path, monkeypatch):
    path = tmp_path / "train.py"
    path.write_text(_SCRIPT)
    spec = TrialSpec(
        workload=Script(path=path, batch_argument="--batch-size").reference(),
        batch_size=4,
        probe=Probe.PREDICT,
    )
    forked = run(spec)
    assert not tracer.was_missed
    monkeypatch.setattr(isolate, "_warm_tracer", None)
    own = run(spec)
    assert "threads 1 arguments ['--batch-size', '4']" in forked.log_tail
    assert dataclasses.replace(alike(forked), log_tail=own.log_tail) == alike(own)
    assert forked.verdict is Verdict.TRACED
    assert not (tmp_path / "written").exists()


def test_what_is_no_request_is_not_answered_and_does_no_harm(tracer):
    for said in (b"", b"\0", b"\0\0\0\4null", b"\0\0\0\2[]", b"\xff\xff\xff\xff{", b"\0\0\0\2{}"):
        with tracer._connected(1.0) as connection:
            connection.sendall(said)
    assert tracer.state() is not None


def test_a_fork_has_no_descriptor_of_the_shell_that_the_tracer_was_started_from(
    folder, tmp_path, monkeypatch
):
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    opened = os.open(victim, os.O_RDWR | os.O_APPEND)
    os.set_inheritable(opened, True)  # as by `9>>victim` in a shell
    tracer = started(folder, monkeypatch)
    os.close(opened)
    try:
        told = told_by(
            tmp_path,
            "told['open'] = []",
            "for number in os.listdir('/proc/self/fd'):",
            "    if os.path.islink(f'/proc/self/fd/{number}'):",
            "        told['open'].append(os.readlink(f'/proc/self/fd/{number}'))",
        )
        assert not tracer.was_missed
        assert str(victim) not in told
    finally:
        end(tracer)


def test_no_tracer_serves_where_imports_depend_on_the_current_folder(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "src")
    with pytest.raises(OSError, match="PYTHONPATH"):
        warm_tracer.of_this_process()


def test_a_deleted_folder_is_left_to_a_process_of_its_own(tracer, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert tracer.fork({}, (0, 1, 2)) is None


def test_no_second_tracer_is_started_where_the_first_was_of_no_use(tmp_path):
    tracer = WarmTracer(tmp_path, lambda: "of some surroundings")
    (tmp_path / "lock").write_text("of some surroundings")
    tracer.start(["-c", "raise SystemExit"], {})
    assert not (tmp_path / "socket").exists()
    (tmp_path / "lock").write_text("of others")
    tracer.start(["-c", "raise SystemExit"], {})
    assert (tmp_path / "socket").exists()
