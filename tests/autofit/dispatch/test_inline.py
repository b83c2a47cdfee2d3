"""The inline dispatcher, by conformance and on its own."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator

import pytest

from autofit.dispatch.base import Devices
from autofit.dispatch.inline import InlineDispatcher
from autofit.errors import DispatchError
from autofit.hardware.gpus import LocalGpu
from autofit_workers.spec.protocol import Probe, TrialError, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.trials.outcomes import without_answer
from tests.conformance.dispatcher import DispatcherConformance, marked_processes

pytestmark = pytest.mark.process

SPEC = TrialSpec(workload=WorkloadRef(kind="builtin", target="any"), batch_size=1, probe=Probe.CPU)
GPU = LocalGpu(
    name="NVIDIA T4", uuid="GPU-0", architecture="sm_75", total_bytes=1, used_bytes=0, driver_version="1"
)


@pytest.fixture(scope="module")
def dispatcher(mark: str) -> Iterator[InlineDispatcher]:
    with InlineDispatcher(num_parallel=2) as dispatcher:
        yield dispatcher
    assert marked_processes(mark) == []


@pytest.fixture
def open_dispatcher() -> Callable[[], InlineDispatcher]:
    return InlineDispatcher


@pytest.fixture
def constructor() -> str:
    return "InlineDispatcher()"


class TestConformance(DispatcherConformance):
    pass


def lost(spec: TrialSpec) -> TrialOutcome:
    return without_answer(spec, Verdict.LOST, TrialError(kind="environment", message="gone"))


def test_the_machines_gpus_are_the_devices_and_take_one_trial_at_a_time():
    begun, first_begun, first_may_end = [], threading.Event(), threading.Event()

    def run(spec: TrialSpec) -> TrialOutcome:
        begun.append(spec.batch_size)
        if spec.batch_size == 1:
            first_begun.set()
            first_may_end.wait()
        return lost(spec)

    with InlineDispatcher(num_parallel=3, runner=run, gpus=lambda: (GPU, GPU)) as dispatcher:
        assert dispatcher.devices() == Devices(num_gpus=2, names=("NVIDIA T4", "NVIDIA T4"))
        assert dispatcher.capacity(Probe.CUDA) == 1
        assert dispatcher.capacity(Probe.CPU) == 3
        on_gpu = [
            dispatcher.submit(dataclasses.replace(SPEC, batch_size=n, probe=Probe.CUDA)) for n in (1, 2)
        ]
        first_begun.wait()
        dispatcher.submit(dataclasses.replace(SPEC, batch_size=3)).result()
        assert begun == [1, 3]
        first_may_end.set()
        assert [future.result().batch_size for future in on_gpu] == [1, 2]


def test_a_card_that_cuda_does_not_show_this_process_is_none(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with InlineDispatcher(gpus=lambda: (GPU,)) as dispatcher:
        assert dispatcher.devices() == Devices(num_gpus=0)
        assert dispatcher.capacity(Probe.CUDA) == 0


def test_as_many_cpu_trials_run_at_once_as_were_allowed():
    together = threading.Barrier(2, timeout=60)

    def run(spec: TrialSpec) -> TrialOutcome:
        together.wait()
        return lost(spec)

    with InlineDispatcher(num_parallel=2, runner=run) as dispatcher:
        futures = [dispatcher.submit(SPEC), dispatcher.submit(SPEC)]
        assert [future.result().verdict for future in futures] == [Verdict.LOST, Verdict.LOST]


def test_a_supervisor_that_fails_is_an_infrastructure_error_with_its_cause():
    def run(spec: TrialSpec) -> TrialOutcome:
        raise OSError("no file descriptors")

    with InlineDispatcher(runner=run) as dispatcher:
        error = dispatcher.submit(SPEC).exception()
    assert isinstance(error, DispatchError)
    assert "no file descriptors" in error.message
    assert isinstance(error.__cause__, OSError)
