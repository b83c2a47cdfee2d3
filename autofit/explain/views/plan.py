"""View `plan`: the memory that one step would need if its whole graph were known in advance.

Eager PyTorch keeps a value as long as Python code has a name for it; an executor that knows the graph can
free it, or reuse its memory, after its last use. The view counts requested bytes of one step, the last by
default. Memory that lives from before the step to after it (parameters, the optimizer's state) is part of
every number, and every policy keeps the step's inputs for as long as eager PyTorch does. The policies:

- `everything`: no value is freed before the step ends.
- `named`: values with a name in Python code are kept until the step ends, temporaries are freed
  as in eager mode; `unnamed_bytes` is the most bytes that temporaries hold at any moment.
- `eager`: each value is freed when PyTorch frees it: when the last reference to it goes.
- `in-place`: each value is freed after its last reader, and the result of an element-wise operator
  reuses the memory of an input that is at least as large, has elements of the same size and has no
  reader left. Views are assumed to keep the order of elements.
- `planned`: the lifetimes of `in-place`, in one arena with a fixed offset for every value: see `memory_plan`.
  An executor would reserve this many bytes, of which those of `in-place` are a lower bound.
- `folded`: as `planned`, with chains of element-wise operators merged into one kernel first: see `folding`.

A kernel is an operator that computes, in one launch or several; views are no kernels. Workspaces count
in every policy, while their operator runs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

from autofit.explain.profile import Profile
from autofit.explain.views.filters import Filters
from autofit.explain.views.folding import fold_chains
from autofit.explain.views.memory_plan import Buffer, MemoryPlan, max_live_bytes, plan_memory
from autofit.explain.views.packing import pack
from autofit.explain.views.selection import devices_of
from autofit.explain.views.step_graph import StepGraph, step_graph
from autofit.explain.views.view import heading
from autofit_workers.spec.trace import Allocation

NOTES = (
    "sizes are requested bytes of one step; every policy keeps parameters, optimizer state and inputs",
    "eager frees a value with its last Python reference; in-place, planned and folded after its last use",
    "a kernel is an operator that computes; views are not kernels",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Memory that a step needs under one policy of freeing and placing its values (allocations).

    Attributes:
        name: `everything`, `named`, `eager`, `in-place`, `planned` or `folded`.
        meaning: explanation of the policy in words.
        peak_bytes: the most bytes needed at any moment, including memory that lives all through the step.
        lower_bound_bytes: the most bytes that live at any moment; no placement of the buffers can need less.
        num_kernels: number of operators that compute.
        num_values: number of buffers that hold the step's values.
    """

    name: str
    meaning: str
    peak_bytes: int
    lower_bound_bytes: int
    num_kernels: int
    num_values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Memory that one step needs under each policy of freeing values (allocations).

    Attributes:
        step: number of the step.
        resident_bytes: bytes of memory that lives from before the step to after it; part of every peak.
        num_unnamed: number of values that no Python name is bound to.
        unnamed_bytes: the most bytes that such values hold at any moment in eager mode.
        policies: needs under each policy, from the one that frees nothing to the most thrifty.
        layout: offsets of the policy `planned`; its arena does not include the resident bytes.
        holders: index of the layout's buffer that holds each value of the step, by allocation.
        notes: sentences that explain the numbers.
    """

    step: int
    resident_bytes: int
    num_unnamed: int
    unnamed_bytes: int
    policies: tuple[Policy, ...]
    layout: MemoryPlan
    holders: dict[int, int]
    notes: tuple[str, ...] = NOTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """View `plan` of a profile: a step's memory under each policy of freeing values, and the largest buffers.

    Attributes:
        num_places: number of buffers of the policy `planned` to list, the largest; None for all.
    """

    profile: Profile
    plan: Plan
    num_places: int | None

    def to_json(self) -> str:
        """JSON document of the view `plan`."""
        found = self.plan
        document = {
            **heading("plan", self.profile),
            "step": found.step,
            "resident_bytes": found.resident_bytes,
            "num_unnamed": found.num_unnamed,
            "unnamed_bytes": found.unnamed_bytes,
            "policies": [dataclasses.asdict(policy) for policy in found.policies],
            "arena_bytes": found.layout.num_bytes,
            "places": [dataclasses.asdict(place) for place in self.places()],
            "notes": found.notes,
        }
        return json.dumps(document, indent=2)

    def places(self) -> list[Place]:
        """Offsets, sizes and lifetimes of the largest buffers in the arena, the largest first."""
        layout = self.plan.layout
        held: list[list[str]] = [[] for _ in layout.buffers]
        for number, index in self.plan.holders.items():
            held[index].append(_label(self.profile.trace.allocations[number]))
        largest = sorted(range(len(held)), key=lambda index: -layout.buffers[index].num_bytes)
        return [
            Place(
                offset_bytes=layout.offsets[index],
                num_bytes=layout.buffers[index].num_bytes,
                start=layout.buffers[index].start,
                stop=layout.buffers[index].stop,
                holds=tuple(held[index]),
            )
            for index in largest[: self.num_places]
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Offset, size and lifetime of one buffer in the arena of the policy `planned`.

    Attributes:
        offset_bytes: bytes from the start of the arena.
        num_bytes: size of the buffer.
        start, stop: numbers of memory events before the buffer's lifetime begins, and before it ends.
        holds: module and operator of each value that the buffer holds, one after the other.
    """

    offset_bytes: int
    num_bytes: int
    start: int
    stop: int
    holds: tuple[str, ...]


