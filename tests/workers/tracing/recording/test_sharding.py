"""What a rank of a sharded model allocates: predicted, and by PyTorch's own code on the CPU."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    HOST_ARCHITECTURE,
    Probe,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from autofit_workers.spec.setup import Parallel, Setup
from autofit_workers.spec.trace import AlikeRanks, Allocation, Category, Trace
from autofit_workers.trials import door
from tests.workers.tracing.sharded_workloads import BATCH_SIZE_OF_TRACKER
from tests.workers.tracing.test_against_cpu import canonical

FILE = Path(__file__).parents[1] / "sharded_workloads.py"
# Below are what kernels of the CPU take for themselves, and numbers that ranks exchange.
SMALLEST_BYTES = 4096
RANDOM_STATE_BYTES = torch.get_rng_state().nbytes  # which a schedule puts aside, on the host
BOTH = (HOST_ARCHITECTURE, "sm_80")
# Convolutions take memory on the CPU that none on a GPU do.
RUNS = {
    "gpt=fsdp:2": BOTH,
    "llama=fsdp:2": BOTH,
    "resnet=fsdp:2": (HOST_ARCHITECTURE,),
    "perceptrons=tp:2": BOTH,
    "llama=tp:2": BOTH,
    "llama=hsdp:2x2": BOTH,
    "llama=fsdp:2,tp:2": BOTH,
    "mixtral=ep:2": BOTH,
    "mixtral=fsdp:2,ep:2": BOTH,
    "gpt=fsdp1:2": BOTH,
    "llama=fsdp1:2": BOTH,
    "gpt=fsdp1:2+grad-op": BOTH,
    "gpt=fsdp1:2+no-shard": BOTH,
    "resnet=fsdp1:2": (HOST_ARCHITECTURE,),
}
# All to the byte but two. Of bfloat16, the CPU's layer norms keep their statistics in bfloat16 and a GPU's in
# float32: 0.16 % more. Of the network with convolutions the tracker counts one map more: 0.63 %.
TRACKED = (
    "gpt=fsdp:4={}",
    "llama=fsdp:8={}",
    "llama=hsdp:2x2={}",
    "llama=tp:2={}",
    "llama=fsdp:2,tp:2={}",
    "resnet=fsdp:2={}",
    'gpt=fsdp:4={"precision": "amp-bf16"}',
    'llama_squared=tp:2={"precision": "amp-bf16"}',
    'gpt=fsdp:4={"checkpointing": "blocks"}',
    'gpt=fsdp:4={"grad_accumulation": 2}',
)


def predicted(
    name: str,
    parallel: str,
    architecture: str = "sm_80",
    rank: int = 0,
    batch_size: int = 4,
    *,
    probe: Probe = Probe.PREDICT,
    num_threads: int | None = None,
    with_alike_ranks: bool = False,
    **knobs,
) -> TrialOutcome:
    return door.run(
        TrialSpec(
            workload=WorkloadRef(kind="file", target=f"{FILE}:{name}"),
            batch_size=batch_size,
            probe=probe,
            architecture=architecture,
            num_threads=num_threads,
            setup=Setup(parallel=Parallel.parse(parallel), rank=rank, mode=knobs.pop("mode", None)),
            knobs=Knobs(**knobs),
            with_alike_ranks=with_alike_ranks,
        )
    )


def trace_of(*args, **options) -> Trace:
    outcome = predicted(*args, **options)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    return Trace.from_json(outcome.trace_json)


def sizes_in_steps(trace: Trace) -> list[int]:
    """Bytes of every allocation of two steps, negative for a free."""
    start, stop = (
        next(mark.position for mark in trace.marks if mark.name == f"step {step} input") for step in (1, 3)
    )
    sizes = [a.num_bytes for a in trace.allocations]
    return [sizes[event] if event >= 0 else -sizes[~event] for event in trace.events[start:stop]]


def large(sizes: list[int]) -> list[int]:
    return canonical(
        [size for size in sizes if abs(size) >= SMALLEST_BYTES and abs(size) != RANDOM_STATE_BYTES]
    )


def real_rank(words: tuple[str, ...]) -> dict[str, list[int]]:
    """What a rank allocates and frees in a group whose collectives are over when they return."""
    command = [sys.executable, "-m", "tests.workers.tracing.sharded_workloads", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=FILE.parents[3], check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[int]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def real_ranks() -> dict[str, list[int]]:
    return real_rank((*RUNS, *(f"tracked:{run}" for run in TRACKED)))


@pytest.mark.process
@pytest.mark.parametrize("run", RUNS)
def test_allocations_and_frees_are_those_of_a_real_rank(run, real_ranks):
    real = large(real_ranks[run])
    assert real
    for architecture in RUNS[run]:
        assert large(sizes_in_steps(trace_of(*run.split("="), architecture=architecture))) == real


@pytest.mark.process
@pytest.mark.parametrize("run", TRACKED)
def test_what_lives_at_most_is_what_the_tracker_of_pytorch_counts(run, real_ranks):
    name, parallel, knobs = run.split("=", 2)
    trace = trace_of(name, parallel, batch_size=BATCH_SIZE_OF_TRACKER, **json.loads(knobs))
    start, stop = (
        next(mark.position for mark in trace.marks if mark.name == f"step {step} input") for step in (2, 3)
    )
    sizes = [a.num_bytes for a in trace.allocations]
    live = list(itertools.accumulate(sizes[e] if e >= 0 else -sizes[~e] for e in trace.events[:stop]))
    assert max(live[start:]) == pytest.approx(real_ranks[f"tracked:{run}"][-1], rel=0.01)


def test_the_answer_says_how_the_model_was_sharded():
    notes = trace_of("gpt", "fsdp:4", precision="amp-bf16").notes
    assert "fully_shard on each of 3 blocks, then on the model" in notes
    assert "amp-bf16 is the MixedPrecisionPolicy of fully_shard, without autocast" in notes
    assert not trace_of("gpt", "ddp:4").notes


def live_bytes(trace: Trace, category: Category) -> int:
    alive = set()
    for event in trace.events:
        alive.add(event) if event >= 0 else alive.discard(~event)
    return sum(trace.allocations[i].num_bytes for i in alive if trace.allocations[i].category is category)


def test_a_rank_keeps_its_share_of_parameters_and_optimizer_states():
    alone, sharded = trace_of("llama", "ddp:1"), trace_of("llama", "fsdp:8")
    for category in (Category.PARAMETER, Category.OPTIMIZER_STATE):
        assert live_bytes(sharded, category) < live_bytes(alone, category) / 7


@pytest.mark.parametrize("parallel", ["fsdp:4", "hsdp:2x2", "fsdp:2,tp:2", "fsdp1:4", "fsdp1:4+no-shard"])
def test_what_is_offloaded_is_on_the_host(parallel):
    """Parameters and gradients are pinned there: of a shard of P/N numbers in float32 8 P/N bytes."""
    knobs = {"optimizer": "adamw", "precision": "amp-bf16"}
    with_offload = parallel.replace(",", "+offload,") if "," in parallel else f"{parallel}+offload"
    there, offloaded = (trace_of("llama", each, **knobs) for each in (parallel, with_offload))
    assert offloaded.parallel == with_offload
    kinds = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
    parameters, gradients, states = (live_bytes(there, kind) for kind in kinds)
    assert min(parameters, gradients, states) > 2**18
    assert sum(live_bytes(offloaded, kind) for kind in kinds) < parameters / 100
    num_mib = -(-(parameters + gradients) // 2**20)
    assert f"this rank has {num_mib} MiB of pinned memory on the host" in offloaded.notes[-1]


def test_clipped_and_accumulated_gradients_are_on_the_host():
    knobs = {"precision": "amp-fp16", "clip_grad_norm": 1.0, "grad_accumulation": 2}
    for parallel in ("fsdp:4+offload", "fsdp1:4+offload"):
        assert not live_bytes(trace_of("gpt", parallel, **knobs), Category.GRADIENT)


@pytest.mark.parametrize("parallel", ["fsdp:2+offload", "fsdp1:2+grad-op+offload"])
def test_offloading_is_of_a_gpu_and_not_measured(parallel):
    on_host, measured = (
        predicted("gpt", parallel, architecture=HOST_ARCHITECTURE),
        predicted("gpt", parallel, probe=Probe.CPU),
    )
    assert on_host.error.kind == measured.error.kind == "inapplicable"
    assert "brings shards from a GPU to the host" in on_host.error.message


def test_a_model_that_is_spread_and_sharded_comes_to_the_device_block_by_block():
    trace = trace_of("llama", "fsdp:4,tp:2")
    loaded = next(mark.position for mark in trace.marks if mark.name == "step 1 input")
    live, most = 0, 0
    for event in trace.events[:loaded]:
        size = trace.allocations[max(event, ~event)].num_bytes
        live += size if event >= 0 else -size
        most = max(most, live)
    assert live < most < 3 * live  # all that is spread, before it is sharded, is more than four times it


def test_collectives_run_on_streams_of_their_own():
    streams = {a.stream for a in trace_of("llama", "fsdp:8").allocations}
    assert len(streams) > 2
    assert {a.stream for a in trace_of("llama", "ddp:8").allocations} == {0}


def test_each_stage_has_its_blocks_and_the_ends_what_comes_before_and_after():
    first, middle, last = (
        {each.module for each in trace_of("gpt", "pp:3", rank=rank).allocations} for rank in range(3)
    )
    assert {"stage0.wte", "stage0.h.0.attn.c_attn"} <= first
    assert "stage1.h.1.attn.c_attn" in middle
    assert {"stage2.h.2.attn.c_attn", "stage2.lm_head"} <= last
    assert not any("lm_head" in module or "h.2" in module for module in first | middle)


def test_a_rank_has_its_experts_and_whatever_else_there_is():
    """Of 3 layers, in float32: 4 experts of 128 x (512 + 256) numbers each, half of them a rank's."""
    alone, dealt = trace_of("mixtral", "ddp:1"), trace_of("mixtral", "ep:2", rank=1)
    of_experts = 3 * 4 * 128 * (512 + 256) * 4
    for category in (Category.PARAMETER, Category.OPTIMIZER_STATE, Category.GRADIENT):
        assert live_bytes(alone, category) - live_bytes(dealt, category) == of_experts // 2
    assert "experts are dealt out over 2 ranks that share a batch" in dealt.notes[0]


