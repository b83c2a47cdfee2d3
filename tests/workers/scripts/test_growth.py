"""Training loops that keep more memory with each step, and loops that look as if they did."""

from __future__ import annotations

import pytest

from autofit_workers.replay.curve.growth import LiveAfterSteps
from autofit_workers.spec.protocol import Probe, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.trace import Trace
from autofit_workers.trials.run import run
from tests.workers.scripts.growing_loops import CLEAN, HEAD, LEAKS

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("warm_tracer")]  # a process for each script


@pytest.mark.parametrize("name", LEAKS)
def test_what_each_step_keeps_is_found_by_its_line(traced, name):
    loop, num_bytes = LEAKS[name]
    (line,) = [number for number, text in enumerate((HEAD + loop).splitlines(), 1) if "# grows" in text]
    trace = traced(HEAD + loop)
    keepers = dict(trace.seen.keepers)
    growths = LiveAfterSteps.of(trace).growths
    assert {int(keepers.get(each.source, each.source).split(":")[1]) for each in growths} == {line}
    assert sum(each.bytes_per_step for each in growths) == pytest.approx(num_bytes, rel=0.05)


@pytest.mark.parametrize("name", CLEAN)
def test_what_warms_up_fills_or_differs_is_no_growth(traced, name):
    trace = traced(HEAD + CLEAN[name])
    assert LiveAfterSteps.of(trace).growths == ()
    assert trace.seen.is_to_end


_WORKLOAD = """
import torch
from torch import nn
from autofit import Workload

outputs = []

def step(model, optimizer, batch):
    output = model(batch)
    optimizer.zero_grad()
    output.square().mean().backward()
    optimizer.step()
    outputs.append(output.detach())

def make_batch(batch_size, device):
    return torch.zeros(batch_size, 256, device=device)

workload = Workload(
    build_model=lambda: nn.Linear(256, 128), make_batch=make_batch, loss=None, optimizer="sgd", step=step
)
"""


def test_a_workloads_own_step_may_grow_too(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(_WORKLOAD)
    ref = WorkloadRef(kind="file", target=f"{path}:workload", search_path=(str(tmp_path),))
    outcome = run(TrialSpec(workload=ref, batch_size=64, probe=Probe.PREDICT))
    assert outcome.verdict is Verdict.TRACED, outcome.error
    (growth,) = LiveAfterSteps.of(Trace.from_json(outcome.trace_json)).growths
    line = next(number for number, text in enumerate(_WORKLOAD.splitlines(), 1) if "output = model" in text)
    assert growth.source == f"{path}:{line}:step"
    assert growth.bytes_per_step == 64 * 128 * 4
