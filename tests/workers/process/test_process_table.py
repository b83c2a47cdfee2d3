"""Processes as `ps` lists them are those of `/proc`, but for its own, and a child's end is seen."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from autofit_workers.process import descendants, host_memory, operating_system, process_table

pytestmark = pytest.mark.process

# A child that starts another, which leaves its group.
STARTS = (
    "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True); print(); input()"
)
VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            400000.
Pages inactive:                          300000.
Pages speculative:                         5000.
Pages throttled:                              0.
Pages wired down:                        120000.
"Translation faults":                 123456789.
"""


@pytest.fixture(params=["linux", "darwin"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a system, which the code takes this one for."""
    monkeypatch.setattr(sys, "platform", request.param)
    if request.param == "darwin":
        monkeypatch.delattr(os, "waitid")
    return request.param


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", STARTS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        process.stdout.readline()
        yield process
        process.kill()


def test_descendants_in_other_groups_are_found_and_killed(system: str, child: subprocess.Popen[bytes]):
    (below,) = descendants.below(child.pid)
    assert sorted(descendants.of_trial(child.pid)) == sorted([child.pid, below])
    descendants.kill_below(child.pid)
    assert descendants.below(child.pid) == []
    assert not process_table.has_exited(child.pid)


def test_the_end_of_a_child_is_seen_before_it_is_reaped(system: str, child: subprocess.Popen[bytes]):
    descendants.kill_below(child.pid)
    child.kill()
    give_up = time.monotonic() + 10
    while not process_table.has_exited(child.pid):
        assert time.monotonic() < give_up
    os.kill(child.pid, 0)  # its id is still taken
    assert child.wait() == -9


def test_ps_does_not_list_itself(system: str):
    before = {*descendants.below(os.getpid())}  # other tests' children may live yet
    assert {*descendants.below(os.getpid())} <= before


def test_memory_of_a_process_is_told_and_of_none_is_0(system: str, child: subprocess.Popen[bytes]):
    num_bytes = host_memory.resident_bytes(child.pid)
    assert 2**20 < num_bytes < 2**28
    assert num_bytes % 1024 == 0
    child.kill()
    child.wait()
    assert host_memory.resident_bytes(child.pid) == 0


def test_pages_that_macos_has_left_are_counted_in_bytes():
    assert host_memory.pages_left(VM_STAT) == 16384 * (10000 + 300000 + 5000)
    assert host_memory.pages_left("no statistics") is None


def test_a_system_without_vm_stat_does_not_know_what_is_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(host_memory, "_VM_STAT", "/nowhere/vm_stat")
    assert host_memory.available_bytes() is None


def test_macos_tells_the_peak_in_bytes(monkeypatch: pytest.MonkeyPatch):
    here = operating_system.peak_resident_bytes()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert here / 1100 < operating_system.peak_resident_bytes() < here / 900


@pytest.mark.parametrize(
    ("platform", "machine", "told"),
    [
        ("linux", "x86_64", ""),
        ("linux", "aarch64", "nobody ran autofit here"),
        ("darwin", "arm64", "nobody ran autofit here"),
        ("darwin", "x86_64", "nothing is known"),
    ],
)
def test_what_is_known_of_a_platform(monkeypatch: pytest.MonkeyPatch, platform: str, machine: str, told: str):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(operating_system.platform, "machine", lambda: machine)
    assert operating_system.untested()[: len(told) or None] == told