@pytest.mark.parametrize(
    "knobs",
    [
        {"precision": "amp-bf16", "optimizer": "adamw"},
        {"precision": "bf16", "checkpointing": "blocks"},
        {"mode": "infer"},
    ],
)
def test_experts_are_dealt_out_under_every_precision_and_sharded_beside(knobs):
    outcome = predicted("mixtral", "fsdp:2,ep:2", rank=3, **knobs)
    assert outcome.verdict is Verdict.TRACED, outcome.error


def test_stages_hold_as_many_microbatches_as_their_schedule_has_in_flight():
    def activations(parallel: str, rank: int) -> int:
        return most_live(trace_of("gpt", parallel, rank=rank), Category.ACTIVATION)

    first, last = (activations("pp:3+1f1b+6", rank) for rank in (0, 2))
    assert first > last  # three of them, and one with logits
    assert activations("pp:3+gpipe+6", 0) > 1.8 * first  # all six


def most_live(trace: Trace, category: Category) -> int:
    alive = most = 0
    for event in trace.events:
        allocation = trace.allocations[max(event, ~event)]
        if allocation.category is category:
            alive += allocation.num_bytes if event >= 0 else -allocation.num_bytes
            most = max(most, alive)
    return most


def test_ranks_with_equal_meshes_of_other_groups_are_predicted_one_after_the_other():
    for rank in (2, 0, 3):
        outcome = predicted("llama", "pp:2,tp:2", rank=rank)
        assert outcome.verdict is Verdict.TRACED, outcome.error


