"""What a rank of DeepSpeed's ZeRO allocates: predicted, and by DeepSpeed itself on the CPU."""

from __future__ import annotations

import sys

import pytest

from autofit_workers.apply.parallel import zero
from autofit_workers.spec.errors import MissingLibraryError
from autofit_workers.spec.protocol import HOST_ARCHITECTURE, Probe, Verdict
from autofit_workers.spec.trace import Category, Trace
from tests.workers.tracing.recording.test_sharding import (
    BOTH,
    large,
    live_bytes,
    predicted,
    real_rank,
    sizes_in_steps,
    trace_of,
)

pytest.importorskip("deepspeed")

RUNS = {
    "gpt=zero1:2": BOTH,
    "llama=zero2:4": BOTH,
    "llama=zero3:2": BOTH,
    "resnet=zero3:3": (HOST_ARCHITECTURE,),  # convolutions take memory on the CPU that none on a GPU do
}
BUCKET = 500_000_000  # numbers, DeepSpeed's default of `reduce_bucket_size`


@pytest.fixture(scope="module")
def real_ranks() -> dict[str, list[int]]:
    return real_rank(tuple(RUNS))


@pytest.mark.process
@pytest.mark.parametrize("run", RUNS)
def test_allocations_and_frees_are_those_of_a_real_rank(run, real_ranks):
    real = large(real_ranks[run])
    assert any(size == BUCKET * 4 for size in real) or "zero3" in run  # where it lives from the beginning
    for architecture in RUNS[run]:
        assert large(sizes_in_steps(trace_of(*run.split("="), architecture=architecture))) == real


@pytest.mark.process
@pytest.mark.parametrize("parallel", ["zero2:2", "zero3:2"])
def test_ranks_are_measured_together(parallel):
    outcome = predicted("gpt", parallel, probe=Probe.CPU, optimizer="adamw")
    assert outcome.verdict is Verdict.FITS, outcome.error
    assert len(outcome.ranks) == 2
    assert outcome.peaks.allocated_bytes > BUCKET * 4


def test_ranks_share_what_their_stage_shards():
    """ZeRO's arithmetic, of P parameters: 4 P bytes of weights in float32, 4 P and 8 P of states."""
    by_stage = {stage: trace_of("llama", f"zero{stage}:8", optimizer="adamw") for stage in (1, 2, 3)}
    alone = trace_of("llama", "ddp:1", optimizer="adamw")
    parameters, states = (live_bytes(alone, kind) for kind in (Category.PARAMETER, Category.OPTIMIZER_STATE))
    for stage, trace in by_stage.items():
        of_rank = live_bytes(trace, Category.OPTIMIZER_STATE)
        assert of_rank == pytest.approx((parameters + states) / 8, rel=0.01)  # and weights of their own
        kept = live_bytes(trace.until("step 1 input"), Category.PARAMETER)
        assert kept == pytest.approx(parameters / (8 if stage == 3 else 1), rel=0.01)
        assert {each.num_bytes for each in trace.allocations} >= {BUCKET * 4}
    assert len({each.stream for each in by_stage[3].allocations}) == 3  # it gathers and reduces beside
    assert {each.stream for each in by_stage[2].allocations} == {0}  # `overlap_comm` is off


@pytest.mark.parametrize("precision", ["amp-bf16", "amp-fp16", "bf16"])
@pytest.mark.parametrize("parallel", ["zero1:4", "zero3:4"])
def test_gradients_are_clipped_and_accumulated_under_every_precision(parallel, precision):
    knobs = {"precision": precision, "optimizer": "adamw", "clip_grad_norm": 1.0, "grad_accumulation": 4}
    trace = trace_of("gpt", parallel, **knobs)
    assert "DeepSpeed" in trace.notes[0]
    assert len(trace.notes) == 2  # none of branches on values that nobody has
    assert trace.notes[1].startswith(f"{precision} is DeepSpeed's ")
    of_rank, alone = (
        live_bytes(each, Category.OPTIMIZER_STATE)
        for each in (trace, trace_of("gpt", "ddp:1", optimizer="adamw"))
    )
    share = {"bf16": 3 / 4}.get(precision, 3 / 2)  # with the weights, in bfloat16 or in float32
    assert of_rank == pytest.approx(alone / 4 * share, rel=0.02)


