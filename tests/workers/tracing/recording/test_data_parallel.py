"""What a rank of `DistributedDataParallel` allocates: predicted, and by the real wrapper on the CPU."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

from autofit_workers.spec.protocol import (
    HOST_ARCHITECTURE,
    Probe,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from autofit_workers.spec.setup import ALONE, Parallel, Setup
from autofit_workers.spec.trace import DATA_PARALLEL, Category, Trace
from autofit_workers.tracing.recording.data_parallel import BUCKET_BYTES, FIRST_BUCKET_BYTES, buckets_of
from autofit_workers.trials import door
from tests.workers.predicted import peaks_of
from tests.workers.tracing.test_against_cpu import canonical

FILE = Path(__file__).parents[1] / "distributed_workloads.py"
# Below are biases, counters, and what ranks tell each other of shapes.
SMALLEST_BYTES = 100_000
ARCHITECTURES = (HOST_ARCHITECTURE, "sm_80")


def ranks(number: int) -> Setup:
    return Setup(parallel=Parallel.parse(f"ddp:{number}"))


def predicted(name: str, architecture: str = "sm_80", **changes) -> TrialOutcome:
    workload = WorkloadRef(kind="file", target=f"{FILE}:{name}")
    options = {"batch_size": 4, "setup": ranks(4), "architecture": architecture, **changes}
    return door.run(TrialSpec(workload=workload, probe=Probe.PREDICT, **options))


def trace_of(name: str, architecture: str = "sm_80", **changes) -> Trace:
    outcome = predicted(name, architecture, **changes)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    return Trace.from_json(outcome.trace_json)


def sizes_from_the_wrapper_on(trace: Trace) -> list[int]:
    sizes = [a.num_bytes for a in trace.allocations]
    first = next(
        i for i, e in enumerate(trace.events) if trace.allocations[max(e, ~e)].module == DATA_PARALLEL
    )
    return [sizes[event] if event >= 0 else -sizes[~event] for event in trace.events[first:]]


def large(sizes: list[int]) -> list[int]:
    return canonical([size for size in sizes if abs(size) >= SMALLEST_BYTES])


TRAINED = ("layers", "of_two_types", "accumulating")


@pytest.fixture(scope="module")
def real_ranks() -> dict[str, list[int]]:
    """What a real rank allocates and frees of each workload that is trained."""
    command = [sys.executable, "-m", "tests.workers.tracing.distributed_workloads", *TRAINED]
    done = subprocess.run(command, capture_output=True, text=True, cwd=FILE.parents[3], check=False)
    assert done.returncode == 0, done.stderr
    return {name: large(sizes) for name, sizes in json.loads(done.stdout).items()}


@pytest.mark.parametrize("name", TRAINED)
def test_allocations_and_frees_are_those_of_a_real_rank(name, real_ranks):
    real = real_ranks[name]
    assert real
    for architecture in ARCHITECTURES:
        assert large(sizes_from_the_wrapper_on(trace_of(name, architecture))) == real


def test_the_buckets_hold_every_gradient_once_more():
    with_ranks, alone = trace_of("layers"), trace_of("layers", setup=ALONE)
    (start,) = (mark.position for mark in with_ranks.marks if mark.name == "step 3 forward")
    alive = set()
    for event in with_ranks.events[:start]:
        alive.add(event) if event >= 0 else alive.discard(~event)
    buckets = [a for i, a in enumerate(with_ranks.allocations) if i in alive and a.module == DATA_PARALLEL]
    gradients = {a.num_bytes for a in alone.allocations if a.category is Category.GRADIENT}
    parameters = sum(a.num_bytes for a in alone.allocations if a.category is Category.PARAMETER)
    assert all(a.category is Category.GRADIENT for a in buckets)
    assert len(buckets) == 2
    assert parameters - 2_000_000 < sum(a.num_bytes for a in buckets) < parameters
    assert buckets[0].num_bytes >= FIRST_BUCKET_BYTES
    assert gradients
    assert (with_ranks.num_ranks, alone.num_ranks) == (4, 1)


@pytest.mark.parametrize("seed", range(5))
def test_buckets_are_filled_as_pytorch_fills_them(seed):
    draw = random.Random(seed)
    types = (torch.float32, torch.float16, torch.float64)
    tensors = [
        torch.empty(draw.choice((1, 1000, 300_000, 3_000_000)), dtype=draw.choice(types), device="meta")
        for _ in range(40)
    ]
    for limits in ((FIRST_BUCKET_BYTES, BUCKET_BYTES), (2**62,)):
        expected, _ = distributed._compute_bucket_assignment_by_size(tensors, list(limits))
        found = buckets_of([(tensor.dtype, tensor.numel()) for tensor in tensors], limits)
        assert sorted(found) == sorted(expected)
        for dtype in types:  # the order among those of a type is that in which they fill
            of_type, expected_of_type = (
                [bucket for bucket in buckets if tensors[bucket[0]].dtype == dtype]
                for buckets in (found, expected)
            )
            assert of_type == expected_of_type


@pytest.mark.parametrize(
    ("name", "changes", "kind", "message"),
    [
        (
            "partly_used",
            {},
            "unsupported",
            r"last\.weight gets no gradient in the step; Distributed",
        ),
        ("passed_by", {}, "unsupported", "calls parts of the model but never the model itself"),
        ("frozen", {}, "inapplicable", "no parameter of the model is trained"),
        (
            "layers",
            {"setup": dataclasses.replace(ranks(4), mode="infer")},
            "inapplicable",
            "is for training: ranks exchange gradients",
        ),
    ],
)
def test_what_the_wrapper_could_not_train_is_refused(name, changes, kind, message):
    outcome = predicted(name, **changes)
    assert (outcome.verdict, outcome.error.kind) == (Verdict.FAILED, kind)
    assert outcome.error.message.startswith("--parallel ddp")
    assert re.search(message, outcome.error.message)


def test_a_warm_process_keeps_ranks_apart():
    alone, one_of_two = (
        peaks_of(predicted("layers", setup=ranks(num_ranks))).allocated_bytes for num_ranks in (1, 2)
    )
    assert one_of_two > alone + 25_000_000
