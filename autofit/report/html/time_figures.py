"""The figures of a step's time: the roofline plot, and the tree of modules by time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autofit.explain.timing import Timing
from autofit.explain.views.device_time import ClassTime
from autofit.report.html.content import Times
from autofit.report.html.figures import BRANCH_COLORS, LINES
from autofit.report.html.icicle import Figure, module_icicle
from autofit.report.words import seconds_in_words

_LEAST_SHARE = 0.002  # of the step, from which on a class has a dot; the table has all
_LARGEST_DOT = 46.0  # pixels across, of the class that takes most
_SMALLEST_DOT = 8.0  # so that it is seen
_NARROW = 260.0, 240.0  # pixels that a narrow figure has for its dots
_NUMBER_RADIUS = 7.0
_LINE_RADIUS = 2.0
_NUM_STEPS = 60  # of a line, which lie as near as numbers are large
_DIRECTIONS = {
    "top center": (0, 1),
    "bottom center": (0, -1),
    "top left": (-1, 1),
    "bottom right": (1, -1),
    "middle left": (-1, 0),
    "middle right": (1, 0),
    "top right": (1, 1),
    "bottom left": (-1, -1),
}
_MARGIN = 3.0  # times, around dots and ridges


def roofline(times: Times) -> Figure:
    """Classes of kernels by operations for each byte and operations a second, under the card's roofs.

    Where no seconds are said, each stands at its roof.
    """
    timing = times.timing
    dots = [(n, each) for n, each in enumerate(times.classes, 1) if each.share >= _LEAST_SHARE or n == 1]
    roofs = _roofs(times)
    bandwidth = timing.roofs.bandwidth
    intensities = [each.intensity for _, each in dots] + [flops / bandwidth for flops in roofs]
    left, right = min(intensities) / _MARGIN, max(intensities) * _MARGIN
    heights = [_height(each, timing) for _, each in dots]
    bottom, top = min(heights) / _MARGIN, max(roofs) * _MARGIN
    lines = list(_roof_lines(roofs, bandwidth, left, right))
    largest = max(each.share for _, each in dots)

    def place(intensity: float, flops: float, radius: float) -> _Placed:
        return _Placed(
            x=math.log10(intensity / left) / math.log10(right / left) * _NARROW[0],
            y=math.log10(flops / bottom) / math.log10(top / bottom) * _NARROW[1],
            radius=radius,
        )

    placed = [
        place(each.intensity, height, max(_SMALLEST_DOT, _LARGEST_DOT * math.sqrt(each.share / largest)) / 2)
        for (_, each), height in zip(dots, heights, strict=True)
    ]
    steps = [left * (right / left) ** (step / _NUM_STEPS) for step in range(_NUM_STEPS + 1)]
    on_lines = [place(at, min(at * bandwidth, flops), _LINE_RADIUS) for flops in roofs for at in steps]
    marks = [
        _dot(number, each, timing, diameter=2 * at.radius, color=color, side=side)
        for (number, each), at, (color, _, _), side in zip(
            dots, placed, itertools.cycle(LINES), _sides(placed, on_lines), strict=False
        )
    ]
    attained = "FLOP/s at most" if timing.seconds is None else "FLOP/s attained"
    return {
        "data": [*lines, *marks],
        "layout": {
            "height": 560,
            "hovermode": "closest",
            "xaxis": {
                "title": {"text": "FLOPs for each byte moved"},
                "type": "log",
                "range": [math.log10(left), math.log10(right)],
                "dtick": 1,
            },
            "yaxis": {
                "title": {"text": attained},
                "type": "log",
                "range": [math.log10(bottom), math.log10(top)],
                "dtick": 1,
                "tickformat": "~s",
            },
            "legend": {"traceorder": "normal"},
        },
    }


def time_by_module(times: Times) -> Figure:
    """The tree of modules, each as wide as the time that it takes on the device."""
    timing = times.timing

    def in_words(share: float) -> str:
        seconds = timing.seconds_of(share)
        return f"{share:.1%}" if seconds is None else seconds_in_words(seconds)

    return module_icicle(
        [(each.path, each.own_share) for each in times.modules],
        root="the model and its step",
        in_words=in_words,
        whole="the device's time",
        colors=BRANCH_COLORS,
    )


def _height(each: ClassTime, timing: Timing) -> float:
    attained = each.attained_flops(timing)
    return each.most_flops if attained is None else attained


def _roofs(times: Times) -> dict[float, str]:
    """The roofs of arithmetic that kernels of the step are under, with their names."""
    names: dict[float, list[str]] = {}
    for each in times.classes:
        name = each.dtype or "vector units"
        if each.dtype and times.timing.roofs.of(each.dtype) == times.timing.roofs.vector_flops:
            name = "vector units"
        names.setdefault(each.roof_flops, []).append(name)
    return {flops: ", ".join(dict.fromkeys(named)) for flops, named in sorted(names.items())}


def _roof_lines(roofs: dict[float, str], bandwidth: float, left: float, right: float) -> Iterator[Figure]:
    """The lines, whose names are in the legend: in the figure they would lie over dots."""
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    highest = max(roofs)
    yield line | {
        "name": f"memory: {bandwidth / 1e9:,.0f} GB/s",
        "x": [left, highest / bandwidth],
        "y": [left * bandwidth, highest],
        "line": {"width": 3, "color": "var:muted"},
    }
    for (flops, name), dash in zip(
        roofs.items(), itertools.cycle(("dash", "dot", "longdashdot")), strict=False
    ):
        yield line | {
            "name": f"{name}: {flops / 1e12:.3g} TFLOP/s",
            "x": [flops / bandwidth, right],
            "y": [flops, flops],
            "line": {"width": 3, "color": "var:muted", "dash": dash},
        }


@dataclass(frozen=True, slots=True)
class _Placed:
    """A dot, in pixels of a narrow figure from its lower left corner."""

    x: float
    y: float
    radius: float

    def overlap(self, other: _Placed) -> float:
        return max(0.0, self.radius + other.radius - math.hypot(self.x - other.x, self.y - other.y))


def _sides(dots: Sequence[_Placed], on_lines: Sequence[_Placed]) -> Iterator[str]:
    """For each dot where its number overlaps least with dots, lines, and the numbers before it."""
    taken = [*dots, *on_lines]
    for dot in dots:
        numbers = {side: _number_at(dot, *direction) for side, direction in _DIRECTIONS.items()}
        free = min(numbers, key=lambda side: sum(numbers[side].overlap(each) for each in taken))
        taken.append(numbers[free])
        yield free


def _number_at(dot: _Placed, right: int, up: int) -> _Placed:
    away = dot.radius + _NUMBER_RADIUS
    return _Placed(dot.x + right * away, dot.y + up * away, _NUMBER_RADIUS)


def _dot(number: int, each: ClassTime, timing: Timing, *, diameter: float, color: str, side: str) -> Figure:
    seconds = timing.seconds_of(each.share)
    took = "" if seconds is None else f"{seconds_in_words(seconds)}, "
    return {
        "type": "scatter",
        "name": f"{number} {each.name}",
        "mode": "markers+text",
        "x": [each.intensity],
        "y": [_height(each, timing)],
        "text": [str(number)],
        "textposition": side,
        "cliponaxis": False,
        "marker": {
            "color": color,
            "size": round(diameter, 1),
            "sizemode": "diameter",
            "opacity": 0.7,
            "line": {"width": 1.5, "color": "var:panel"},
        },
        "hovertemplate": f"{each.name}: {took}{each.share:.1%} of the step<br>"
        "%{x:.3~g} FLOPs a byte, %{y:.3~s}FLOP/s<extra></extra>",
    }
