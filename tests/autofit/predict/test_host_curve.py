"""Where a search by trials on the CPU begins: the blocks of the step in a process that was measured."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from autofit.predict.host_curve import ASSUMED_PROCESS, HostCurve, HostProcess, baseline_spec
from autofit.predict.predictor import Predictor
from autofit.settings.goals import Risk
from autofit.tuning.curves import CurveSet
from autofit_workers.replay.curve import host_blocks
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.trials import door
from autofit_workers.workload.workload import Workload

MIB = 1024**2
NUM_THREADS = 2
# Of the libraries' files, by which two runs of one program differ where other programs run beside them.
FILE_PAGES_BYTES = 64 * MIB
PROCESS = HostProcess(resident_bytes=300 * MIB, private_bytes=310 * MIB)


@pytest.fixture
def steps(make_trace: Any) -> PeakCurve:
    return PeakCurve.through([make_trace(size) for size in (4, 6, 10)])


def test_a_peak_is_the_process_and_its_blocks(steps: PeakCurve) -> None:
    first, second = HostCurve(steps, lambda: PROCESS)(8), HostCurve(steps, lambda: PROCESS)(9)
    assert 300 * MIB + 260 * MIB <= first.resident_bytes < 300 * MIB + 260 * MIB + 64 * 1024
    assert first.private_bytes - first.resident_bytes == 10 * MIB
    assert second.likely_bytes - first.likely_bytes == 20 * MIB
    assert first.low_bytes < first.likely_bytes == first.private_bytes < first.high_bytes


def test_a_search_begins_on_the_safe_side_unless_told_otherwise(steps: PeakCurve) -> None:
    peak = HostCurve(steps, lambda: PROCESS)(8)
    for risk, expected in ((Risk.SAFE, peak.high_bytes), (Risk.LIKELY, peak.likely_bytes)):
        curve = HostCurve(steps, lambda: PROCESS, risk=risk)
        assert curve.peak_reserved_bytes(8) == curve.lower_bound_bytes(8) == expected


def test_curves_of_the_cpu_say_where_to_begin_and_predict_no_answer(steps: PeakCurve) -> None:
    curves = CurveSet()
    curves.add_host(Knobs(), HostCurve(steps, lambda: PROCESS))
    assert curves.prior(Knobs()) is not None
    assert curves.by_knobs == {}
    assert curves.trace_identity == host_blocks.identity(steps.trace)
    assert not curves.needs_traces


def test_a_process_that_could_not_be_measured_is_assumed(lost_outcome: TrialOutcome) -> None:
    assert HostProcess.of(None) == HostProcess.of(lost_outcome) == ASSUMED_PROCESS


@functools.cache
def measured_process() -> HostProcess:
    outcome = door.run(baseline_spec(num_threads=NUM_THREADS, deadline_seconds=300.0))
    assert outcome.verdict is Verdict.FITS, outcome.error
    return HostProcess.of(outcome)


@pytest.mark.process
def test_a_process_of_a_pickled_workload_holds_what_its_libraries_do(tmp_path: Path) -> None:
    (tmp_path / "large_library.py").write_text(f"held = b'x' * {96 * MIB}", encoding="utf-8")

    def build_model() -> torch.nn.Module:
        import large_library  # type: ignore[import-not-found]

        assert large_library.held
        return torch.nn.Linear(4096, 16384)  # 256 MiB, which the process must not hold

    def of_no_step(*_: Any) -> Any:
        raise AssertionError("no step of it runs")

    workload = Workload(build_model=build_model, make_batch=of_no_step, loss=of_no_step, optimizer="adam")
    reference = workload.reference()
    assert reference.kind == "pickle"
    with_library = dataclasses.replace(reference, search_path=(*reference.search_path, str(tmp_path)))
    outcome = door.run(
        baseline_spec(num_threads=NUM_THREADS, deadline_seconds=300.0, libraries_of=with_library)
    )
    assert outcome.verdict is Verdict.FITS, outcome.error
    more = HostProcess.of(outcome).resident_bytes - measured_process().resident_bytes
    assert 90 * MIB < more < 90 * MIB + FILE_PAGES_BYTES + 16 * MIB


@pytest.mark.process
@pytest.mark.parametrize("name", ["perceptron", "images", "adversaries"])
def test_a_real_trial_lies_within_the_interval(name: str, small_file: str) -> None:
    reference = WorkloadRef(kind="file", target=f"{small_file}:{name}")
    predictor = Predictor(reference, door.run, for_host=True, num_threads=NUM_THREADS)
    found = predictor.host_steps(Knobs())
    assert not found.needs_traces
    predicted = HostCurve(found, measured_process)(16)
    outcome = door.run(
        TrialSpec(workload=reference, batch_size=16, probe=Probe.CPU, num_steps=1, num_threads=NUM_THREADS)
    )
    assert outcome.budgeted_bytes is not None
    assert outcome.peaks.private_bytes is not None
    assert predicted.low_bytes <= outcome.budgeted_bytes <= predicted.high_bytes + FILE_PAGES_BYTES
    assert outcome.peaks.private_bytes <= predicted.high_bytes
    assert predicted.likely_bytes > measured_process().resident_bytes + 64 * MIB


@pytest.fixture
def lost_outcome() -> TrialOutcome:
    spec = baseline_spec(num_threads=1, deadline_seconds=0.0)
    return door.run(spec)


@pytest.fixture
def small_file(tmp_path: Any) -> str:
    """Workloads of about 100 MiB."""
    path = tmp_path / "small.py"
    path.write_text(
        """
import torch
from torch import nn
from autofit_workers.workload import Workload

def mean_square(model, batch):
    return model(batch).square().mean()

perceptron = Workload(
    build_model=lambda: nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)),
    make_batch=lambda batch_size, device: torch.randn(batch_size, 1024, device=device),
    loss=mean_square, optimizer="sgd-momentum",
)
images = Workload(
    build_model=lambda: nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 20, 3, padding=1), nn.BatchNorm2d(20),
    ),
    make_batch=lambda batch_size, device: torch.randn(batch_size, 3, 112, 112, device=device),
    loss=mean_square, optimizer="sgd",
)

def layers():
    return nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))

def adversaries():
    parts = {"made": layers(), "average": layers().requires_grad_(False), "told": layers()}
    return nn.ModuleDict(parts)

def step(model, optimizers, batch):
    made, told = optimizers
    output = model.made(batch)
    told.zero_grad()
    mean_square(model.told, output.detach()).backward()
    nn.utils.clip_grad_norm_(model.told.parameters(), 1.0)
    told.step()
    made.zero_grad()
    mean_square(model.told, output).backward()
    nn.utils.clip_grad_norm_(model.made.parameters(), 1.0)
    made.step()
    with torch.no_grad():
        for average, weight in zip(model.average.parameters(), model.made.parameters()):
            average.lerp_(weight, 0.01)

adversaries = Workload(  # two optimizers, clipping and averaged weights in one step
    build_model=adversaries,
    make_batch=lambda batch_size, device: torch.randn(batch_size, 1024, device=device),
    loss=mean_square,
    optimizer=lambda model: [torch.optim.Adam(part.parameters()) for part in (model.made, model.told)],
    step=step,
)
"""
    )
    return str(path)
