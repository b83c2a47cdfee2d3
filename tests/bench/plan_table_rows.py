"""cuDNN's answers, and which of them a table has to hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from workers.predict.plan_table import (
    Copies,
    Features,
    Kind,
    Neighbours,
    PlanTable,
    copies,
    features,
    plan_of,
)
from workers.predict.plans import Plan
from workers.trace import Convolution, convolution_from_dict

# Of all tensors: a neighbour makes a row superfluous whose first plan, and whose others, come that close.
_FIRST_TOLERANCE, _OTHERS_TOLERANCE = 0.02, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The plans of one call.

    Attributes:
        family: of the models that the call comes from.
        plans: as far as any policy could ask for them.
    """

    family: str
    call: Convolution
    plans: tuple[Plan, ...]

    def to_row(self) -> list[Any]:
        plans = [[p.workspace_bytes, p.uses_tensor_cores, p.is_deterministic] for p in self.plans]
        return [self.family, dataclasses.asdict(self.call), plans]

    @classmethod
    def from_row(cls, row: list[Any]) -> Self:
        family, call, plans = row
        return cls(
            family=family,
            call=convolution_from_dict(call),
            plans=tuple(Plan(-1, size, bool(cores), bool(certain)) for size, cores, certain in plans),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """An answer as a table has it."""

    answer: Answer
    features: Features
    plans: tuple[Copies, ...]


def rows_of(answers: Iterable[Answer]) -> dict[str, list[Row]]:
    """The answers by kind; of calls that look the same to the table the first."""
    kinds: dict[str, dict[Features, Row]] = {}
    for answer in answers:
        row = Row(answer, features(answer.call), copies(answer.call, answer.plans))
        kinds.setdefault(Kind.of(answer.call).key, {}).setdefault(row.features, row)
    return {kind: list(rows.values()) for kind, rows in kinds.items()}


def table_of(kinds: dict[str, list[Row]], version: str) -> PlanTable:
    """A table of all these rows."""
    numbers: dict[tuple[Copies, ...], int] = {}
    rows = {
        kind: [(row.features, numbers.setdefault(row.plans, len(numbers))) for row in sorted_rows]
        for kind, each in kinds.items()
        for sorted_rows in [sorted(each, key=lambda row: row.features)]
    }
    return PlanTable(version=version, plans=list(numbers), rows=rows)


def condensed(answers: Iterable[Answer], version: str) -> tuple[PlanTable, int]:
    """A table that gives these answers back without holding all of them, and how many it holds."""
    kept = {kind: _needed(rows) for kind, rows in rows_of(answers).items()}
    return table_of(kept, version), sum(map(len, kept.values()))


def _needed(rows: list[Row]) -> list[Row]:
    """The rows that the others do not tell: Hart's condensed nearest neighbour rule (1968).

    A row is added if those added so far give other plans for it, until nothing is added any more.
    """
    neighbours = Neighbours()
    waiting, added = list(range(len(rows))), list[int]()
    while True:
        missing = []
        before = len(added)
        for index in waiting:
            found = neighbours.nearest(rows[index].features)
            if found is not None and _are_alike(rows[index], rows[found]):
                missing.append(index)
            else:
                neighbours.add(rows[index].features, index)
                added.append(index)
        waiting = missing
        if len(added) == before:
            return [rows[index] for index in added]


def _are_alike(row: Row, other: Row) -> bool:
    if row.plans == other.plans:
        return True
    theirs = [plan_of(row.answer.call, kept) for kept in other.plans]
    return all(
        _are_close(_roles(row.answer.plans, *flags), _roles(theirs, *flags), row.answer.call)
        for flags in ((False, False), (True, False), (False, True), (True, True))
    )


def _roles(plans: Sequence[Plan], ieee_only: bool, deterministic_only: bool) -> tuple[int, ...]:
    """The first, the smallest and the largest workspace of the plans that are allowed."""
    sizes = [
        plan.workspace_bytes
        for plan in plans
        if not (ieee_only and plan.uses_tensor_cores) and (plan.is_deterministic or not deterministic_only)
    ]
    return (sizes[0], min(sizes), max(sizes)) if sizes else ()


def _are_close(ours: tuple[int, ...], theirs: tuple[int, ...], call: Convolution) -> bool:
    limits = (_FIRST_TOLERANCE, _OTHERS_TOLERANCE, _OTHERS_TOLERANCE)
    return len(ours) == len(theirs) and all(
        abs(one - other) <= limit * tensor_bytes(call)
        for one, other, limit in zip(ours, theirs, limits, strict=False)
    )


def tensor_bytes(call: Convolution) -> int:
    """Bytes of input, output and weight."""
    total = 0
    for shape in (call.input_shape, call.output_shape, call.weight_shape):
        size = call.element_bytes
        for side in shape:
            size *= side
        total += size
    return total
