"""How good a table of plans is for models that it has not seen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.replay.plans.plan import Plan
from autofit_workers.replay.plans.plan_table import Kind, PlanTable
from autofit_workers.spec.work import Convolution
from tests.bench.plan_table_file import encoded
from tests.bench.plan_table_rows import Answer

# Of input and output: that close, the first plan's workspace counts as right.
_TOLERANCE = 0.05
_MIN_CALLS = 300
CLASSES = ("1x1", "3x3 dense", "other dense", "grouped", "depthwise", "strided", "all")


def classes_of(call: Convolution) -> tuple[str, ...]:
    """The classes of `CLASSES` that a call belongs to."""
    kind = Kind.of(call)
    if kind.grouping != "dense":
        which = kind.grouping
    elif kind.filter == "1x1":
        which = "1x1"
    else:
        which = "3x3 dense" if kind.filter == "3x3" else "other dense"
    return (which, "strided", "all") if kind.reach == "strided" else (which, "all")


def is_right(call: Convolution, first: Plan, truth: Plan) -> bool:
    """Whether a first plan's workspace is as good as cuDNN's."""
    elements = math.prod(call.input_shape) + math.prod(call.output_shape)
    return abs(first.workspace_bytes - truth.workspace_bytes) <= _TOLERANCE * elements * call.element_bytes


def check(answers: dict[tuple[str, str], list[Answer]], families: Sequence[str] | None) -> None:
    """Prints, by architecture and type, the share of right first plans of families left out."""
    print("left out in turn: share of first plans right, table / formulas (calls)")
    for (architecture, version), every in answers.items():
        for dtype, channels_last in sorted({(a.call.dtype, a.call.channels_last) for a in every}):
            some = [a for a in every if (a.call.dtype, a.call.channels_last) == (dtype, channels_last)]
            counts = _counts(some, architecture, version, families)
            shares = "  ".join(
                f"{name} {_percent(counts, name, 'table')} / {_percent(counts, name, 'formulas')}"
                f" ({counts[name, 'calls']})"
                for name in CLASSES
                if counts[name, "calls"]
            )
            layout = "channels last" if channels_last else "contiguous"
            print(f"{architecture} cuDNN {version} {dtype} {layout}: {shares}", flush=True)


def _counts(
    answers: list[Answer], architecture: str, version: str, families: Sequence[str] | None
) -> Counter[tuple[str, str]]:
    sizes = Counter(answer.family for answer in answers)
    counts: Counter[tuple[str, str]] = Counter()
    formulas = FormulaPlans(architecture)
    for family in families or [name for name, size in sizes.items() if size >= _MIN_CALLS]:
        others = ((a.call, a.plans) for a in answers if a.family != family)
        table = PlanTable.from_bytes(encoded(version, others))
        for answer in answers:
            if answer.family != family:
                continue
            call, truth = answer.call, answer.plans[0]
            (by_formula,) = formulas.plans([call])
            for name in classes_of(call):
                counts[name, "calls"] += 1
                counts[name, "table"] += is_right(call, table.plans(call)[0], truth)
                counts[name, "formulas"] += is_right(call, by_formula[0], truth)
    return counts


def _percent(counts: Counter[tuple[str, str]], name: str, source: str) -> str:
    return f"{100 * counts[name, source] / counts[name, 'calls']:.0f} %"
