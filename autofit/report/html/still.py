"""Draws figures of lines and areas as SVG, for where no script may run.

A figure is the data that plotly.js takes; of the others there is no still picture.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any

_WIDTH, _HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 36
_NUM_TICKS = 4
_DASHES = {"solid": "", "dash": "6 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "10 4"}


def still_figure(figure: dict[str, Any], label: str) -> str | None:
    """SVG of a figure, with a legend; None if it has anything but lines, areas and markers.

    Args:
        figure: data and layout, as plotly.js takes them.
        label: text for readers who do not see it.
    """
    traces = [trace for trace in figure["data"] if trace.get("x")]
    if not traces or any(trace["type"] != "scatter" for trace in traces):
        return None
    drawn = list(_stacked(traces))
    axes = _Axes([x for trace, _, _ in drawn for x in trace["x"]], [y for _, _, top in drawn for y in top])
    parts = [*axes.lines(figure["layout"])]
    parts += (_shape(trace, floor, top, axes) for trace, floor, top in drawn)
    named = [trace for trace in traces if trace.get("name") and trace.get("showlegend") is not False]
    legend = "".join(f'<span style="{_swatch(trace)}">{html.escape(trace["name"])}</span>' for trace in named)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(label)}">'
        f'{"".join(parts)}</svg><div class="legend">{legend}</div>'
    )


def _stacked(traces: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[float], list[float]]]:
    """Yields each trace with the heights that it begins and ends at; areas stand on the last one."""
    below: list[float] = []
    for trace in traces:
        heights = list(trace["y"])
        if "stackgroup" not in trace:
            yield trace, [], heights
            continue
        floor = below or [0.0] * len(heights)
        below = [low + height for low, height in zip(floor, heights, strict=True)]
        yield trace, floor, below


class _Axes:
    """Scales from a figure's values to places in the picture."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self._low, self._high = min(xs), max(xs)
        self._most = max(ys) * 1.05 or 1

    def place(self, x: float, y: float) -> tuple[float, float]:
        span = (self._high - self._low) or 1
        across = _LEFT + (x - self._low) / span * (_WIDTH - _LEFT - _RIGHT)
        return round(across, 1), round(_HEIGHT - _BOTTOM - y / self._most * (_HEIGHT - _TOP - _BOTTOM), 1)

    def lines(self, layout: dict[str, Any]) -> Iterator[str]:
        """Yields the grid with its numbers, and the titles of the axes."""
        for tick in range(_NUM_TICKS + 1):
            value = self._most * tick / _NUM_TICKS
            _, down = self.place(self._low, value)
            yield f'<path class="grid" d="M{_LEFT} {down}H{_WIDTH - _RIGHT}"/>'
            yield f'<text x="{_LEFT - 6}" y="{down + 4}" text-anchor="end">{value:.3g}</text>'
            number = self._low + (self._high - self._low) * tick / _NUM_TICKS
            across, _ = self.place(number, 0)
            yield f'<text x="{across}" y="{_HEIGHT - 20}" text-anchor="middle">{number:.4g}</text>'
        across_title, up_title = (_title(layout.get(axis, {})) for axis in ("xaxis", "yaxis"))
        yield f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 4}" text-anchor="middle">{across_title}</text>'
        middle = _HEIGHT / 2
        turned = f'transform="rotate(-90 12 {middle})"'
        yield f'<text x="12" y="{middle}" text-anchor="middle" {turned}>{up_title}</text>'


def _title(axis: dict[str, Any]) -> str:
    title = axis.get("title", "")
    return html.escape(str(title.get("text", "") if isinstance(title, dict) else title))


def _shape(trace: dict[str, Any], floor: list[float], top: list[float], axes: _Axes) -> str:
    """Element of a trace: an area, a line, or marks; with its name as a tooltip."""
    tip = f"<title>{html.escape(str(trace.get('name', '')))}</title>"
    if floor:
        upper = _path(trace["x"], top, axes)
        lower = _path(list(reversed(trace["x"])), list(reversed(floor)), axes).replace("M", "L", 1)
        return f'<path d="{upper}{lower}Z" fill="{_color(trace)}" fill-opacity="0.75">{tip}</path>'
    if "lines" in trace["mode"]:
        dash = _DASHES.get(trace["line"].get("dash", "solid"), "6 4")
        style = f'stroke="{_color(trace)}" stroke-width="2" stroke-dasharray="{dash}"'
        return f'<path d="{_path(trace["x"], top, axes)}" fill="none" {style}>{tip}</path>'
    places = (axes.place(x, y) for x, y in zip(trace["x"], top, strict=True))
    return "".join(
        f'<circle cx="{x}" cy="{y}" r="4" fill="{_color(trace)}">{tip}</circle>' for x, y in places
    )


def _path(xs: Sequence[float], ys: Sequence[float], axes: _Axes) -> str:
    places = (axes.place(x, y) for x, y in zip(xs, ys, strict=True))
    return "M" + "L".join(f"{x} {y}" for x, y in places)


def _color(trace: dict[str, Any]) -> str:
    """Colour of a trace; one that depends on the theme is that of the text."""
    color = str((trace.get("line") or {}).get("color") or (trace.get("marker") or {}).get("color"))
    return "currentColor" if color.startswith("var:") else html.escape(color)


def _swatch(trace: dict[str, Any]) -> str:
    return f"border-left: 0.8em solid {_color(trace)}"
