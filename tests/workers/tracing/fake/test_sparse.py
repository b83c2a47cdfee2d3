"""Sparse layouts: their parts are what takes memory, and libraries' buffers are spans."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.trace import CUSPARSE_BUFFER, SORT_BUFFER, Allocation, Category, Trace
from autofit_workers.trials.run import run
from tests.workers.tracing.sparse_workloads import EDGES, HIDDEN, NODES, ROWS, TOKENS, TWICE, WIDTH

FILE = Path(__file__).parents[1] / "sparse_workloads.py"
OPERATORS = Path(__file__).parent / "sparse_operators.py"
BATCH = 4


def predicted(name: str) -> TrialOutcome:
    ref = WorkloadRef(kind="file", target=f"{FILE}:{name}")
    return run(TrialSpec(workload=ref, batch_size=BATCH, probe=Probe.PREDICT))


@functools.cache
def traced(name: str) -> Trace:
    outcome = predicted(name)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    return Trace.from_json(outcome.trace_json)


def made(trace: Trace, phase: str) -> list[Allocation]:
    """What the second step allocates in a phase."""
    names = [mark.name for mark in trace.marks]
    place = names.index(f"step 2 {phase}")
    stop = trace.marks[place + 1].position
    return [trace.allocations[each] for each in trace.events[trace.marks[place].position : stop] if each >= 0]


def test_operators_return_what_the_cpu_returns():
    said = subprocess.run(
        [sys.executable, "-W", "ignore", OPERATORS], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(said) == 1, said
    assert int(said[0].split()[0]) > 30


def test_a_graph_takes_the_memory_of_its_parts():
    parameters = [a for a in traced("by_rows").allocations if a.category is Category.PARAMETER]
    of_graph = sorted(a.num_bytes for a in parameters if a.shape[-1:] in ((EDGES,), (NODES + 1,)))
    assert of_graph == sorted([8 * (NODES + 1), 8 * EDGES, 4 * EDGES])


def test_a_product_by_rows_takes_zeros_its_result_and_a_buffer_of_cusparse():
    forward = made(traced("by_rows"), "forward")
    matrices = [a for a in forward if a.shape == (NODES, HIDDEN)]
    assert len(matrices) >= 3  # the features, zeros to add to, the result
    (buffer,) = (a for a in forward if a.operator == CUSPARSE_BUFFER)
    assert buffer.span_bytes == (0, 8 * (NODES + 1) + 12 * EDGES)
    assert 0 < buffer.num_bytes <= buffer.span_bytes[1]


def test_coordinates_are_coalesced_to_those_that_are_different():
    trace = traced("by_coordinates")
    assert trace.assumptions == ()
    forward = made(trace, "forward")
    assert (2, EDGES - TWICE) in {a.shape for a in forward}
    (sort,) = (a for a in forward if a.operator == SORT_BUFFER)
    assert sort.span_bytes[0] == 16 * EDGES


def test_a_looked_up_table_has_the_gradient_of_the_rows_that_were_looked_up():
    trace = traced("lookup")
    assert trace.assumptions == ()
    whole = 4 * ROWS * WIDTH
    dense = [a for a in trace.allocations if a.num_bytes == whole]
    assert sorted(a.category for a in dense) == [Category.OPTIMIZER_STATE] * 2 + [Category.PARAMETER]
    assert 4 * BATCH * TOKENS * WIDTH in {a.num_bytes for a in made(trace, "backward")}
    updated = [a for a in made(trace, "optimizer") if a.shape == (TOKENS, WIDTH)]
    assert updated  # tokens of all samples are the same


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("in_halves", "\"addmm_sparse_cuda\" not implemented for 'Half'"),  # as PyTorch says
        ("picks", "aten.index_select.default on a tensor of layout sparse_coo at "),
        ("without_a_size", "depends on values, which a prediction does not have: give torch.sparse_coo"),
    ],
)
def test_what_cannot_be_followed_is_said_with_its_line(name, words):
    outcome = predicted(name)
    assert outcome.verdict is Verdict.FAILED
    assert words in outcome.error.message
    assert name == "in_halves" or f" at {FILE}:" in outcome.error.message
