"""Compiled steps are followed: their wrappers allocate what PyTorch's compiler plans."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from autofit_workers.spec.protocol import Verdict, WorkloadRef
from autofit_workers.spec.setup import Parallel, Setup
from autofit_workers.spec.trace import GRAPHS_POOL, Trace
from autofit_workers.trials import door
from tests.workers.conftest import predict_spec

_FOLDER = Path(__file__).parents[3]
_SHARDED = Path(__file__).with_name("sharded_workloads.py")
# PyTorch's compiler leaves recurrent layers to cuDNN: none of its graphs has anything to generate.
_COMPILED = (
    "perceptron",
    "convolutions",
    "decoder",
    "llama",
    "unet",
    "experts",
    "broken",
    "dynamic",
    "autocast",
)


@pytest.fixture(scope="module")
def compared() -> dict[str, dict[str, Any]]:
    """Traces of all models of `compiled_models.py`, by name."""
    made = subprocess.run(
        [sys.executable, "-m", "tests.workers.tracing.compiled_models"],
        cwd=_FOLDER,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in made.stdout.splitlines() if line.startswith("{")]
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("name", _COMPILED)
def test_a_wrapper_allocates_what_inductor_plans(compared, name):
    row = compared[name]
    assert row["notes"] == []
    num_graphs = 2 if name == "broken" else 1
    calls = [tuple(call) for call in row["calls"]]
    if name == "dynamic":
        calls = calls[:4]  # the third size runs the code of the second, whose estimate is of the second
    forward = [call for number, call in enumerate(calls) if number // num_graphs % 2 == 0]
    backward = [call for number, call in enumerate(calls) if number // num_graphs % 2 == 1]
    assert len(forward) == len(backward) > 0
    assert all(traced == pytest.approx(planned, rel=0.005) for traced, planned in forward)
    # The plan counts the gradient that backward begins with, which the engine may free before the peak.
    assert all(0.8 * planned <= traced <= 1.005 * planned for traced, planned in backward)


def test_a_size_that_changes_is_compiled_once_more_and_then_runs_for_every_size(compared):
    forward = [traced for traced, _planned in compared["dynamic"]["calls"][::2]]
    assert len(forward) == 3  # steps of 4, 6 and 8 samples
    assert forward[2] - forward[1] == pytest.approx(forward[1] - forward[0], rel=0.01)


def test_code_for_any_size_is_compiled_once(compared):
    row = compared["any size"]
    assert row["notes"] == []
    (first, _), (second, _) = row["calls"][::2]
    assert first < second


def test_what_cannot_be_lowered_in_time_is_followed_as_eager_code_and_told(compared):
    row = compared["late"]
    assert row["calls"] == []
    (note,) = row["notes"]
    assert "followed as eager code" in note
    assert "it took more than 0 s" in note
    assert "aten.native_dropout" in row["kernels"]


def test_autocast_compiles_other_types_than_none(compared):
    (plain, _), (cast, _) = compared["decoder"]["calls"][0], compared["autocast"]["calls"][0]
    assert cast < 0.75 * plain


def test_allocations_of_a_wrapper_name_modules_and_lines_of_the_model(compared):
    row = compared["decoder"]
    assert {"first.mlp.0", "second.mlp.2"} <= set(row["modules"])
    assert row["files"] == ["compiled_models.py"]
    assert any(kernel.startswith("inductor.poi_fused") for kernel in row["kernels"])
    assert "aten.mm.out" in row["kernels"]


def test_a_recurrent_layer_runs_as_eager_code(compared):
    assert compared["recurrent"]["calls"] == []
    assert "aten._cudnn_rnn" in compared["recurrent"]["kernels"]


def test_the_knob_compiles_the_model(trace_of):
    compiled = trace_of("small:blocks", 64, compile=True)
    assert compiled.seen.num_eager_graphs == 0
    assert any(call.work.operator.startswith("inductor.") for call in compiled.work)
    assert not any(call.work.operator == "aten.relu" for call in compiled.work)


def test_a_product_with_the_number_0_is_compiled(trace_of):
    trace = trace_of("small:kept_out", 64, compile=True)
    assert trace.seen.num_eager_graphs == 0
    assert trace.notes == ()


def test_a_budget_of_activations_keeps_less_and_computes_more(trace_of):
    whole, part = (
        trace_of("small:blocks", 64, compile=True, activation_budget=share) for share in (None, 0.3)
    )
    assert _kept(part) < _kept(whole)
    assert len(part.work) > len(whole.work)


def test_cuda_graphs_have_a_pool_of_their_own_with_a_copy_of_the_batch(trace_of):
    plain, graphs = (trace_of("small:blocks", 64, compile=way) for way in (True, "mode=reduce-overhead"))
    assert graphs.seen.num_eager_graphs == 0
    assert {each.stream for each in graphs.allocations} == {0, GRAPHS_POOL}
    assert {each.stream for each in plain.allocations} == {0}
    in_pool = [each for each in graphs.allocations if each.stream == GRAPHS_POOL]
    outside = [each for each in graphs.allocations if each.stream == 0]
    wrappers = ("aten.empty_strided", "aten.mm.out", "aten.addmm.out")
    assert not any(each.operator in wrappers for each in outside if each.category != "parameter")
    (batch,) = {each.num_bytes for each in graphs.allocations if each.category == "input"}
    num_steps = sum(mark.name.endswith("backward") for mark in graphs.marks)
    num_copies = len(graphs.allocations) - len(plain.allocations)
    assert num_copies == 2 * num_steps  # the batch, and the gradient that backward begins with
    assert sum(each.num_bytes == batch for each in in_pool) >= num_steps


@pytest.mark.parametrize(
    ("workload", "way"), [("blocks", "mode=max-autotune-no-cudagraphs"), ("tuned_blocks", True)]
)
def test_benchmarks_of_max_autotune_take_memory_in_the_first_step(trace_of, workload, way):
    plain = trace_of("small:blocks", 64, compile=True)
    tuned = trace_of(f"small:{workload}", 64, compile=way)
    assert any("benchmarks" in note for note in tuned.notes)
    l2_bytes = 40 * 2**20
    buffers = [number for number, each in enumerate(tuned.allocations) if each.num_bytes == l2_bytes]
    assert buffers
    assert not any(each.num_bytes == l2_bytes for each in plain.allocations)
    assert not any("benchmarks" in note for note in plain.notes)
    second_step = next(mark.position for mark in tuned.marks if mark.name.startswith("step 2"))
    assert all(number in tuned.events[:second_step] for number in buffers)
    assert all(~number in tuned.events[:second_step] for number in buffers)


def test_a_budget_of_activations_wants_a_compiled_model(outcome_of):
    outcome = outcome_of("perceptron", activation_budget=0.5)
    assert outcome.error.kind == "inapplicable"
    assert "add compile" in outcome.error.message


def test_a_prediction_tells_which_graph_it_compiles(outcome_of):
    phases: list[str] = []
    with door.reported_to(lambda beat: phases.append(beat.phase)):
        outcome_of("blocks", 32, compile=True)
    begun = list(dict.fromkeys(phases))
    assert begun[:3] == ["prediction", "compiling graph 1", "compiling graph 2"]  # another batch size follows
    assert phases[-1] == "prediction"
    phases.clear()
    outcome_of("blocks", 32)
    assert phases == []


@pytest.mark.parametrize("parallel", ["ddp:2", "fsdp:2"])
def test_ranks_of_a_compiled_model_exchange_what_others_do(parallel):
    eager, compiled = (_of_ranks(parallel, compile=way) for way in (False, True))
    assert compiled.seen.num_eager_graphs == 0
    assert any(call.work.operator.startswith("inductor.") for call in compiled.work)
    assert _exchanged(compiled) == _exchanged(eager) != {}


def test_a_compiled_model_on_the_cpu_is_refused(outcome_of):
    outcome = outcome_of("perceptron", compile=True, architecture="cpu")
    assert outcome.verdict is not Verdict.TRACED
    assert "leave compile out" in outcome.error.message


def _of_ranks(parallel: str, **knobs: Any) -> Trace:
    spec = predict_spec("small:attention", 4, **knobs)
    workload = WorkloadRef(kind="file", target=f"{_SHARDED}:gpt")
    outcome = door.run(
        dataclasses.replace(spec, workload=workload, setup=Setup(parallel=Parallel.parse(parallel)))
    )
    assert outcome.trace_json is not None, outcome.error
    return Trace.from_json(outcome.trace_json)


def _exchanged(trace: Trace) -> Counter[str]:
    """Bytes that collectives take, by operator: DDP's buckets follow the order of gradients."""
    bytes_of: Counter[str] = Counter()
    for call in trace.work:
        if call.work.group is not None:
            bytes_of[call.work.operator] += call.work.inputs[0].num_bytes
    return bytes_of


def _kept(trace: Trace) -> int:
    """Bytes alive when the second step's backward begins."""
    position = next(mark.position for mark in trace.marks if mark.name == "step 2 backward")
    return sum(
        trace.allocations[event].num_bytes if event >= 0 else -trace.allocations[~event].num_bytes
        for event in trace.events[:position]
    )


@pytest.mark.process
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles for the CPU with g++")
def test_wrappers_that_run_on_the_cpu_allocate_what_inductor_plans_too(tmp_path):
    names = ("perceptron", "llama", "experts")  # without operators that allocate what they return
    made = subprocess.run(
        [sys.executable, "-m", "tests.workers.tracing.compiled_on_cpu", *names],
        cwd=_FOLDER,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in made.stdout.splitlines() if line.startswith("{")]
    assert [row["name"] for row in rows] == list(names)
    for row in rows:
        forward, backward = row["calls"][::2], row["calls"][1::2]
        assert len(forward) == len(backward) == 2
        assert all(ran == planned for ran, planned in forward)
        assert all(0.8 * planned <= ran <= planned for ran, planned in backward)