def test_a_pipeline_infers_too():
    outcome = predicted("gpt", "pp:3", mode="infer")
    assert outcome.verdict is Verdict.TRACED, outcome.error


def test_the_last_rank_has_no_more_than_the_first():
    first, last = (
        live_bytes(trace_of("llama", "fsdp:3", rank=rank), Category.OPTIMIZER_STATE) for rank in (0, 2)
    )
    assert 0 < last < first


def test_which_ranks_differ_is_said_where_it_is_asked_for():
    def kinds(**options) -> tuple[AlikeRanks, ...]:
        return Trace.from_json(predicted("llama", "fsdp:3", **options).trace_json).alike_ranks

    assert not kinds()
    assert [each.first for each in kinds(with_alike_ranks=True)] == [0, 2]


def test_strategies_of_the_first_fsdp_keep_what_they_say():
    full, grad_op, alone = (
        trace_of("llama", kind) for kind in ("fsdp1:4", "fsdp1:4+grad-op", "fsdp1:4+no-shard")
    )
    states = [live_bytes(each, Category.OPTIMIZER_STATE) for each in (full, grad_op, alone)]
    assert states[0] == states[1] < states[2] / 3


def test_memory_of_the_first_fsdp_is_recorded_on_its_streams():
    gathered = [a for a in trace_of("llama", "fsdp1:8").allocations if a.stream]
    assert len({a.stream for a in gathered}) >= 2
    assert any(a.category is Category.PARAMETER and 0 in a.stream_uses for a in gathered)


