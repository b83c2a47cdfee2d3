"""A trial seen from outside: heartbeats, memory, and the kernel's word on a death."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from autofit_workers.process import descendants, host_memory
from autofit_workers.spec.protocol import (
    ALLOCATOR_PEAK,
    Device,
    Heartbeat,
    Probe,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from autofit_workers.trials import isolate
from autofit_workers.trials.supervision import Supervision, TooMuchMemoryError

MIB = 2**20
SPEC = TrialSpec(
    workload=WorkloadRef(kind="builtin", target="vgg16"),
    batch_size=4,
    probe=Probe.CPU,
    budget_bytes=128 * MIB,
)
HOLDER = """
import mmap, os, signal
shared = mmap.mmap(-1, 64 * 2**20)
shared.write(b"1" * len(shared))
os.fork()
shared.find(b"2", 0)  # either has looked at all of it
own = b"1" * (64 * 2**20)
print(flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def group() -> Iterator[int]:
    """Two processes with 64 MiB each, and 64 MiB more that they share."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        for _ in range(2):
            leader.stdout.readline()
        yield leader.pid
        for process in (*psutil.Process(leader.pid).children(), leader):
            process.kill()


def watched(spec: TrialSpec, group: int, **doors) -> Supervision:
    """A supervision after its first sample of the trial's memory, in its first step."""
    supervision = Supervision(spec, group, **doors)
    assert supervision.hears(Heartbeat(phase="step 1", num_steps_done=1).to_json())
    while supervision._excess is None:
        before = supervision._next_sample
        supervision.attend()
        if supervision._next_sample > before:
            break
    return supervision


def test_memory_of_a_group_counts_once_where_it_is_shared(group):
    processes = descendants.of_trial(group)
    assert len(processes) == 2
    assert sum(map(host_memory.resident_bytes, processes)) > 256 * MIB
    assert 192 * MIB < sum(map(host_memory.proportional_bytes, processes)) < 240 * MIB


def test_a_process_that_is_gone_holds_nothing():
    assert descendants.of_trial(2**22 + 1) == []
    assert host_memory.resident_bytes(2**22 + 1) == 0
    assert host_memory.proportional_bytes(2**22 + 1) == 0


def test_a_group_beyond_the_budget_ends_its_trial(group):
    with pytest.raises(TooMuchMemoryError, match=r"processes \(2\) hold \d+ bytes .*budget of 134217728"):
        watched(SPEC, group).attend()


@pytest.mark.parametrize("phase", ["build", ALLOCATOR_PEAK])
def test_outside_of_the_steps_the_budget_does_not_count(group, phase):
    supervision = watched(SPEC, group)
    supervision.hears(Heartbeat(phase=phase).to_json())
    supervision.attend()


def test_a_group_within_the_budget_is_left_alone(group):
    watched(dataclasses.replace(SPEC, budget_bytes=256 * MIB), group).attend()


@pytest.mark.parametrize("probe", Probe)
def test_whatever_the_probe_a_group_beyond_what_the_machine_had_left_is_ended(group, probe):
    spec = dataclasses.replace(SPEC, probe=probe, budget_bytes=None)
    watched(spec, group).attend()
    with pytest.raises(TooMuchMemoryError, match="this machine has for them"):
        watched(spec, group, available_bytes=lambda: 8 * MIB)


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_a_limit_that_the_user_gave_holds_where_nobody_knows_what_is_left(group, system, monkeypatch):
    monkeypatch.setattr(sys, "platform", system)
    setup = dataclasses.replace(SPEC.setup, most_host_bytes=64 * MIB)
    spec = dataclasses.replace(SPEC, probe=Probe.PREDICT, budget_bytes=None, setup=setup)
    with pytest.raises(TooMuchMemoryError, match="more than the 67108864 bytes"):
        watched(spec, group, available_bytes=lambda: None)


@pytest.mark.parametrize("line", ["", "{}", "[1]", "no outcome", SPEC.to_json()])
def test_what_is_no_heartbeat_is_left_to_be_the_answer(group, line):
    assert not Supervision(SPEC, group).hears(line)


def died(spec: TrialSpec, group: int, death: str, num_kills: int):
    counts = iter([3, 3 + num_kills])
    supervision = Supervision(spec, group, num_kernel_kills=lambda: next(counts))
    supervision.hears(
        Heartbeat(phase="step 2", num_steps_done=2, device=Device(kind="cuda", name="a card")).to_json()
    )
    return isolate._unfinished(spec, EOFError(), death, supervision)


def test_a_process_that_the_kernel_killed_for_memory_ran_out_of_it(group):
    outcome = died(SPEC, group, "SIGKILL", 1)
    assert outcome.verdict is Verdict.OOM
    assert outcome.error is None
    assert "oom_kill count went from 3 to 4" in outcome.environment["out_of_memory"]
    assert (outcome.phase, outcome.num_steps_done, outcome.num_ooms) == ("step 2", 2, 1)
    assert outcome.device == Device(kind="cuda", name="a card")


def test_another_death_is_lost_and_says_where_the_trial_was(group):
    killed, crashed = died(SPEC, group, "SIGKILL", 0), died(SPEC, group, "SIGSEGV", 1)
    assert (killed.verdict, crashed.verdict) == (Verdict.LOST,) * 2
    assert "(SIGKILL, last heard of in step 2 after 0.0 s)" in killed.error.message


def test_a_prediction_that_takes_too_much_memory_says_nothing_of_its_size(group):
    outcome = died(dataclasses.replace(SPEC, probe=Probe.PREDICT), group, "SIGKILL", 1)
    assert outcome.verdict is Verdict.LOST
    assert "ran out of this machine's memory" in outcome.error.message


def test_the_kernels_counts_are_read_where_it_keeps_them():
    assert host_memory.num_kernel_kills() >= 0
    assert 0 < host_memory.available_bytes() <= psutil.virtual_memory().total
