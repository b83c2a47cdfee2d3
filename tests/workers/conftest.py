"""Fixtures of traces for the tests of prediction, made by this process's one warm child."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.setup import Setup
from autofit_workers.spec.trace import Allocation, Trace
from autofit_workers.trials.run import run

SMALL_WORKLOADS = Path(__file__).parent / "tracing" / "small_workloads.py"
DEFAULT_ARCHITECTURE = "sm_80"


def is_output(allocation: Allocation) -> bool:
    """Whether an allocation is an operator's output, not a workspace or other scratch memory."""
    return allocation.convolution is None and not allocation.correction


@dataclass(frozen=True)
class TracedSteps:
    """A trace with queries for tests, by default about its second step."""

    trace: Trace

    def events(self, phase: str, step: int = 2) -> tuple[int, ...]:
        names = [mark.name for mark in self.trace.marks]
        index = names.index(f"step {step} {phase}")
        stop = self.trace.marks[index + 1].position if index + 1 < len(names) else None
        return self.trace.events[self.trace.marks[index].position : stop]

    def allocations(self, phase: str, *, module: str | None = None, step: int = 2) -> list[Allocation]:
        made = (self.trace.allocations[event] for event in self.events(phase, step) if event >= 0)
        return [a for a in made if module in (None, a.module)]

    def outputs(self, phase: str, *, module: str | None = None, step: int = 2) -> list[tuple[str, int]]:
        """Operators with the bytes of each of their outputs, in order, without workspaces."""
        made = self.allocations(phase, module=module, step=step)
        return [(a.operator.removeprefix("aten."), a.num_bytes) for a in made if is_output(a)]

    def live(self, mark: str | None = None) -> list[Allocation]:
        """Outputs that are alive at a mark, or at the end of the trace without one."""
        positions = {m.name: m.position for m in self.trace.marks}
        alive: set[int] = set()
        for event in self.trace.events[: positions[mark] if mark else None]:
            if event >= 0:
                alive.add(event)
            else:
                alive.remove(~event)
        allocations = [self.trace.allocations[index] for index in sorted(alive)]
        return [a for a in allocations if is_output(a)]

    def live_bytes(self, *categories: str, mark: str | None = None) -> int:
        return sum(a.num_bytes for a in self.live(mark) if not categories or a.category in categories)


def predict_spec(
    workload: str, batch_size: int, *, num_threads: int | None = None, share: float = 0.5, **settings: str
) -> TrialSpec:
    """Spec of a prediction: of a workload of `small_workloads.py` after `small:`, else a built-in one."""
    setup = Setup(mode=settings.pop("mode", None), nonzero_share=share)
    architecture = settings.pop("architecture", DEFAULT_ARCHITECTURE)
    reference = (
        WorkloadRef(kind="file", target=f"{SMALL_WORKLOADS}:{workload.removeprefix('small:')}")
        if workload.startswith("small:")
        else WorkloadRef(kind="builtin", target=workload)
    )
    knobs = Knobs(**settings)
    return TrialSpec(
        workload=reference,
        batch_size=batch_size,
        probe=Probe.PREDICT,
        knobs=knobs,
        setup=setup,
        architecture=architecture,
        num_threads=num_threads,
    )


@pytest.fixture(scope="session")
def outcome_of() -> Callable[..., TrialOutcome]:
    """Runs the prediction of a workload of `small_workloads.py`."""

    def predict(attribute: str, batch_size: int = 4, **settings: Any) -> TrialOutcome:
        return run(predict_spec(f"small:{attribute}", batch_size, **settings))

    return predict


@pytest.fixture(scope="session")
def trace_of() -> Callable[..., Trace]:
    """Traces a workload, `small:` or built-in, once for all tests."""
    traces: dict[TrialSpec, Trace] = {}

    def trace(workload: str, batch_size: int = 4, **settings: str) -> Trace:
        spec = predict_spec(workload, batch_size, **settings)
        if spec not in traces:
            outcome = run(spec)
            assert outcome.verdict is Verdict.TRACED, outcome.error
            assert outcome.trace_json is not None
            traces[spec] = Trace.from_json(outcome.trace_json)
        return traces[spec]

    return trace


@pytest.fixture(scope="session")
def steps_of(trace_of) -> Callable[..., TracedSteps]:
    """Traces a workload of `small_workloads.py`."""
    return lambda attribute, **settings: TracedSteps(trace_of(f"small:{attribute}", **settings))
