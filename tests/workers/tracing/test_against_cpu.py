"""The predicted events are those of PyTorch's own CPU allocator, where both run the same operators."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from autofit_workers.apply import setting
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.optimizer import NAMED
from autofit_workers.spec.versions import release_of
from autofit_workers.tracing.probe import NUM_TRACED_STEPS
from autofit_workers.workload.in_backward import make_in_backward
from autofit_workers.workload.optimizers import make_optimizers
from autofit_workers.workload.overrides import with_overrides
from autofit_workers.workload.step import Part, train_step
from autofit_workers.workload.workload import Workload

DEFAULT = Knobs()
SMALL_WORKLOADS = Path(__file__).parent / "small_workloads.py"
CPU = torch.device("cpu")
# Smaller ones are single numbers: in which of them PyTorch makes tensors depends on the device.
SMALLEST_BYTES = 32
# Kept by checkpointing; on a GPU it is in the host's memory.
RANDOM_STATE_BYTES = torch.get_rng_state().nbytes


def load(attribute: str) -> Workload:
    return Workload.load(f"{SMALL_WORKLOADS}:{attribute}")


def allocator_events_on_cpu(
    workload: Workload, knobs: Knobs = DEFAULT, *, num_steps: int = NUM_TRACED_STEPS
) -> list[int]:
    """Bytes of every allocation, negative for a free, in the order of the CPU allocator's own report."""
    workload = with_overrides(workload, knobs)
    model = setting.converted_model(workload.build_model(), knobs)
    make = make_in_backward if knobs.optimizer_in_backward else make_optimizers
    optimizer = make(workload, model, knobs.optimizer_impl)
    num_passes = knobs.grad_accumulation

    def step() -> None:
        for number in range(1, num_passes + 1):
            part = Part(number=number, num_passes=num_passes, num_batches=num_passes)
            take(part)

    def take(part: Part) -> None:
        batch = setting.converted_batch(workload.make_batch(4, CPU), knobs)
        train_step(
            workload,
            model,
            optimizer,
            batch,
            set_to_none=knobs.set_to_none,
            clip_grad_norm=knobs.clip_grad_norm,
            in_backward=knobs.optimizer_in_backward,
            part=part,
        )

    gc.collect()  # what earlier tests left in cycles would be freed under the profiler
    with (
        torch.autograd.set_multithreading_enabled(False),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        for _ in range(num_steps):
            step()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    memory = sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns())
    sizes = [e.nbytes() for e in memory if abs(e.nbytes()) >= SMALLEST_BYTES]
    return canonical([size for size in sizes if abs(size) != RANDOM_STATE_BYTES])


def test_every_batch_of_a_step_beyond_the_second_does_as_the_second_did():
    two, three, four = (
        allocator_events_on_cpu(load("convolutional"), Knobs(grad_accumulation=n), num_steps=1)
        for n in (2, 3, 4)
    )
    second = two[len(two) - len(three) :]
    assert (three, four) == ([*two, *second], [*two, *second, *second])


def predicted_events(steps) -> list[int]:
    trace = steps.trace
    start = next(mark.position for mark in trace.marks if mark.name == "step 1 input")
    sizes = [a.num_bytes for a in trace.allocations]
    signed = [sizes[event] if event >= 0 else -sizes[~event] for event in trace.events[start:]]
    return canonical([size for size in signed if abs(size) >= SMALLEST_BYTES])


def canonical(sizes: list[int]) -> list[int]:
    """Consecutive frees by size: their order makes no difference to an allocator, and is not recorded."""
    runs = itertools.groupby(sizes, lambda size: size < 0)
    return [size for is_free, run in runs for size in (sorted(run) if is_free else run)]


@pytest.mark.parametrize(
    "attribute",
    [
        "perceptron",
        "silu",
        "sequence",
        "strided_sequence",
        "frozen",
        "residual",
        "squared",
        "gathered",
        "formula",
        "mean_squared_loss",
        "smooth_loss",
        "huber_loss",
        "margin_loss",
        "cross_entropy_of_shares",
        pytest.param(
            "chunked_cross_entropy",
            marks=pytest.mark.skipif(
                not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="of PyTorch 2.13"
            ),
        ),
        "losses_of_elements",
        "own_function",
        "checkpointed",
        "reentrant",
        "accumulating",
        "averaged",
        "adversarial",
        "language",
        "weight_norm",
        pytest.param(
            "unbatched_attention",
            marks=pytest.mark.skipif(
                release_of(torch.__version__) != "2.13", reason="fused, by a kernel of the CPU's own"
            ),
        ),
        "all_pairs",
        "sample_by_sample",
        "foreach_adam",
    ],
)
def test_allocations_and_frees_come_in_the_order_and_sizes_of_a_real_run(attribute, steps_of):
    assert predicted_events(steps_of(attribute)) == allocator_events_on_cpu(load(attribute))


@pytest.mark.parametrize(
    "optimizer", [name for name, named in NAMED.items() if named.library == "torch" and name != "muon"]
)  # AdamW is beside it
def test_an_optimizer_in_a_loop_is_the_one_that_runs_on_the_cpu_by_default(optimizer, steps_of):
    knobs = Knobs(optimizer=optimizer, optimizer_impl="loop")
    assert predicted_events(steps_of("perceptron", **knobs.to_dict())) == allocator_events_on_cpu(
        load("perceptron"), knobs
    )


@pytest.mark.parametrize(
    ("workload", "checkpointing"),
    [
        *(("blocks", each) for each in ("blocks", "every:2", "every:3", "selective", "selective:50")),
        ("blocks_after_a_layer", "blocks-reentrant"),
    ],
)
def test_blocks_that_run_again_allocate_as_in_a_real_run(workload, checkpointing, steps_of):
    knobs = Knobs(checkpointing=checkpointing)
    assert predicted_events(steps_of(workload, **knobs.to_dict())) == allocator_events_on_cpu(
        load(workload), knobs
    )


@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(optimizer="sgd-momentum", optimizer_impl="fused"),
        Knobs(optimizer="adam", optimizer_impl="fused"),
        Knobs(optimizer="adamw", optimizer_impl="foreach"),
        Knobs(set_to_none=False),
        Knobs(grad_accumulation=2, optimizer="adam", optimizer_impl="loop"),
        Knobs(grad_accumulation=2, set_to_none=False),
        Knobs(grad_accumulation=2, clip_grad_norm=1.0),
        Knobs(optimizer="adam", optimizer_impl="loop", optimizer_in_backward=True),
        Knobs(optimizer="adafactor", optimizer_in_backward=True, checkpointing="none"),
    ],
)
def test_knobs_move_allocations_as_in_a_real_run(knobs, steps_of):
    assert predicted_events(steps_of("perceptron", **knobs.to_dict())) == allocator_events_on_cpu(
        load("perceptron"), knobs
    )