def test_weights_of_four_bits_are_shared_out_and_their_scales_are_not():
    pytest.importorskip("bitsandbytes")
    knobs = {"base": "nf4", "adapter": "lora:r=4", "precision": "bf16"}
    alone, sharded = (trace_of("llama", kind, **knobs) for kind in ("fsdp1:2+no-shard", "fsdp1:2"))
    quantized, scales = (
        [
            each.num_bytes
            for each in still_alive(alone)
            if each.operator == "bitsandbytes.quantize_4bit" and each.dtype == dtype
        ]
        for dtype in ("bfloat16", "float32")
    )
    assert not quantized  # they went to the host, to come back flattened
    assert scales
    assert scales == [
        each.num_bytes
        for each in still_alive(sharded)
        if each.operator == "bitsandbytes.quantize_4bit" and each.dtype == "float32"
    ]
    assert live_bytes(sharded, Category.PARAMETER) < live_bytes(alone, Category.PARAMETER)


@pytest.mark.parametrize("base", [None, "nf4"])
def test_an_adapter_under_the_first_fsdp_is_checkpointed_in_autocast(base):
    """peft casts to the type of shards in forward, and of gathered weights in backward; autocast to one."""
    pytest.importorskip("bitsandbytes")
    knobs = {"base": base, "adapter": "lora:r=4,targets=all-linear", "precision": "amp-bf16"}
    trace = trace_of("llama", "fsdp1:2", checkpointing="blocks", **knobs)
    assert any("in autocast" in note for note in trace.notes)


def still_alive(trace: Trace) -> list[Allocation]:
    freed = {~event for event in trace.events if event < 0}
    return [each for number, each in enumerate(trace.allocations) if number not in freed]


@pytest.mark.parametrize("kind", ["fsdp1:4", "fsdp1:4+no-shard"])
@pytest.mark.parametrize("precision", ["amp-bf16", "bf16"])
def test_the_first_fsdp_clips_gradients_and_takes_steps(kind, precision):
    outcome = predicted("gpt", kind, precision=precision, optimizer="adamw", clip_grad_norm=1.0)
    assert outcome.verdict is Verdict.TRACED, outcome.error


def test_a_model_says_itself_how_the_first_fsdp_wraps_it():
    blocks, whole = (most_gathered(trace_of(name, "fsdp1:2")) for name in ("gpt", "gpt_as_one_unit"))
    assert blocks < whole


