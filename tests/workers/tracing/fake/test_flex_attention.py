"""`flex_attention` takes what its one kernel takes where it is compiled, and all scores where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit_workers.spec.protocol import Probe, TrialSpec, Verdict
from autofit_workers.spec.trace import Trace
from autofit_workers.spec.workloads.references import parse_reference
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.trials.run import run

BATCH, HEADS, KEY_HEADS, LENGTH, WIDTH = 2, 4, 2, 256, 16
ROWS_BYTES = BATCH * HEADS * LENGTH * 4  # float32 numbers, one for each row of scores
OUT_BYTES = BATCH * HEADS * LENGTH * WIDTH * 2
KEYS_BYTES = BATCH * KEY_HEADS * LENGTH * WIDTH * 2
NUM_STEPS = 3
_SCRIPT = f"""
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

attend, make_mask = COMPILED(flex_attention), COMPILED(create_block_mask)
project = nn.Linear({WIDTH}, {(HEADS + 2 * KEY_HEADS) * WIDTH}).cuda().bfloat16()
optimizer = torch.optim.SGD(project.parameters(), lr=0.1)
for _ in range({NUM_STEPS}):
    x = torch.randn({BATCH}, {LENGTH}, {WIDTH}).cuda().bfloat16()
    documents = torch.zeros({BATCH}, {LENGTH}, dtype=torch.long, device="cuda")
    def same_document(b, h, q, kv): return (q >= kv) & (documents[b, q] == documents[b, kv])
    mask = make_mask(same_document, {BATCH}, None, {LENGTH}, {LENGTH})
    heads = project(x).view({BATCH}, {LENGTH}, -1, {WIDTH}).transpose(1, 2)
    q, k, v = heads.split([{HEADS}, {KEY_HEADS}, {KEY_HEADS}], dim=1)
    attend(q, k, v, block_mask=mask, enable_gqa=True).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def traced(folder: Path, compiled: str) -> Trace:
    """Predicts the script, with its functions compiled in one way."""
    path = folder / "train.py"
    path.write_text(_SCRIPT.replace("COMPILED", compiled))
    spec = TrialSpec(workload=Script(path=path).reference(), batch_size=BATCH, probe=Probe.PREDICT)
    outcome = run(spec)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    return Trace.from_json(outcome.trace_json)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return traced(tmp_path_factory.mktemp("compiled"), "torch.compile")


def test_a_compiled_attention_takes_its_outputs_and_a_number_for_each_row(compiled):
    taken = [a.num_bytes for a in compiled.allocations if a.operator == "flex_attention"]
    assert taken == [ROWS_BYTES, OUT_BYTES, ROWS_BYTES] * NUM_STEPS
    backward = [a.num_bytes for a in compiled.allocations if a.operator == "flex_attention_backward"]
    assert backward == [ROWS_BYTES, OUT_BYTES, KEYS_BYTES, KEYS_BYTES] * NUM_STEPS
    assert not any(a.shape[-2:] == (LENGTH, LENGTH) for a in compiled.allocations)
    assert not any("eager" in note for note in compiled.notes)


def test_what_a_kernel_takes_while_it_runs_is_given_back_in_its_own_pass(compiled):
    positions = {mark.name: mark.position for mark in compiled.marks}
    taken = [n for n, a in enumerate(compiled.allocations) if a.operator == "flex_attention"]
    largest, out, sums = taken[:3]
    freed = [compiled.events.index(~number) for number in (largest, out, sums)]
    assert freed[0] < positions["step 1 backward"] < min(freed[1:])


def test_an_attention_that_nothing_compiles_makes_all_scores(tmp_path):
    trace = traced(tmp_path, "(lambda function: function)")
    assert (BATCH, HEADS, LENGTH, LENGTH) in {a.shape for a in trace.allocations}
    assert not any(a.operator.startswith("flex_attention") for a in trace.allocations)
    backward = next(mark.position for mark in trace.marks if mark.name == "step 1 backward")
    scores = next(n for n, a in enumerate(trace.allocations) if a.shape == (BATCH, HEADS, LENGTH, LENGTH))
    assert trace.events.index(scores) < backward


_HEADS = """
import torch
from torch.nn.attention.flex_attention import flex_attention

attend = torch.compile(flex_attention)
"""
_WORKLOAD = f"""
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from autofit_workers.workload import Workload

IMPORT

def loss(project, x):
    heads = project(x).view({BATCH}, {LENGTH}, -1, {WIDTH}).transpose(1, 2)
    return attend(*heads.chunk(3, dim=1)).sum()

net = Workload(build_model=lambda: nn.Linear({WIDTH}, {3 * HEADS * WIDTH}), loss=loss, optimizer="sgd",
               make_batch=lambda size, device: torch.ones(size, {LENGTH}, {WIDTH}, device=device))
"""


def test_what_one_program_compiles_is_eager_in_the_next_that_the_process_runs(tmp_path):
    (tmp_path / "heads_of_flex_attention.py").write_text(_HEADS)

    def makes_all_scores(where_from: str) -> bool:
        path = tmp_path / "net.py"
        path.write_text(_WORKLOAD.replace("IMPORT", where_from))
        spec = TrialSpec(workload=parse_reference(f"{path}:net"), batch_size=BATCH, probe=Probe.PREDICT)
        outcome = run(spec)
        assert outcome.verdict is Verdict.TRACED, outcome.error
        allocations = Trace.from_json(outcome.trace_json).allocations
        return (BATCH, HEADS, LENGTH, LENGTH) in {a.shape for a in allocations}

    own, imported = "attend = flex_attention", "from heads_of_flex_attention import attend"
    assert [makes_all_scores(each) for each in (imported, own, imported)] == [False, True, False]
