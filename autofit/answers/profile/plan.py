"""Lays out a memory plan, with the memory that each policy needs, as sections of tables."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.answers.profile.rows import profiled
from autofit.answers.section import Bullets, Section, left, right, table
from autofit.answers.words.numbers import exact, share
from autofit.explain.views.plan import PlanView
from autofit.units import format_bytes


def plan_sections(view: PlanView) -> Iterator[Section]:
    """Yields a table of the memory that a step needs under each policy of when values are freed, and notes.

    The policies go from freeing nothing before the step ends, by way of PyTorch's eager mode, to buffers at
    planned offsets in one block of memory.
    """
    plan = view.plan
    yield profiled(view.profile)
    (eager,) = (policy for policy in plan.policies if policy.name == "eager")
    numbers = ("needs", "", "of eager", "lower bound", "kernels", "places")
    rows = (
        (
            policy.name,
            format_bytes(policy.peak_bytes),
            exact(policy.peak_bytes),
            share(policy.peak_bytes, eager.peak_bytes or 1),
            "–" if policy.lower_bound_bytes == policy.peak_bytes else format_bytes(policy.lower_bound_bytes),
            f"{policy.num_kernels:,}",
            f"{policy.num_values:,}",
            policy.meaning,
        )
        for policy in plan.policies
    )
    shown = table((left("policy"), *map(right, numbers), left()), rows, fit="whole")
    yield Section(name="policies", blocks=(shown,))
    step = f"step {plan.step}" if plan.step else "building the model"
    said = (
        f"{step}; every number includes {format_bytes(plan.resident_bytes)} that stay allocated through "
        "the whole step",
        f"{plan.num_unnamed:,} values have no Python name; together they hold at most "
        f"{format_bytes(plan.unnamed_bytes)} at once",
        *plan.notes,
    )
    yield Section(name="notes", blocks=(Bullets(said),))
