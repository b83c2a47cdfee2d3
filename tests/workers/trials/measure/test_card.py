"""Who else is on a card, as the driver tells it; the driver is faked by its door."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from autofit_workers.spec.errors import BusyDeviceError
from autofit_workers.trials.measure.card import Nvml, Occupancy, Tenant

MIB, GIB = 2**20, 2**30


class Driver:
    """NVIDIA's management library on a machine with one card of 80 GiB."""

    nvmlMemory_v2 = 2  # noqa: N815 - the library's name

    class NVMLError(Exception):
        pass

    class NVMLError_NotFound(NVMLError):  # noqa: N801, N818 - the library's name
        pass

    def __init__(self, *, computing=(), drawing=(), free_bytes=80 * GIB, prefix="GPU-"):
        self.computing, self.drawing = computing, drawing
        self.free_bytes, self.prefix = free_bytes, prefix

    def nvmlInit(self):  # noqa: N802 - the library's name
        pass

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "580.1"

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid != f"{self.prefix}1":
            raise self.NVMLError_NotFound
        return "handle"

    def nvmlDeviceGetMemoryInfo(self, handle, version):  # noqa: N802
        assert (handle, version) == ("handle", 2)
        return SimpleNamespace(total=81 * GIB, reserved=1 * GIB, free=self.free_bytes)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.computing]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):  # noqa: N802
        if self.drawing is None:
            raise self.NVMLError  # a slice does not support it
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.drawing]


def occupancy(**driver) -> Occupancy:
    return Nvml.of_card("1", Driver(**driver)).occupancy()


def test_other_processes_are_told_with_what_they_hold_and_this_one_is_not():
    found = occupancy(computing=[(7, 30 * GIB), (os.getpid(), GIB)], drawing=[(9, None)], free_bytes=40 * GIB)
    assert found.tenants == (Tenant(7, 30 * GIB), Tenant(9, None))
    assert (found.used_bytes, found.free_bytes) == (40 * GIB, 40 * GIB)
    assert str(found) == "40960 MiB in use (process 7 holds 30720 MiB; process 9 holds an unknown amount)"


def test_a_slice_tells_of_computing_processes_alone():
    assert occupancy(computing=[(7, GIB)], drawing=None, prefix="MIG-").tenants == (Tenant(7, GIB),)


def test_a_card_that_the_driver_does_not_know_is_none():
    assert Nvml.of_card("2", Driver()) is None


def test_memory_of_processes_that_a_container_hides_is_busy_too():
    found = occupancy(free_bytes=40 * GIB)
    assert found.is_busy
    assert "by processes that the driver does not name" in str(found)


def test_an_idle_card_is_not_busy_and_gives_all_that_it_has():
    found = occupancy(free_bytes=80 * GIB - 20 * MIB)
    assert not found.is_busy
    found.demand(80 * GIB, "a card")


def test_a_trial_that_would_not_have_its_memory_to_itself_is_refused_by_name():
    found = occupancy(computing=[(7, 30 * GIB)], free_bytes=50 * GIB)
    found.demand(49 * GIB, "a card")
    found.demand(None, "a card")
    with pytest.raises(
        BusyDeviceError, match=r"a card is busy: .*process 7 holds 30720 MiB.*51200 MiB are free"
    ):
        found.demand(50 * GIB, "a card")


def test_what_one_process_holds_is_told_where_the_driver_names_it():
    nvml = Nvml.of_card("1", Driver(computing=[(7, 30 * GIB)]))
    assert (nvml.bytes_of(7), nvml.bytes_of(8)) == (30 * GIB, None)
