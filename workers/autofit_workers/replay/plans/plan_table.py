"""Shipped tables of cuDNN's convolution plans: file format, and scaling of a plan to another convolution.

There is one file for each architecture and version of cuDNN, written by `tests/bench/plan_table.py`. A
workspace is mostly copies of the call's tensors in another layout, so it is stored as multiples of them:

    workspace = a · input + b · output + c · weight + rest % · (input + output + weight) + bytes

and these multiples hold for similar calls of other sizes.
"""

from __future__ import annotations

import bisect
import functools
import gzip
import importlib.resources
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autofit_workers.replay.plans.plan import Plan
from autofit_workers.replay.plans.workspace import is_depthwise
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.work import Convolution

SCHEMA = "autofit.plans/2"
# The rest is stored in percent of all tensors, as a multiple of `_FIRST_GRID` for the first plan and of
# `_OTHERS_GRID` for the other plans. A rest of the first plan of up to `_EXACT_BYTES` is stored to the byte.
_FIRST_GRID, _OTHERS_GRID = 2, 10
_EXACT_BYTES = 1024**2
# Multiples of input, output and weight, the most plausible first: mostly both feature maps are copied. A rest
# makes a combination less plausible.
_REST_PRICE = 20
_SUMS = sorted(
    (a + b + c / 2 + abs(a - b) / 100, (a, b, c)) for a, b, c in itertools.product(range(5), repeat=3)
)
_VECTOR_BYTES = 16
NOT_ASKED = -1
_MEMOIZED_GEOMETRIES = _MEMOIZED_FEATURES = 2**16

Copies = tuple[int, int, int, int, int, int]
Features = tuple[int, ...]


