"""What a trial's process takes on the CPU is measured once for the searches of a process."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future

from autofit.predict.host_curve import ASSUMED_PROCESS, HostProcess
from autofit.tuning.curves import host_process
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    LIBRARIES_KIND,
    Device,
    Evidence,
    Peaks,
    Probe,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)

MIB = 1024**2
SPEC = TrialSpec(
    workload=WorkloadRef(kind="builtin", target="step"), batch_size=1, probe=Probe.CPU, num_threads=1
)
MEASURED = HostProcess(resident_bytes=300 * MIB, private_bytes=310 * MIB)


class IdleTrials:
    """Runs trials that take what an idle process does, or are lost as long as `is_lost`."""

    def __init__(self) -> None:
        self.threads: list[int | None] = []
        self.kinds: list[str] = []
        self.is_lost = False
        self.cannot_import = False

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        self.threads.append(spec.num_threads)
        self.kinds.append(spec.workload.kind)
        is_lost = self.is_lost or (self.cannot_import and spec.workload.kind == LIBRARIES_KIND)
        peaks = Peaks(device_bytes=MEASURED.resident_bytes, private_bytes=MEASURED.private_bytes)
        future: Future[TrialOutcome] = Future()
        future.set_result(
            TrialOutcome(
                verdict=Verdict.LOST if is_lost else Verdict.FITS,
                evidence=Evidence.MEASURED_CPU,
                device=Device(kind="cpu", name="processor"),
                batch_size=spec.batch_size,
                knobs=Knobs(),
                steady=Peaks() if is_lost else peaks,
            )
        )
        return future


def test_it_is_measured_once_for_each_cluster_and_number_of_threads() -> None:
    trials, two_threads = IdleTrials(), dataclasses.replace(SPEC, num_threads=2)
    for address, spec in (("a:1", SPEC), ("b:1", SPEC), ("a:1", two_threads), ("a:1", SPEC), ("b:1", SPEC)):
        assert host_process(spec, trials.submit, address=address) == MEASURED
    assert trials.threads == [1, 1, 2]


def test_what_could_not_be_measured_is_assumed_and_tried_again_by_the_next_search() -> None:
    trials = IdleTrials()
    trials.is_lost = True
    assert host_process(SPEC, trials.submit, address="c:1") == ASSUMED_PROCESS
    trials.is_lost = False
    assert host_process(SPEC, trials.submit, address="c:1") == MEASURED


def test_of_a_pickled_workload_the_process_has_its_libraries_once_for_each() -> None:
    trials = IdleTrials()
    specs = [
        dataclasses.replace(SPEC, workload=WorkloadRef(kind="pickle", target="Module", source_sha256=digest))
        for digest in ("aa", "bb", "aa")
    ]
    for spec in specs:
        assert host_process(spec, trials.submit, address="d:1") == MEASURED
    assert trials.kinds == [LIBRARIES_KIND] * 2


def test_where_the_libraries_cannot_be_measured_pytorch_alone_is() -> None:
    trials = IdleTrials()
    trials.cannot_import = True
    pickled = WorkloadRef(kind="pickle", target="Module", source_sha256="cc")
    assert host_process(dataclasses.replace(SPEC, workload=pickled), trials.submit, address="e:1") == MEASURED
    assert trials.kinds == [LIBRARIES_KIND, "import"]
