"""Convolutions, made-up sources of plans, and a step whose peak a workspace decides, for tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autofit_workers.replay.plans.plan import Plan
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Allocation, Category, Trace
from autofit_workers.spec.work import Convolution, ConvPass

MIB = 1 << 20

# A layer of ResNet-50 at batch 64: 64 maps of 56×56 in and out, 3×3 filters.
CONVOLUTION = Convolution(
    conv_pass=ConvPass.FPROP,
    input_shape=(64, 64, 56, 56),
    weight_shape=(64, 64, 3, 3),
    output_shape=(64, 64, 56, 56),
    stride=(1, 1),
    padding=(1, 1),
    dilation=(1, 1),
    groups=1,
    dtype="float32",
    element_bytes=4,
)
MAPS_BYTES = 64 * 64 * 56 * 56 * 4


def variant(**changes: Any) -> Convolution:
    return dataclasses.replace(CONVOLUTION, **changes)


POINTWISE = variant(weight_shape=(64, 64, 1, 1), padding=(0, 0))
GROUPED = variant(weight_shape=(64, 2, 3, 3), groups=32)
DEPTHWISE = variant(weight_shape=(64, 1, 3, 3), groups=64)


def of_samples(num_samples: int, call: Convolution = CONVOLUTION) -> Convolution:
    return call.of_samples(num_samples)


@dataclass(eq=False)
class MadeUpPlans:
    """A `PlanSource` that answers by a function, and records the batch sizes that it was asked for."""

    plans_of: Callable[[Convolution], tuple[Plan, ...]]
    name: str = "made up"
    knows_the_order: bool = True
    asked: list[int] = field(default_factory=list)

    def plans(self, calls: Sequence[Convolution]) -> list[tuple[Plan, ...]]:
        self.asked += [call.input_shape[0] for call in calls]
        return [self.plans_of(call) for call in calls]


def of_sizes(*sizes_bytes: int, knows_the_order: bool = True) -> MadeUpPlans:
    """Source with the same plans for every convolution, given by the bytes of their workspaces."""
    plans = tuple(Plan(engine, size) for engine, size in enumerate(sizes_bytes))
    return MadeUpPlans(lambda _call: plans, knows_the_order=knows_the_order)


def step(batch_size: int) -> Trace:
    """Trace of a step that holds 40 MiB and a MiB per sample while it convolves."""
    allocations = (
        Allocation(num_bytes=40 * MIB, category=Category.PARAMETER, shape=(10 * MIB,)),
        Allocation(
            num_bytes=batch_size * MIB, category=Category.ACTIVATION, shape=(batch_size, MIB // 4), dtype="f"
        ),
        Allocation(num_bytes=0, category=Category.WORKSPACE, convolution=of_samples(batch_size)),
    )
    return Trace(
        workload="made up",
        batch_size=batch_size,
        mode="infer",
        optimizer="",
        knobs=Knobs(),
        allocations=allocations,
        events=(0, 1, 2, ~2, ~1),
    )