def reduced(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Subset of a convolution's plans that is worth storing: those that some setting could make PyTorch use.

    Settings are TF32 on or off, and cuDNN's modes default, deterministic and benchmark. The subset has, in
    their order, the first plan of all, the first without tensor cores, the first deterministic one and the
    first that is both; then, unless they are among these, the smallest and the largest plan of all and the
    largest without tensor cores.
    """
    everything = range(len(plans))
    ieee = [index for index in everything if not plans[index].uses_tensor_cores]
    certain = [index for index in everything if plans[index].is_deterministic]
    both = [index for index in ieee if index in certain]
    firsts = {each[0] for each in (everything, ieee, certain, both) if each}

    def size(index: int) -> int:
        return plans[index].workspace_bytes

    extremes = {min(everything, key=size), max(everything, key=size), max(ieee or everything, key=size)}
    order = [*sorted(firsts), *sorted(extremes - firsts, key=size, reverse=True)]
    return tuple(plans[index] for index in order)


def copies(call: Convolution, plans: Sequence[Plan]) -> tuple[Copies, ...]:
    """Encodes a convolution's plans for a table, with each workspace in units of the convolution's tensors.

    Returns:
        For each plan: multiples of input, output and weight; the rest in percent of all three, or in bytes;
        and flags, 1 for tensor cores plus 2 for the same bits on every run. Equal encodings occur once.
    """
    kept = [_copies(call, plans[0], _FIRST_GRID, _EXACT_BYTES)]
    kept += [_copies(call, plan, _OTHERS_GRID, 0) for plan in plans[1:]]
    return tuple(dict.fromkeys(kept))


def _copies(call: Convolution, plan: Plan, grid: int, exact_bytes: int) -> Copies:
    """Encodes one plan: its workspace as multiples of the call's tensors plus a small remainder.

    Args:
        call: the convolution.
        plan: the plan.
        grid: number of percent that the rest is rounded to.
        exact_bytes: largest rest that is stored to the byte. Above 0, a larger rest is rounded up: a
            workspace that is rounded down would seem to fit into a segment that is too small for it.
    """
    x, y, w = _tensor_bytes(call)
    every = sum(_plain_bytes(call))
    best, found, rest = math.inf, (0, 0, 0), 0.0
    for price, (a, b, c) in _SUMS:
        if price >= best:
            break
        left_over = (plan.workspace_bytes - (a * x + b * y + c * w)) / every
        cost = price + _REST_PRICE * abs(left_over)
        if cost < best:
            best, found, rest = cost, (a, b, c), left_over
    flags = plan.uses_tensor_cores + 2 * plan.is_deterministic
    left_bytes = round(rest * every)
    if abs(left_bytes) <= exact_bytes:
        return *found, 0, left_bytes, flags
    return *found, grid * math.ceil(100 * rest / grid - 0.5 * (exact_bytes == 0)), 0, flags


def decoded(call: Convolution, kept: Iterable[Copies]) -> tuple[Plan, ...]:
    """Decodes plans that `copies` encoded, scaled to the tensors of `call`.

    The table has no engine numbers. Plans with equal multiples and flags get the same negative number as
    `engine`, so that `GridPlans` sees at which batch sizes the kernels change.

    Args:
        call: a convolution, not necessarily the one that was encoded.
        kept: the encoded plans.
    """
    (x, y, w), every = _tensor_bytes(call), sum(_plain_bytes(call))
    return tuple(
        [
            Plan(
                engine=-2 - ((a * 5 + b) * 5 + c) * 4 - flags,
                workspace_bytes=max(0, a * x + b * y + c * w + percent * every // 100 + left_bytes),
                uses_tensor_cores=bool(flags & 1),
                is_deterministic=bool(flags & 2),
            )
            for a, b, c, percent, left_bytes, flags in kept
        ]
    )


def _plain_bytes(call: Convolution) -> tuple[int, int, int]:
    shapes = (call.input_shape, call.output_shape, call.weight_shape)
    x, y, w = (call.element_bytes * math.prod(shape) for shape in shapes)
    return x, y, w


def _tensor_bytes(call: Convolution) -> tuple[int, int, int]:
    """Bytes of input, output and weight as kernels copy them: with channels padded to vectors of 16 bytes."""
    x, y, w = _plain_bytes(call)
    vector = _vector_channels(call.element_bytes)
    inputs, outputs = call.weight_shape[1], call.weight_shape[0] // call.groups
    wide_inputs, wide_outputs = -(-inputs // vector) * vector, -(-outputs // vector) * vector
    return (
        x // inputs * wide_inputs,
        y // outputs * wide_outputs,
        w // inputs * wide_inputs // outputs * wide_outputs,
    )


def _vector_channels(element_bytes: int) -> int:
    return max(1, _VECTOR_BYTES // element_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Kind of convolution calls; the call most similar to another is searched among calls of its kind.

    Attributes:
        filter: `1x1`, `3x3`, `1d` (one side is longer than 1), `3d`, or `larger`.
        grouping: `dense`, `grouped` or `depthwise`.
        reach: `strided`, `dilated` or `unit` (neither).
    """

    conv_pass: str
    dtype: str
    channels_last: bool
    filter: str
    grouping: str
    reach: str

    @classmethod
    def of(cls, call: Convolution) -> Self:
        strided = any(step > 1 for step in call.stride)
        dilated = any(step > 1 for step in call.dilation)
        return cls(
            conv_pass=str(call.conv_pass),
            dtype=call.dtype,
            channels_last=call.channels_last,
            filter=_filter_kind(call.weight_shape[2:]),
            grouping="depthwise" if is_depthwise(call) else "grouped" if call.groups > 1 else "dense",
            reach="strided" if strided else "dilated" if dilated else "unit",
        )

    @property
    def key(self) -> str:
        layout = "nhwc" if self.channels_last else "nchw"
        return f"{self.conv_pass} {self.dtype} {layout} {self.filter} {self.grouping} {self.reach}"


def likeness(key: str, other: str) -> tuple[bool, ...]:
    """Similarity of two kinds of convolutions, as a sort key that is larger for more similar kinds.

    It compares their data types first, then layout, pass, filter, grouping and reach.

    Args:
        key, other: the kinds as text, as `Kind.key` writes them.
    """
    conv_pass, dtype, layout, *shape = (a == b for a, b in zip(key.split(), other.split(), strict=True))
    return (dtype, layout, conv_pass, *shape)


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
    """Numbers that decide how similar two convolutions of one kind are.

    They are samples, channels and filters of a group, output pixels, elements of the filter, and groups.
    """
    return (
        call.input_shape[0],
        call.weight_shape[1],
        call.weight_shape[0] // call.groups,
        math.prod(call.output_shape[2:]),
        math.prod(call.weight_shape[2:]),
        call.groups,
    )


# Distance of a doubling, by feature. cuDNN's heuristics see matrix products, one side of which is samples
# times pixels: that comes first, and `Neighbours` sorts by it. Other round numbers gave the same result
# within a hundredth of the calls of families left out.
_WEIGHTS = (0.3, 0.6, 0.6, 0.0, 1.0, 0.6)
# Added to the distance if the channels of only one of two calls fill whole vectors, so the kernels of
# the other copy them first; for filters likewise. It weighs as much as ten times as many channels:
# with values from 1 to 4 the first plans of uneven calls that were left out were the same.
_UNEVEN = 2.0
_Position = tuple[float, ...]


def _position(of: Features, vector_channels: int) -> _Position:
    """Coordinates of a convolution in a space in which similar convolutions are close (sum of differences).

    Args:
        of: features of the convolution, see `features`.
        vector_channels: number of channels that fill a vector of 16 bytes.
    """
    num_samples, *geometry = of
    log = math.log2(max(1, num_samples))
    log_pixels, others = _position_of_geometry(tuple(geometry), vector_channels)
    return (log + log_pixels, _WEIGHTS[0] * log, *others)


@functools.lru_cache(maxsize=_MEMOIZED_GEOMETRIES)
def _position_of_geometry(geometry: tuple[int, ...], vector_channels: int) -> tuple[float, _Position]:
    """Part of a convolution's coordinates that does not depend on the number of samples.

    Args:
        geometry: features of the convolution without the samples.
        vector_channels: number of channels that fill a vector of 16 bytes.

    Returns:
        Base-2 logarithm of the output pixels, and the coordinates from the third on.
    """
    logs = [math.log2(max(1, feature)) for feature in geometry]
    weighted = zip(_WEIGHTS[1:], logs, strict=True)
    uneven = (_UNEVEN * (number % vector_channels > 0) for number in geometry[:2])
    return logs[2], (*(weight * log for weight, log in weighted if weight), *uneven)


class Neighbours:
    """Convolution calls of one kind in a plan table, among which the one most similar to a call is found.

    Args:
        rows: features of each call (samples, channels, …), with the index of its plans.
        vector_channels: the number of channels that fill a vector of 16 bytes.
    """

    def __init__(self, rows: Iterable[tuple[Features, int]], vector_channels: int) -> None:
        self._numbers = dict(rows)
        self._vector_channels = vector_channels

    def __len__(self) -> int:
        return len(self._numbers)

    def nearest(self, of: Features) -> int:
        """Index of the plans of the call with the features `of`, or of the call in the table most like it."""
        if of not in self._numbers:  # most calls of the usual networks are in the table itself
            of = self._places.nearest(of)
        return self._numbers[of]

    @functools.cached_property
    def _places(self) -> _Places:
        return _places(tuple(self._numbers), self._vector_channels)


class _Places:
    """Coordinates of a table's convolutions, sorted for nearest-neighbour search.

    Tables with equal convolutions share them.

    Attributes:
        nearest: returns the features of the convolution in the table that is most similar to one with given
            features; cached.
    """

    def __init__(self, known: tuple[Features, ...], vector_channels: int) -> None:
        self._vector_channels = vector_channels
        self.nearest = functools.lru_cache(maxsize=_MEMOIZED_FEATURES)(self._nearest)
        self._sorted = sorted((_position(of, vector_channels), of) for of in known)
        self._samples: dict[Features, list[int]] = {}
        for num_samples, *geometry in known:
            self._samples.setdefault(tuple(geometry), []).append(num_samples)

    def _nearest(self, of: Features) -> Features:
        """Features of the table's convolution with the smallest distance to one with the features `of`."""
        here, found = _position(of, self._vector_channels), of
        best = self._bound(of, here)
        h0, h1, h2, h3, h4, h5, h6, h7 = here
        start = bisect.bisect_left(self._sorted, (here,))
        # Search up and down from the call's place until the first coordinate alone is too far. A search over
        # batch sizes makes millions of these calls, so the sum is written out.
        for indices in (range(start, len(self._sorted)), range(start - 1, -1, -1)):
            for index in indices:
                (t0, t1, t2, t3, t4, t5, t6, t7), there = self._sorted[index]
                first = abs(t0 - h0)
                if first >= best:
                    break
                # Channels and filters alone tell most calls apart.
                distance = first + abs(t2 - h2) + abs(t3 - h3) + abs(t6 - h6) + abs(t7 - h7)
                if distance >= best:
                    continue
                distance += abs(t1 - h1) + abs(t4 - h4) + abs(t5 - h5)
                if distance < best:
                    best, found = distance, there
        return found

    def _bound(self, of: Features, here: _Position) -> float:
        """Distance within which the most similar convolution is sure to be found.

        It is the distance to the same layer with another number of samples; infinite if the table lacks the
        layer.

        Args:
            of: features of the convolution that is searched for.
            here: its coordinates.
        """
        sizes = self._samples.get(of[1:], ())
        positions = (_position((n, *of[1:]), self._vector_channels) for n in sizes)
        near = (sum(map(abs, map(float.__sub__, position, here))) for position in positions)
        return math.nextafter(1.000001 * min(near, default=math.inf), math.inf)


@functools.cache
def _places(known: tuple[Features, ...], vector_channels: int) -> _Places:
    return _Places(known, vector_channels)


class PlanTable:
    """Table of one cuDNN version's convolution plans on one architecture.

    Args:
        document: parsed JSON of the table's file, as `tests/bench/plan_table_file.py` writes it.

    Raises:
        ValueError: the document has another schema.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        if document["schema"] != SCHEMA:
            raise ValueError(f"expected a table of schema {SCHEMA}, got {document['schema']!r}")
        self.version: str = document["cudnn"]
        self._codes: list[Copies] = list(zip(*document["codes"], strict=True))
        self._plans: list[list[int]] = document["plans"]
        self._shapes: list[str] = document["shapes"]
        self._of_shape: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in self._shapes]
        for index, (shape, *rest) in enumerate(zip(*document["geometries"], strict=True)):
            self._of_shape[shape].append((index, tuple(rest)))
        self._answers: dict[str, dict[str, list[int]]] = document["answers"]
        self._neighbours: dict[str, Neighbours] = {}

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(json.loads(gzip.decompress(data)))

    def plans(self, call: Convolution) -> tuple[Plan, ...]:
        """Plans of a convolution, taken from the most similar one in the table and scaled to its size."""
        key = Kind.of(call).key
        if key not in self._neighbours:
            vector_channels = _vector_channels(call.element_bytes)
            of_kind = Neighbours(self._rows(key), vector_channels)
            self._neighbours[key] = of_kind or self._most_alike(key, vector_channels)
        number = self._neighbours[key].nearest(features(call))
        return decoded(call, map(self._codes.__getitem__, self._plans[number]))

    def _rows(self, key: str) -> Iterator[tuple[Features, int]]:
        """Yields features (samples, channels, …) of each convolution of a kind, with the index of its plans.

        Args:
            key: the kind as text, as `Kind.key` writes it.
        """
        question, shape = split_key(key)
        if shape not in self._shapes:
            return
        geometries = self._of_shape[self._shapes.index(shape)]
        for num_samples, numbers in self._answers.get(question, {}).items():
            for index, geometry in geometries:
                if (number := numbers[index]) != NOT_ASKED:
                    yield (int(num_samples), *geometry), number

    def _most_alike(self, key: str, vector_channels: int) -> Neighbours:
        """Convolutions of the most similar kind in the table, for a kind that the table lacks.

        Args:
            key: the kind as text, as `Kind.key` writes it.
            vector_channels: the number of channels that fill a vector of 16 bytes.

        Raises:
            ValueError: the table is empty.
        """
        kinds = (f"{question} {shape}" for question in self._answers for shape in self._shapes)
        for other in sorted(kinds, key=lambda other: likeness(key, other), reverse=True):
            neighbours = Neighbours(self._rows(other), vector_channels)
            if neighbours:
                return neighbours
        raise ValueError("the table is empty")


def split_key(key: str) -> tuple[str, str]:
    """Splits the text of a convolution kind in two: pass, type and layout; filter, grouping and reach."""
    words = key.split()
    return " ".join(words[:3]), " ".join(words[3:])


@functools.cache
def held_tables() -> tuple[tuple[int, tuple[int, int]], ...]:
    """Compute capability and cuDNN version (major, minor) of each shipped plan table."""
    names = (
        entry.name for entry in importlib.resources.files("autofit_workers.replay").joinpath("data").iterdir()
    )
    found = []
    for name in names:
        if name.endswith(".json.gz"):
            of_card, version = name.removesuffix(".json.gz").split("-")
            major, minor = version.split(".")
            found.append((Architecture.of(of_card).capability, (int(major), int(minor))))
    return tuple(sorted(found))


@functools.cache
def load_table(capability: int, version: tuple[int, int]) -> PlanTable:
    """Loads the shipped table of a compute capability and a cuDNN version; cached."""
    name = file_name(capability, version)
    path = importlib.resources.files("autofit_workers.replay") / "data" / name
    return PlanTable.from_bytes(path.read_bytes())


def file_name(capability: int, version: tuple[int, int]) -> str:
    """File name of a plan table in `autofit_workers/replay/data`."""
    return f"sm_{capability}-{version[0]}.{version[1]}.json.gz"