def most_gathered(trace: Trace) -> int:
    """The most bytes of whole parameters that live at once in the last step."""
    start = next(mark.position for mark in trace.marks if mark.name == "step 3 input")
    alive = most = 0
    for event in trace.events[start:]:
        allocation = trace.allocations[max(event, ~event)]
        if allocation.stream and allocation.category is Category.PARAMETER:
            alive += allocation.num_bytes if event >= 0 else -allocation.num_bytes
            most = max(most, alive)
    return most


@pytest.mark.parametrize("precision", ["amp-bf16", "amp-fp16", "bf16"])
@pytest.mark.parametrize("implementation", ["loop", "foreach", "fused"])
def test_gradients_are_clipped_and_steps_taken_under_every_precision(precision, implementation):
    knobs = {
        "precision": precision,
        "optimizer": "adamw",
        "optimizer_impl": implementation,
        "clip_grad_norm": 1.0,
    }
    assert predicted("gpt", "fsdp:4", **knobs).verdict is Verdict.TRACED


@pytest.mark.parametrize(
    ("name", "parallel", "knobs", "message"),
    [
        ("gpt", "tp:2", {}, "--parallel tp: Gpt has no plan for it"),
        ("gpt", "ep:2", {}, "--parallel ep deals out experts of transformers' models, and Gpt is not one"),
        ("llama", "ep:2", {}, "--parallel ep: LlamaForCausalLM has no experts of which transformers has a"),
        ("mixtral", "ep:3", {}, "--parallel ep:3 does not divide the model's 4 experts: use ep:2, ep:4"),
        ("mixtral", "fsdp:2,ep:8", {}, "--parallel ep:8 has more ranks than the model has experts, 4: use"),
        (
            "mixtral",
            "fsdp:2,ep:2",
            {"clip_grad_norm": 1.0},
            "--parallel fsdp:2,ep:2 cannot be combined with --clip-grad-norm: PyTorch's",
        ),
        (
            "mixtral",
            "ep:2",
            {"optimizer": "adamw"},
            "--parallel ep:2 leaves model.embed_tokens.weight whole, and PyTorch's optimizers",
        ),
        (
            "misnamed",
            "fsdp:2,tp:2",
            {},
            "--parallel tp: tp_plan names 'layers.*.dwn', which is no module of Misnamed: did you mean",
        ),
        (
            "llama",
            "tp:3",
            {},
            "--parallel tp:3 does not divide the model's 8 attention heads: use tp:2, tp:4",
        ),
        (
            "llama",
            "tp:2",
            {"optimizer": "adamw"},
            "--parallel tp:2 leaves model.layers.0.input_layernorm.weight",
        ),
        *(
            (
                "llama",
                parallel,
                {"clip_grad_norm": 1.0, "optimizer_impl": "loop"},
                f"--parallel {parallel} cannot be combined with --clip-grad-norm: tp leaves model.layers.0",
            )
            for parallel in ("tp:2", "fsdp:2,tp:2")
        ),
        (
            "resnet",
            "pp:2",
            {},
            "--parallel pp: Resnet has no plan for it: give the model",
        ),
        (
            "gpt",
            "pp:4",
            {},
            "--parallel pp:4 has 4 stages, and the model 3 repeated blocks to deal",
        ),
        (
            "llama",
            "pp:3",
            {"precision": "amp-fp16"},
            "--parallel pp:3 cannot be combined with --precision amp-fp16",
        ),
        (
            "llama",
            "pp:2",
            {"grad_accumulation": 2},
            "--parallel pp:2 accumulates the gradients of its microbatches: give more of those",
        ),
        ("llama", "tp:8", {}, "--parallel tp:8 does not divide the model's 4 heads of keys and values"),
        (
            "llama",
            "fsdp:8",
            {"base": "nf4", "adapter": "lora"},
            "--parallel fsdp:8 cannot be combined with base nf4",
        ),
    ],
)
def test_what_cannot_be_sharded_is_refused_in_a_sentence(name, parallel, knobs, message):
    outcome = predicted(name, parallel, **knobs)
    assert (outcome.verdict, outcome.error.kind) == (Verdict.FAILED, "inapplicable")
    assert outcome.error.message.startswith(message)
