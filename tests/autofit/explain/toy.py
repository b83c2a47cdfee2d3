"""A profile of two steps that can be followed by hand."""

from __future__ import annotations

import dataclasses

from autofit.explain.profile import Profile
from autofit.explain.timing import Roofs, StepSeconds, TimedCall, TimedKernel, Timing
from autofit_workers.replay.time.kernels import KernelClass
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Allocation, Call, Category, Mark, Trace

LOSS, CONV, HEAD = "/me/train.py:9:loss", "/me/net.py:4:forward", "/me/net.py:5:forward"
RELU = "torch/nn/functional.py:70:relu"

_ALLOCATIONS = (
    Allocation(
        num_bytes=1000,
        category=Category.PARAMETER,
        operator="aten.empty_strided",
        module="body.conv",
        dtype="float32",
        shape=(250,),
        name="body.conv.weight",
    ),
    Allocation(
        num_bytes=2000,
        category=Category.INPUT,
        operator="aten.randn",
        dtype="float32",
        shape=(4, 125),
        stack=("/me/train.py:3:batch",),
        name="input:0",
    ),
    Allocation(
        num_bytes=3000,
        category=Category.ACTIVATION,
        operator="aten.relu",
        module="body.conv",
        dtype="bfloat16",
        shape=(4, 375),
        stack=(LOSS, CONV, RELU),
    ),
    Allocation(num_bytes=0, category=Category.WORKSPACE, operator="aten.relu", module="body.conv"),
    Allocation(
        num_bytes=500,
        category=Category.ACTIVATION,
        operator="aten.relu",
        module="head",
        dtype="bool",
        shape=(4, 125),
        stack=(LOSS, HEAD),
    ),
    Allocation(
        num_bytes=1000,
        category=Category.GRADIENT,
        operator="aten.relu",
        module="body.conv",
        dtype="float32",
        shape=(250,),
        stack=(LOSS, CONV, RELU),
        name="body.conv.weight.grad",
    ),
)
_REQUESTED = (1000, 2000, 3000, 700, 500, 1000)
# The third block is larger than its request rounded up: what was left of it was too little to be split off.
_BLOCKS = (1024, 2048, 4096, 1024, 512, 1024)
_NUM = len(_ALLOCATIONS)
_STEP = (1, 2, 3, ~3, 4, ~4, 5, ~2, ~1, ~5)


def _numbered(numbers, step):
    """Events of a later step: those of `step` 1, with the numbers of its own allocations."""
    shift = (step - 1) * (_NUM - 1)
    return [number + shift if number >= 0 else ~(~number + shift) for number in numbers]


def _calls(step):
    shift, start = (step - 1) * (_NUM - 1), 1 + (step - 1) * len(_STEP)
    rows = (
        (start, "aten.randn", (), (1,), "batch"),
        (start + 1, "aten.relu", (1,), (2,), "x"),
        (start + 4, "aten.relu", (2,), (4,), ""),
        (start + 6, "aten.relu", (2,), (5,), ""),
    )
    return [
        Call(
            position=position,
            operator=operator,
            module="",
            inputs=tuple(number + shift for number in inputs),
            outputs=tuple(number + shift for number in outputs),
            name=name,
        )
        for position, operator, inputs, outputs, name in rows
    ]


def _marks():
    yield Mark(position=0, name="model")
    for step in (1, 2):
        start = 1 + (step - 1) * len(_STEP)
        yield Mark(position=start, name=f"step {step} input")
        yield Mark(position=start + 1, name=f"step {step} forward")
        yield Mark(position=start + 6, name=f"step {step} backward")


TRACE = Trace(
    workload="toy",
    batch_size=4,
    mode="train",
    optimizer="sgd",
    knobs=Knobs(),
    allocations=(*_ALLOCATIONS, *_ALLOCATIONS[1:]),
    events=(0, *_numbered(_STEP, 1), *_numbered(_STEP, 2)),
    marks=tuple(_marks()),
    calls=(*_calls(1), *_calls(2)),
)

# Peaks at 8192 B in the forward pass of both steps: all but the head and the gradient is alive.
PROFILE = Profile(
    trace=TRACE,
    knobs=Knobs(),
    card="sm_80",
    architecture="sm_80",
    requested_bytes=(*_REQUESTED, *_REQUESTED[1:]),
    block_bytes=(*_BLOCKS, *_BLOCKS[1:]),
    context_bytes=400,
    peak_allocated_bytes=8192,
    peak_reserved_bytes=2 << 20,
    workspace_source="a formula",
)

_RELU = TimedKernel(KernelClass.ELEMENTWISE, 0.3, 0, 5000, "float32")
_ADD = TimedKernel(KernelClass.ELEMENTWISE, 0.1, 0, 6000, "float32")
_HEAD = TimedKernel(KernelClass.MATMUL, 0.1, 40_000, 1000, "float16")
_RANDOM = TimedKernel(KernelClass.ELEMENTWISE, 0.05, 0, 2000, "float32")

# Step 2, of which the device waits 15 % for the host. `add_` works in place, so that it has no events.
_CALLS = (
    TimedCall("aten.randn", "", 11, 0.1, 0.1, 0.15, 1.0, (_RANDOM,)),
    TimedCall("aten.relu", "body.conv", 12, 0.2, 0.2, 0.5, 1.0, (_RELU,)),
    TimedCall("aten.add_", "body.conv", 15, 0.25, 0.5, 0.6, 1.0, (_ADD,)),
    TimedCall("aten.relu", "head", 15, 0.3, 0.6, 0.7, 1.0, (_HEAD,)),
    TimedCall("aten.relu", "body.conv", 17, 0.4, 0.7, 1.0, 1.0, (_RELU,)),
)
SECONDS = StepSeconds(low=0.008, likely=0.01, high=0.012, low_80=0.009, high_80=0.011)
TIMING = Timing(
    calls=_CALLS,
    seconds=SECONDS,
    roofs=Roofs(flops={"float16": 4e9}, vector_flops=1e9, bandwidth=1e8),
)
TIMED = dataclasses.replace(PROFILE, timing=TIMING, time_note="step time: likely off by a factor of 1.10")
# The same without real runs behind it, so that no seconds are said.
UNSTATED = dataclasses.replace(
    TIMED,
    timing=dataclasses.replace(TIMING, seconds=None),
    time_note="no step time is stated, only which step is slower: there are no measured times of this card",
)
