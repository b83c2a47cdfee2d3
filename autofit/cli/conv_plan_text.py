"""The text of a plan of convolution algorithms: layers of one algorithm on one line."""

from __future__ import annotations

import itertools

from rich.console import Console

from autofit.cli.output import headed, heading, indented
from autofit.predict.conv_plan import LayerChoice
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes


def print_plan(console: Console, result: TuneResult) -> None:
    """Prints what each layer is given, where the best has a plan."""
    plan = result.conv_plan
    if plan is None:
        return
    heading(console, f"The algorithm of each layer at batch {plan.batch_size}")
    table = headed(("layers", "left"), ("algorithm", "left"), ("workspace up to", "right"), ("time", "right"))
    for algorithm, grouped in itertools.groupby(plan.layers, key=lambda choice: choice.algorithm):
        choices = list(grouped)
        table.add_row(
            _span(choices),
            algorithm,
            format_bytes(max(choice.workspace_bytes for choice in choices)),
            f"{sum(choice.cost for choice in choices):.1%}",
        )
    console.print(indented(table))
    console.print(
        f"  Predicted, by a roofline: all convolutions take {plan.relative_cost:.2f} of the time that they "
        "take by the backend's own choice."
    )


def _span(choices: list[LayerChoice]) -> str:
    first, last = choices[0].layer or "(the model)", choices[-1].layer
    return first if len(choices) == 1 else f"{first} … {last} ({len(choices)})"
