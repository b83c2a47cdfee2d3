"""Roofline plot: classes of kernels, and the card's limits of arithmetic and bandwidth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from autofit.answers.figures import Times
from autofit.answers.words.numbers import seconds_in_words
from autofit.explain.timing import Timing
from autofit.explain.views.device_time import ClassTime
from autofit.report.html.figures import LINES, Figure
from autofit_workers.spec.pythons import Self

_LEAST_SHARE = 0.002  # share of the step from which a class has a dot; the table has all classes
_LARGEST_DOT = 46.0  # diameter in pixels of the class that takes most time
_SMALLEST_DOT = 8.0  # diameter in pixels of the smallest dot that is still seen
_NARROW = 260.0, 240.0  # width and height in pixels that a narrow figure has for its dots
_NUMBER_RADIUS = 7.0
_LINE_RADIUS = 2.0
_NUM_STEPS = 60  # points along a line, as close together as labels are large
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
_MARGIN = 3.0  # factor by which the axes extend beyond dots and limits


def roofline(times: Times) -> Figure:
    """Roofline plot: a dot for each kernel class at its FLOP per byte and FLOP/s, under the card's limits.

    If the seconds of the step are not predicted, each dot is at the limit above it.
    """
    timing = times.timing
    dots = {n: each for n, each in enumerate(times.classes, 1) if each.share >= _LEAST_SHARE or n == 1}
    roofs, bandwidth = _roofs(times), timing.roofs.bandwidth
    window = _Window.around(list(dots.values()), roofs, timing)
    largest = max(each.share for each in dots.values())
    placed = [
        window.place(
            each.intensity,
            _height(each, timing),
            max(_SMALLEST_DOT, _LARGEST_DOT * math.sqrt(each.share / largest)) / 2,
        )
        for each in dots.values()
    ]
    sides = _sides(placed, list(window.along(roofs, bandwidth)))
    marks = [
        _dot(number, each, timing, diameter=2 * at.radius, color=color, side=side)
        for (number, each), at, side, (color, _, _) in zip(
            dots.items(), placed, sides, itertools.cycle(LINES), strict=False
        )
    ]
    lines = _roof_lines(roofs, bandwidth, window.left, window.right)
    return {
        "data": [*lines, *marks],
        "layout": {
            "height": 560,
            "hovermode": "closest",
            "xaxis": _log_axis("FLOPs for each byte moved", window.left, window.right),
            "yaxis": _log_axis(
                "FLOP/s at most" if timing.seconds is None else "FLOP/s attained", window.bottom, window.top
            )
            | {"tickformat": "~s"},
            "legend": {"traceorder": "normal"},
        },
    }


def _log_axis(title: str, low: float, high: float) -> Figure:
    return {
        "title": {"text": title},
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "dtick": 1,
    }


def _height(each: ClassTime, timing: Timing) -> float:
    attained = each.attained_flops(timing)
    return each.most_flops if attained is None else attained


def _roofs(times: Times) -> dict[float, str]:
    """Limits of the card's arithmetic that apply to a step's kernels: from FLOP/s to the data types."""
    names: dict[float, list[str]] = {}
    for each in times.classes:
        name = each.dtype or "vector units"
        if each.dtype and times.timing.roofs.of(each.dtype) == times.timing.roofs.vector_flops:
            name = "vector units"
        names.setdefault(each.roof_flops, []).append(name)
    return {flops: ", ".join(dict.fromkeys(named)) for flops, named in sorted(names.items())}


def _roof_lines(roofs: dict[float, str], bandwidth: float, left: float, right: float) -> Iterator[Figure]:
    """Yields the line of the memory bandwidth, and one for each limit of arithmetic.

    They are named in the legend, as names within the figure would cover dots.

    Args:
        roofs: limits of arithmetic, from FLOP/s to name.
        bandwidth: bytes per second of the card's memory.
        left: least FLOP per byte on the horizontal axis.
        right: greatest FLOP per byte on that axis.
    """
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
    """Circle that a dot, a label or a point of a line covers in the roofline plot.

    Attributes:
        x, y: pixels from the lower left corner, in a figure as narrow as on a phone.
        radius: radius in pixels.
    """

    x: float
    y: float
    radius: float

    def overlap(self, other: _Placed) -> float:
        return max(0.0, self.radius + other.radius - math.hypot(self.x - other.x, self.y - other.y))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Ranges of both axes of the roofline plot, which are logarithmic.

    Attributes:
        left, right: least and greatest FLOP per byte.
        bottom, top: least and greatest FLOP/s.
    """

    left: float
    right: float
    bottom: float
    top: float

    @classmethod
    def around(cls, dots: Sequence[ClassTime], roofs: Collection[float], timing: Timing) -> Self:
        ridges = [flops / timing.roofs.bandwidth for flops in roofs]
        across = [*(each.intensity for each in dots), *ridges]
        return cls(
            left=min(across) / _MARGIN,
            right=max(across) * _MARGIN,
            bottom=min(_height(each, timing) for each in dots) / _MARGIN,
            top=max(roofs) * _MARGIN,
        )

    def place(self, intensity: float, flops: float, radius: float) -> _Placed:
        return _Placed(
            x=math.log10(intensity / self.left) / math.log10(self.right / self.left) * _NARROW[0],
            y=math.log10(flops / self.bottom) / math.log10(self.top / self.bottom) * _NARROW[1],
            radius=radius,
        )

    def along(self, roofs: Iterable[float], bandwidth: float) -> Iterator[_Placed]:
        """Yields points along the lines of the card's limits, to keep labels off these lines.

        Args:
            roofs: limits of arithmetic, in FLOP/s.
            bandwidth: bytes per second of the card's memory.
        """
        for flops in roofs:
            for step in range(_NUM_STEPS + 1):
                intensity = self.left * (self.right / self.left) ** (step / _NUM_STEPS)
                yield self.place(intensity, min(intensity * bandwidth, flops), _LINE_RADIUS)


def _sides(dots: Sequence[_Placed], on_lines: Sequence[_Placed]) -> Iterator[str]:
    """Yields for each dot the side, such as `top left`, on which its label covers the least.

    Args:
        dots: dots to be labelled.
        on_lines: points along the lines of the plot, which labels should not cover either.
    """
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
    """Plotly trace of a numbered dot for one class of kernels in the roofline plot."""
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
