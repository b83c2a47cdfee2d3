"""The table of cuDNN's plans that we ship: its file format, and how a plan is carried to another call.

One file for each architecture and version of cuDNN, written by `tests/bench/plan_table.py`. A
workspace is mostly copies of the call's tensors in another layout, so it is kept as copies:

    workspace = a · input + b · output + c · weight + rest % · (input + output + weight)

and from one call to another that is alike, the multiples stay.
"""

from __future__ import annotations

import bisect
import functools
import gzip
import importlib.resources
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from workers.predict.plans import Plan
from workers.trace import Convolution

SCHEMA = "autofit.plans/1"
# What is left over is kept in percent of all tensors, rounded to these.
_FIRST_GRID, _OTHERS_GRID = 1, 5
_MAX_COPIES = 4
_VECTOR_BYTES = 16
_NO_ENGINE = -1

Copies = tuple[int, int, int, int, int]
Features = tuple[int, ...]


def reduced(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """The plans that any policy of `workers.predict.workspace` could ask for, in their order.

    These are the first, the smallest and the largest of all, of those without tensor cores, of the
    deterministic ones, and of those that are both.
    """
    kept: set[int] = set()
    for ieee_only in (False, True):
        for deterministic_only in (False, True):
            allowed = [
                index
                for index, plan in enumerate(plans)
                if not (ieee_only and plan.uses_tensor_cores)
                and (plan.is_deterministic or not deterministic_only)
            ]
            if allowed:
                sizes = [plans[index].workspace_bytes for index in allowed]
                kept |= {allowed[0], allowed[sizes.index(min(sizes))], allowed[sizes.index(max(sizes))]}
    return tuple(plans[index] for index in sorted(kept))


def copies(call: Convolution, plans: Sequence[Plan]) -> tuple[Copies, ...]:
    """Plans as copies of the call's tensors, what is left over, and flags: 1 tensor cores, 2 deterministic."""
    return tuple(
        _copies(call, plan, _FIRST_GRID if index == 0 else _OTHERS_GRID) for index, plan in enumerate(plans)
    )


def _copies(call: Convolution, plan: Plan, grid: int) -> Copies:
    """Many sums come close; taken is the one of few copies with little left over."""
    x, y, w = _tensor_bytes(call)
    every = sum(_plain_bytes(call))

    def cost(candidate: tuple[int, int, int]) -> float:
        a, b, c = candidate
        rest = abs(plan.workspace_bytes - (a * x + b * y + c * w)) / every
        return 20 * rest + a + b + c / 2 + abs(a - b) / 100

    several = range(_MAX_COPIES + 1)
    a, b, c = min(((a, b, c) for a in several for b in several for c in several), key=cost)
    rest = (plan.workspace_bytes - (a * x + b * y + c * w)) / every * 100
    return a, b, c, grid * round(rest / grid), plan.uses_tensor_cores + 2 * plan.is_deterministic


def plan_of(call: Convolution, kept: Copies) -> Plan:
    """The inverse of `copies` for one plan, for another call too."""
    x, y, w = _tensor_bytes(call)
    a, b, c, rest, flags = kept
    left_over = rest * sum(_plain_bytes(call)) // 100
    return Plan(
        engine=_NO_ENGINE,
        workspace_bytes=max(0, a * x + b * y + c * w + left_over),
        uses_tensor_cores=bool(flags & 1),
        is_deterministic=bool(flags & 2),
    )


def _plain_bytes(call: Convolution) -> tuple[int, int, int]:
    shapes = (call.input_shape, call.output_shape, call.weight_shape)
    x, y, w = (call.element_bytes * math.prod(shape) for shape in shapes)
    return x, y, w


def _tensor_bytes(call: Convolution) -> tuple[int, int, int]:
    """Bytes of input, output and weight as kernels copy them: channels filled up to whole vectors."""
    x, y, w = _plain_bytes(call)
    step = max(1, _VECTOR_BYTES // call.element_bytes)
    inputs, outputs = call.weight_shape[1], call.weight_shape[0] // call.groups
    wide_inputs, wide_outputs = -(-inputs // step) * step, -(-outputs // step) * step
    return (
        x // inputs * wide_inputs,
        y // outputs * wide_outputs,
        w // inputs * wide_inputs // outputs * wide_outputs,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Calls among which neighbours are looked for.

    Attributes:
        filter: `1x1`, `3x3`, `1d` (one side is longer than 1), `3d`, or `larger`.
        grouping: `dense`, `grouped` or `depthwise`.
        reach: `strided`, `dilated` or `unit`.
    """

    conv_pass: str
    dtype: str
    channels_last: bool
    filter: str
    grouping: str
    reach: str

    @classmethod
    def of(cls, call: Convolution) -> Self:
        depthwise = call.groups == call.input_shape[1] > 1
        strided = any(step > 1 for step in call.stride)
        dilated = any(step > 1 for step in call.dilation)
        return cls(
            conv_pass=str(call.conv_pass),
            dtype=call.dtype,
            channels_last=call.channels_last,
            filter=_filter_kind(call.weight_shape[2:]),
            grouping="depthwise" if depthwise else "grouped" if call.groups > 1 else "dense",
            reach="strided" if strided else "dilated" if dilated else "unit",
        )

    @property
    def key(self) -> str:
        layout = "nhwc" if self.channels_last else "nchw"
        return " ".join((self.conv_pass, self.dtype, layout, self.filter, self.grouping, self.reach))

    def likeness(self, key: str) -> tuple[bool, ...]:
        """How alike a kind with this key is: what tells more about the plans comes first."""
        conv_pass, dtype, layout, filter_, grouping, reach = key.split(" ")
        return (
            dtype == self.dtype,
            (layout == "nhwc") is self.channels_last,
            conv_pass == self.conv_pass,
            filter_ == self.filter,
            grouping == self.grouping,
            reach == self.reach,
        )


def _filter_kind(sides: tuple[int, ...]) -> str:
    if len(sides) == 3:
        return "3d"
    num_long = sum(side > 1 for side in sides)
    if num_long == 0:
        return "1x1"
    if num_long == 1:
        return "1d"
    return "3x3" if sides == (3, 3) else "larger"


def features(call: Convolution) -> Features:
    """What tells calls of one kind apart: samples, channels and filters per group, pixels, taps, groups."""
    return (
        call.input_shape[0],
        call.weight_shape[1],
        call.weight_shape[0] // call.groups,
        math.prod(call.output_shape[2:]),
        math.prod(call.weight_shape[2:]),
        call.groups,
    )


# Of a doubling, by feature. cuDNN's heuristics see matrix products: samples and pixels multiply to
# one side of the product, which `_Neighbours` sorts by.
_PRODUCT_WEIGHT = 1.0
_WEIGHTS = (0.3, 1.0, 1.0, 0.0, 1.0, 0.3)
_Position = tuple[float, ...]


def _position(of: Features) -> _Position:
    """Coordinates in which the distance is the sum of differences, the product's side first."""
    logs = [math.log2(max(1, feature)) for feature in of]
    product = _PRODUCT_WEIGHT * (logs[0] + logs[3])
    return (product, *(weight * log for weight, log in zip(_WEIGHTS, logs, strict=True) if weight))


class Neighbours:
    """The calls of one kind, and which of them is the nearest to another call.

    Args:
        rows: the features of each call with the number of its plans.
    """

    def __init__(self, rows: Iterable[tuple[Features, int]] = ()) -> None:
        self._exact: dict[Features, int] = {}
        self._sorted: list[tuple[_Position, int]] = []
        for of, plans in rows:
            if of not in self._exact:
                self._exact[of] = plans
                self._sorted.append((_position(of), plans))
        self._sorted.sort()

    def add(self, of: Features, plans: int) -> None:
        """Adds a call."""
        self._exact[of] = plans
        bisect.insort(self._sorted, (_position(of), plans))

    def nearest(self, of: Features) -> int | None:
        """The plans of that call, or of its nearest neighbour; None if there are no calls."""
        exact = self._exact.get(of)
        return exact if exact is not None else self._nearest(_position(of))

    def _nearest(self, here: _Position) -> int | None:
        """Goes up and down from the place of the call until the first coordinate alone is too far."""
        rows, best, found = self._sorted, math.inf, None
        start = bisect.bisect_left(rows, (here,))
        for indices in (range(start, len(rows)), range(start - 1, -1, -1)):
            for index in indices:
                there, plans = rows[index]
                if abs(there[0] - here[0]) >= best:
                    break
                distance = sum(map(abs, map(float.__sub__, there, here)))
                if distance < best:
                    best, found = distance, plans
        return found


class PlanTable:
    """cuDNN's plans on one architecture.

    Args:
        version: of cuDNN, as `9.20.0`.
        plans: the distinct lists of plans.
        rows: by the key of the kind, the features of the calls and the numbers of their plans.
    """

    def __init__(
        self,
        *,
        version: str,
        plans: Sequence[tuple[Copies, ...]],
        rows: dict[str, list[tuple[Features, int]]],
    ) -> None:
        self.version = version
        self._plans = plans
        self._rows = rows
        self._neighbours: dict[str, Neighbours] = {}
        self._substitutes: dict[str, str] = {}

    def plans(self, call: Convolution) -> tuple[Plan, ...]:
        """The plans of that call or, scaled to it, of the call that is most alike."""
        kind = Kind.of(call)
        key = kind.key
        if key not in self._rows:
            if key not in self._substitutes:
                self._substitutes[key] = max(self._rows, key=kind.likeness)
            key = self._substitutes[key]
        if key not in self._neighbours:
            self._neighbours[key] = Neighbours(self._rows[key])
        index = self._neighbours[key].nearest(features(call))
        assert index is not None
        return tuple(plan_of(call, kept) for kept in self._plans[index])

    def to_bytes(self) -> bytes:
        """The file: JSON of columns, compressed."""
        document = {
            "schema": SCHEMA,
            "cudnn": self.version,
            "plans": self._plans,
            "rows": {
                key: [*map(list, zip(*(of for of, _ in rows), strict=True)), [plans for _, plans in rows]]
                for key, rows in self._rows.items()
            },
        }
        text = json.dumps(document, separators=(",", ":")).encode()
        return gzip.compress(text, compresslevel=9, mtime=0)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        document: dict[str, Any] = json.loads(gzip.decompress(data))
        if document["schema"] != SCHEMA:
            raise ValueError(f"expected a table of schema {SCHEMA}, got {document['schema']!r}")
        rows = {
            key: [(tuple(of), plans) for *of, plans in zip(*columns, strict=True)]
            for key, columns in document["rows"].items()
        }
        plans = [tuple((a, b, c, rest, flags) for a, b, c, rest, flags in each) for each in document["plans"]]
        return cls(version=document["cudnn"], plans=plans, rows=rows)


@functools.cache
def held_tables() -> tuple[tuple[int, tuple[int, int]], ...]:
    """The tables that are shipped, as compute capability and the version's first two numbers."""
    names = (entry.name for entry in importlib.resources.files("workers.predict").joinpath("data").iterdir())
    found = []
    for name in names:
        if name.endswith(".json.gz"):
            architecture, version = name.removesuffix(".json.gz").split("-")
            major, minor = version.split(".")
            found.append((int(architecture.removeprefix("sm_")), (int(major), int(minor))))
    return tuple(sorted(found))


@functools.cache
def load_table(capability: int, version: tuple[int, int]) -> PlanTable:
    """One of the `held_tables`."""
    name = file_name(capability, version)
    path = importlib.resources.files("workers.predict").joinpath("data", name)
    return PlanTable.from_bytes(path.read_bytes())


def file_name(capability: int, version: tuple[int, int]) -> str:
    """What the table is called in `workers/predict/data`."""
    return f"sm_{capability}-{version[0]}.{version[1]}.json.gz"
