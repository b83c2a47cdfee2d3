"""The self-test finds what a PyTorch that has moved on would do wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from autofit_workers.spec.protocol import Probe, TrialSpec, WorkloadRef
from autofit_workers.spec.trace import Allocation, Category, Trace
from autofit_workers.tracing import self_test
from autofit_workers.trials.run import run


@pytest.fixture(scope="module")
def trace() -> Trace:
    """What the installed PyTorch makes of it."""
    workload = WorkloadRef(kind="file", target=f"{Path(self_test.__file__)}:workload")
    outcome = run(TrialSpec(workload=workload, batch_size=self_test.BATCH_SIZE, probe=Probe.PREDICT))
    assert outcome.trace_json is not None, outcome.error
    return Trace.from_json(outcome.trace_json)


def with_allocations(trace: Trace, change: Callable[[Allocation], Allocation]) -> Trace:
    return dataclasses.replace(trace, allocations=tuple(map(change, trace.allocations)))


def decomposed(operator: str, *, module: str | None = None) -> Callable[[Allocation], Allocation]:
    """As if PyTorch ran something else instead of an operator."""

    def change(a: Allocation) -> Allocation:
        hit = a.operator == operator and module in (None, a.module)
        return dataclasses.replace(a, operator="aten.other") if hit else a

    return change


def moved(category: Category, to: Category) -> Callable[[Allocation], Allocation]:
    return lambda a: dataclasses.replace(a, category=to) if a.category is category else a


def test_the_installed_pytorch_is_understood(trace):
    assert self_test.findings(trace) == ()


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (
            decomposed("aten.native_dropout"),
            "dropout does not run as the fused operator with a mask of one byte per element",
        ),
        (decomposed("aten.addmm"), "a linear layer on three dimensions is not one addmm"),
        (decomposed("aten._scaled_dot_product_efficient_attention"), "attention is not fused"),
        (decomposed("aten.silu_backward"), "silu_backward is decomposed"),
        (decomposed("aten.native_batch_norm"), "batch norm does not save two statistics per channel"),
        (decomposed("aten._foreach_sqrt"), "Adam does not take its foreach path"),
        (decomposed("aten._to_copy", module="head"), "autocast does not cast a weight once a step"),
        (decomposed("aten.convolution_backward"), "backward was not recorded"),
        (moved(Category.GRADIENT, Category.OTHER), "parameters, gradients and optimizer state do not match"),
        (
            lambda a: dataclasses.replace(a, convolution=None),
            "convolutions ask for no workspace",
        ),
        (
            lambda a: dataclasses.replace(a, dtype="bfloat16"),
            "autocast's copies are not freed",
        ),
        (
            lambda a: dataclasses.replace(a, operator="aten._to_copy") if a.operator == "aten.relu" else a,
            "tensors that are on the GPU are copied to it",
        ),
        (
            lambda a: dataclasses.replace(a, operator="aten.add.Tensor") if a.operator == "aten.mm" else a,
            "gradients of a residual are not summed in place",
        ),
    ],
)
def test_each_thing_that_a_gpu_does_otherwise_is_named(change, finding, trace):
    assert finding in self_test.findings(with_allocations(trace, change))


def test_a_trace_without_frees_is_found_out(trace):
    unfreed = dataclasses.replace(trace, events=tuple(event for event in trace.events if event >= 0))
    assert "activations are not freed" in self_test.findings(unfreed)
