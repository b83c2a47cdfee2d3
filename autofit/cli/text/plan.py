"""Text of a memory plan: the memory that each policy needs."""

from __future__ import annotations

from autofit.answers.words.numbers import exact, share
from autofit.cli.text.output import bullets, headed, print_whole, stdout
from autofit.cli.text.profile import print_configuration
from autofit.explain.views.plan import PlanView
from autofit.units import format_bytes


def print_plan(view: PlanView) -> None:
    """Prints a row for each policy of a memory plan, and the facts that all policies share."""
    console, plan = stdout(), view.plan
    print_configuration(view.profile)
    (eager,) = (policy for policy in plan.policies if policy.name == "eager")
    table = headed(
        ("policy", "left"),
        ("needs", "right"),
        ("", "right"),
        ("of eager", "right"),
        ("lower bound", "right"),
        ("kernels", "right"),
        ("places", "right"),
        ("", "left"),
    )
    for policy in plan.policies:
        bound_bytes = policy.lower_bound_bytes
        table.add_row(
            policy.name,
            format_bytes(policy.peak_bytes),
            exact(policy.peak_bytes),
            share(policy.peak_bytes, eager.peak_bytes or 1),
            "–" if bound_bytes == policy.peak_bytes else format_bytes(bound_bytes),
            f"{policy.num_kernels:,}",
            f"{policy.num_values:,}",
            policy.meaning,
        )
    for column in table.columns:
        column.no_wrap = True
    print_whole(table)
    console.print()
    step = f"step {plan.step}" if plan.step else "building the model"
    bullets(
        console,
        (
            f"{step}; every number includes {format_bytes(plan.resident_bytes)} that stay allocated through "
            "the whole step",
            f"{plan.num_unnamed:,} values have no Python name; together they hold at most "
            f"{format_bytes(plan.unnamed_bytes)} at once",
            *plan.notes,
        ),
    )