def test_what_is_offloaded_is_not_on_the_card():
    knobs = {"precision": "amp-bf16", "optimizer": "adamw"}
    for stage in (1, 3):
        there, offloaded = (trace_of("gpt", f"zero{stage}:2{suffix}", **knobs) for suffix in ("", "+offload"))
        assert live_bytes(there, Category.OPTIMIZER_STATE)
        assert not live_bytes(offloaded, Category.OPTIMIZER_STATE)
        assert any("of pinned memory on the host" in note for note in offloaded.notes)
        assert not any("pinned" in note for note in there.notes)
        if stage == 3:
            assert live_bytes(offloaded, Category.PARAMETER) < live_bytes(there, Category.PARAMETER)


def test_without_deepspeed_a_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(MissingLibraryError, match=r"which is not installed .*: pip install deepspeed"):
        zero.library()


def test_gathers_and_reductions_wait_for_those_that_are_under_way():
    """DeepSpeed asks whether the first of three is over, and waits where it is not.

    In the first step it gathers every parameter; later ones keep those that are as small as these.
    """
    trace = trace_of("llama", "zero3:2")
    forward, backward, optimizer = (
        next(mark.position for mark in trace.marks if mark.name == f"step 1 {phase}")
        for phase in ("forward", "backward", "optimizer")
    )
    for start, stop in ((forward, backward), (backward, optimizer)):
        waits = [wait for wait in trace.host_waits if wait.stream and start <= wait.position < stop]
        assert len([wait for wait in waits if wait.up_to < wait.position]) > 10


def test_any_rank_can_be_predicted():
    first, last = (trace_of("llama", "zero3:3", rank=rank) for rank in (0, 2))
    assert len(first.events) == len(last.events)


def test_the_cache_is_emptied_where_deepspeed_does_so():
    assert any(wait.releases for wait in trace_of("gpt", "zero1:2").host_waits)


@pytest.mark.parametrize(
    ("name", "knobs", "options", "message"),
    [
        (
            "gpt",
            {"optimizer": "muon"},
            {},
            "--parallel zero3:2: DeepSpeed takes one optimizer, and here are 2",
        ),
        ("gpt", {"set_to_none": False}, {}, "--parallel zero3:2 drops gradients after each step"),
        ("stepping", {}, {}, "--parallel zero3:2 steps the optimizer itself, and so does the workload"),
        (
            "gpt",
            {"base": "nf4", "adapter": "lora"},
            {},
            "--parallel zero3:2 cannot be combined with base nf4",
        ),
    ],
)
def test_what_deepspeed_does_not_do_is_refused_in_a_sentence(name, knobs, options, message):
    outcome = predicted(name, "zero3:2", **options, **knobs)
    assert (outcome.verdict, outcome.error.kind) == (Verdict.FAILED, "inapplicable")
    assert outcome.error.message.startswith(message)


@pytest.mark.parametrize("name", ["fused_adam", "fused_lamb"])
def test_compiled_optimizers_are_followed_where_they_change_tensors_in_place_alone(name):
    outcome = predicted(name, "zero2:2")
    if name == "fused_adam":
        trace = Trace.from_json(outcome.trace_json)
        assert live_bytes(trace, Category.OPTIMIZER_STATE)
    else:
        assert (outcome.verdict, outcome.error.kind) == (Verdict.FAILED, "unsupported")
        assert outcome.error.message.startswith("DeepSpeed's operator fused_lamb is compiled for a GPU")