def plan_view(profile: Profile, filters: Filters) -> PlanView:
    """View `plan` of a profile: a step's memory under each policy of freeing values.

    It uses only the filters for step, device and `top`.

    Raises:
        UsageError: there is no such step, the profile lists no calls of operators, or another filter is set.
        NothingMatchesError: there is no such device.
    """
    filters.require_only(("step", "device", "top"), "plan")
    devices_of(profile, filters)
    return PlanView(profile=profile, plan=plan(profile, filters.step), num_places=filters.top)


def plan(profile: Profile, step: int | None = None) -> Plan:
    """Memory that one step of a profile needs under each policy of freeing values.

    Args:
        step: number of the step, 0 for building the model; the last step if None.

    Raises:
        UsageError: the profile has no such step, or lists no calls of operators.
    """
    graph = step_graph(profile, step)
    folded = fold_chains(graph)
    packed = pack(graph)
    layout, folded_layout = plan_memory(packed.buffers), plan_memory(pack(folded).buffers)
    unnamed = [Buffer(v.start, v.stop, v.num_bytes) for v in graph.values.values() if not v.name]
    every, kept = _until_end(graph, named=False), _until_end(graph, named=True)
    return Plan(
        step=graph.step,
        resident_bytes=graph.resident_bytes,
        num_unnamed=len(unnamed),
        unnamed_bytes=max_live_bytes(unnamed),
        policies=(
            _at_once(graph, "everything", "no value is freed before the step ends", every),
            _at_once(graph, "named", "named values are kept, temporaries freed", kept),
            _at_once(graph, "eager", "freed when dead, as PyTorch does", _as_eager(graph)),
            _at_once(graph, "in-place", "dropped after its last reader, in place if legal", packed.buffers),
            _in_arena(graph, "planned", "the same at fixed offsets in one arena", layout),
            _in_arena(folded, "folded", "element-wise chains as one kernel, then planned", folded_layout),
        ),
        layout=layout,
        holders=packed.holders,
    )


def _at_once(graph: StepGraph, name: str, meaning: str, buffers: Sequence[Buffer]) -> Policy:
    """Policy whose peak is the most bytes that its buffers need at one time, wherever they lie.

    Args:
        name, meaning: name and explanation of the policy.
        buffers: lifetime and size of each value under the policy.
    """
    live_bytes = max_live_bytes(buffers)
    return _policy(graph, name, meaning, (live_bytes, live_bytes, len(buffers)))


def _in_arena(graph: StepGraph, name: str, meaning: str, layout: MemoryPlan) -> Policy:
    """Policy whose peak is the size of an arena in which each buffer has a fixed offset.

    Args:
        name, meaning: name and explanation of the policy.
        layout: offsets of the buffers.
    """
    return _policy(graph, name, meaning, (layout.num_bytes, layout.lower_bound_bytes, len(layout.buffers)))


def _policy(graph: StepGraph, name: str, meaning: str, need: tuple[int, int, int]) -> Policy:
    num_bytes, lower_bound_bytes, num_values = need
    return Policy(
        name=name,
        meaning=meaning,
        peak_bytes=graph.resident_bytes + num_bytes,
        lower_bound_bytes=graph.resident_bytes + lower_bound_bytes,
        num_kernels=len(graph.kernels),
        num_values=num_values,
    )


def _label(allocation: Allocation) -> str:
    return allocation.name or f"{allocation.module or '(no module)'}/{allocation.operator}"


def _until_end(graph: StepGraph, *, named: bool) -> list[Buffer]:
    """Lifetimes of a step's values if they are kept until the step ends.

    Args:
        named: whether only values with a Python name are kept; others are freed as in eager mode.
    """
    return [
        Buffer(value.start, value.stop if named and not value.name else graph.stop, value.num_bytes)
        for value in graph.values.values()
    ]


def _as_eager(graph: StepGraph) -> list[Buffer]:
    return [Buffer(value.start, value.stop, value.num_bytes) for value in graph.values.values()]
