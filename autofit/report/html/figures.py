"""Builds the figures of a report as plotly.js data.

Colours that depend on the page's light or dark theme are written `var:NAME`, and filled in by drawing.js. No
figure distinguishes by colour alone: areas and bars also have patterns, lines have dashes and markers, and
all have names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from autofit.answers.figures import CurveLine, MeasuredPoint, SizeMap
from autofit.answers.words.phrases import CATEGORY_NAMES
from autofit.explain.views.timeline import Lane, Moment
from autofit.explain.views.workspaces import LayerWorkspaces
from autofit.questions.what_if import WhatIf
from autofit.units import format_bytes
from autofit_workers.spec.trace import Category
from autofit_workers.spec.work import ConvPass

Figure = dict[str, Any]

_GIB = 1024**3
_MIB = 1024**2
_NUM_LAYERS = 24
_ROW_PIXELS = 26
_FAR_BUDGET = 2.5  # ratio of budget to peak from which the budget is a note instead of a line
_NARROW_PHASE = 0.04  # share of the width below which a phase's name would not fit
# Okabe and Ito's colours, which people with any colour vision can tell apart, and a pattern for each.
_CATEGORIES = {
    Category.PARAMETER: ("#0072B2", ""),
    Category.OPTIMIZER_STATE: ("#009E73", "/"),
    Category.GRADIENT: ("#56B4E9", "\\"),
    Category.INPUT: ("#CC79A7", "-"),
    Category.ACTIVATION: ("#E69F00", "."),
    Category.WORKSPACE: ("#D55E00", "x"),
    Category.OTHER: ("#8c8c8c", "|"),
}
BRANCH_COLORS = tuple(color for color, _ in _CATEGORIES.values())
_PASSES = {
    ConvPass.FPROP: ("forward", "#0072B2", ""),
    ConvPass.DGRAD: ("gradient of the input", "#E69F00", "/"),
    ConvPass.WGRAD: ("gradient of the weight", "#009E73", "x"),
}
LINES = list(
    zip(
        ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8c8c8c"),
        ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid"),
        ("circle", "square", "diamond", "triangle-up", "cross", "pentagon", "hexagon"),
        strict=True,
    )
)


def memory_over_step(lane: Lane, budget_bytes: int | None) -> Figure:
    """Figure of allocated memory over a step's allocator events, stacked by category, with peak and budget.

    Args:
        lane: memory of one device at moments of the step.
        budget_bytes: memory that may be used, drawn as a line; None for no such line.
    """
    unit, unit_bytes = axis_unit(lane.peak_reserved_bytes)
    moments = lane.moments
    positions = [moment.position for moment in moments]
    areas = [
        {
            "type": "scatter",
            "name": CATEGORY_NAMES[category],
            "x": positions,
            "y": [round(moment.categories[category] / unit_bytes, 4) for moment in moments],
            "stackgroup": "allocated",
            "mode": "lines",
            "line": {"width": 0.8, "color": color, "shape": "hv"},
            "fillcolor": color,
            "fillpattern": {
                "shape": pattern, "size": 7, "solidity": 0.25, "fgcolor": "var:panel", "fillmode": "overlay",
            },
            "hovertemplate": f"%{{y:.2f}} {unit}",
        }
        for category, (color, pattern) in _CATEGORIES.items()
        if any(moment.categories.get(category) for moment in moments)
    ]  # fmt: skip
    reserved = {
        "type": "scatter",
        "name": "reserved",
        "x": positions,
        "y": [round(moment.reserved_bytes / unit_bytes, 4) for moment in moments],
        "mode": "lines",
        "line": {"width": 2, "color": "var:ink", "dash": "dot", "shape": "hv"},
        "hovertemplate": f"%{{y:.2f}} {unit}",
    }
    shapes, notes = _phase_marks(moments)
    peak = lane.peak
    notes.append(
        {
            "x": peak.position,
            "y": peak.allocated_bytes / unit_bytes,
            "text": f"<b>peak: {format_bytes(peak.allocated_bytes)} allocated</b><br>{peak.phase.in_words}",
            "showarrow": True, "arrowhead": 2, "ax": _towards_the_middle(peak.position, positions), "ay": -38,
            "bgcolor": "var:panel", "bordercolor": "var:ink", "borderpad": 3,
        }
    )  # fmt: skip
    top_bytes = lane.peak_reserved_bytes
    if budget_bytes is not None:
        line, note = _budget(budget_bytes, unit_bytes, is_far=budget_bytes > _FAR_BUDGET * top_bytes)
        shapes += line
        notes.append(note)
        if line:
            top_bytes = max(top_bytes, budget_bytes)
    return {
        "data": [*areas, reserved],
        "layout": {
            "height": 460,
            "hovermode": "x unified",
            "xaxis": {"title": {"text": "allocator events, in order"}, "zeroline": False},
            "yaxis": {
                "title": {"text": unit},
                "range": [0, 1.15 * top_bytes / unit_bytes],
                "zeroline": False,
            },
            "shapes": shapes,
            "annotations": notes,
            "legend": {"traceorder": "normal"},
        },
    }


def peak_against_batch(
    lines: Sequence[CurveLine], points: Sequence[MeasuredPoint], budget_bytes: int | None
) -> Figure:
    """Figure of peaks over the batch size: a line for each knob setting (precision, …), and measured points.

    The largest batch that fits and the next, which does not, are marked on each line.

    Args:
        lines: predicted peaks.
        points: measured peaks.
        budget_bytes: memory that may be used, drawn as a line; None for no such line.
    """
    everything = [peak for line in lines for peak in line.peaks_bytes] + [p.peak_bytes for p in points]
    unit, unit_bytes = axis_unit(max([*everything, budget_bytes or 0]))
    styles = dict(zip(_labels(lines, points), itertools.cycle(LINES), strict=False))
    data = [_line(line, styles[line.label], unit, unit_bytes) for line in lines]
    data += [boundary for line in lines for boundary in _boundary(line, styles[line.label], unit, unit_bytes)]
    data += _measured(points, styles, unit, unit_bytes)
    shapes: list[Figure] = []
    notes: list[Figure] = []
    if budget_bytes is not None:
        shapes, note = _budget(budget_bytes, unit_bytes, is_far=budget_bytes > 4 * max(everything, default=0))
        notes.append(note)
    return {
        "data": data,
        "layout": {
            "height": 460,
            "hovermode": "closest",
            "xaxis": {"title": {"text": "batch size"}, "rangemode": "tozero", "zeroline": False},
            "yaxis": {"title": {"text": f"reserved peak, {unit}"}, "rangemode": "tozero", "zeroline": False},
            "shapes": shapes,
            "annotations": notes,
        },
    }


def peak_by_size(found: SizeMap, budget_bytes: int | None) -> Figure:
    """Contour plot of peaks by batch size and sample size, with a thick line where the budget is reached.

    Dotted lines connect points with the same product of batch size and sample size, such as tokens a step.

    Args:
        budget_bytes: memory that may be used; None for no thick line.
    """
    unit, unit_bytes = axis_unit(max(map(max, found.peaks_bytes)))
    common: Figure = {
        "type": "contour",
        "x": list(found.sizes),
        "y": list(found.batch_sizes),
        "z": [[round(peak / unit_bytes, 3) for peak in row] for row in found.peaks_bytes],
        "hovertemplate": f"seq-len %{{x}}, batch %{{y}}: %{{z:.2f}} {unit}<extra></extra>",
    }
    data = [
        common
        | {
            "colorscale": "Cividis",
            "reversescale": True,
            "contours": {
                "showlabels": True,
                "labelfont": {"size": 12, "color": "#000000"},
                "labelformat": ".0f",
            },
            "line": {"width": 0.5},
            "colorbar": {"title": {"text": unit}, "thickness": 12},
        }
    ]
    if budget_bytes is not None:
        level = round(budget_bytes / unit_bytes, 2)
        # Peaks beyond twice the budget have one colour, so that lower peaks use the whole range of colours.
        data[0] |= {"zmin": 0, "zmax": 2 * level}
        data[0]["contours"] |= {"start": level / 5, "end": 2 * level, "size": level / 5}
        data.append(
            common
            | {
                "name": f"usable: {format_bytes(budget_bytes)}",
                "contours": {"start": level, "end": level, "size": 1, "coloring": "none"},
                "line": {"width": 4, "color": "var:alarm"},
                "showscale": False,
                "showlegend": True,
            }
        )
    data += _equal_products(found)
    return {
        "data": data,
        "layout": {
            "height": 480,
            "hovermode": "closest",
            "xaxis": _log_axis("seq-len, the size of a sample", found.sizes),
            "yaxis": _log_axis("batch size", found.batch_sizes),
        },
    }


def workspace_bars(layers: Sequence[LayerWorkspaces]) -> Figure:
    """Bar chart of the 24 convolution layers with the largest workspaces (scratch memory).

    Each layer has a bar for the forward pass and for each gradient that needs a workspace.
    """
    shown = [layer for layer in layers if layer.largest_bytes][:_NUM_LAYERS]
    unit, unit_bytes = axis_unit(max((layer.largest_bytes for layer in shown), default=0))
    names = [layer.module or "(the model)" for layer in shown]
    data = [
        _bars(
            name,
            names,
            [layer.pass_bytes.get(conv_pass, 0) for layer in shown],
            unit=(unit, unit_bytes),
            color=color,
            pattern=pattern,
        )
        for conv_pass, (name, color, pattern) in _PASSES.items()
        if any(layer.pass_bytes.get(conv_pass) for layer in shown)
    ]
    return {"data": data, "layout": _bar_layout(len(shown) * max(1, len(data)) * 0.6, f"workspace, {unit}")}


def lever_bars(what_if: WhatIf) -> Figure:
    """Bar chart of the bytes of reserved peak that each change of an option saves or adds.

    Bars to the right show savings, bars to the left show additional memory.
    """
    results = [result for result in what_if.applicable if result.saved_bytes]
    unit, unit_bytes = axis_unit(max((abs(result.saved_bytes) for result in results), default=0))
    names = [result.lever.label for result in results]
    data = []
    for name, color, pattern, sign in (("saves", "#0072B2", "", 1), ("takes more", "#D55E00", "/", -1)):
        sizes = [result.saved_bytes if result.saved_bytes * sign > 0 else 0 for result in results]
        if any(sizes):
            bars = _bars(name, names, sizes, unit=(unit, unit_bytes), color=color, pattern=pattern)
            bars["text"] = [format_bytes(size) if size else "" for size in sizes]
            data.append(bars | {"textposition": "auto", "cliponaxis": False})
    layout = _bar_layout(len(names), f"saved from the reserved peak, {unit}")
    return {"data": data, "layout": layout | {"barmode": "relative"}}


# ── parts of figures ────────────────────────────────────────────────────────────────────────────


def axis_unit(num_bytes: int) -> tuple[str, int]:
    """Unit for a figure's axis, as name and number of bytes: GiB or MiB.

    Args:
        num_bytes: largest size that the figure shows.
    """
    return ("GiB", _GIB) if num_bytes >= _GIB else ("MiB", _MIB)


def _log_axis(title: str, values: Sequence[int]) -> Figure:
    return {
        "title": {"text": title},
        "type": "log",
        "tickvals": list(values),
        "ticktext": [f"{value:,}" for value in values],
        "range": [math.log10(values[0]), math.log10(values[-1])],
    }


def _equal_products(found: SizeMap) -> list[Figure]:
    """Lines of constant batch size times sample size; each line's product is four times that of the last."""
    lines = []
    first, last = found.sizes[0], found.sizes[-1]
    product = 4 * first * found.batch_sizes[0]
    while product < last * found.batch_sizes[-1]:
        lines.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [first, last],
                "y": [product / first, product / last],
                "line": {
                    "width": 1.5,
                    "color": "#000000",
                    "dash": "dot",
                },  # black, as the colours below it are light in both themes
                "name": f"{product:,} a step",
                "showlegend": False,
                "hovertemplate": f"{product:,} a step<extra></extra>",
            }
        )
        product *= 4
    return lines


def _towards_the_middle(position: int, positions: Sequence[int]) -> int:
    """Horizontal shift of a label in pixels, to the right in the left half of a figure, else to the left.

    Args:
        position: the label's place on the axis.
        positions: all places on the axis.
    """
    middle = (positions[0] + positions[-1]) / 2
    return -70 if position > middle else 70


def _phase_marks(moments: Sequence[Moment]) -> tuple[list[Figure], list[Figure]]:
    """Vertical lines where phases of a step (forward, backward, …) begin, and labels of the wider phases."""
    shapes: list[Figure] = []
    notes: list[Figure] = []
    first, last = moments[0].position, moments[-1].position
    for phase in dict.fromkeys(moment.phase for moment in moments):
        start, stop = max(phase.start, first), min(phase.stop, last)
        if phase.start > first:
            line = {"width": 1, "color": "var:muted", "dash": "dot"}
            shapes.append(
                {"type": "line", "x0": start, "x1": start, "y0": 0, "y1": 1, "yref": "paper", "line": line}
            )
        if stop - start > _NARROW_PHASE * (last - first):
            notes.append(
                {
                    "x": (start + stop) / 2, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False,
                    "text": phase.name, "font": {"color": "var:muted"},
                }
            )  # fmt: skip
    return shapes, notes


def _budget(budget_bytes: int, unit_bytes: int, *, is_far: bool) -> tuple[list[Figure], Figure]:
    """Horizontal line at the budget, and its label.

    Args:
        unit_bytes: bytes of the unit of the vertical axis.
        is_far: whether the budget is so far above the drawn peaks that only the label is drawn.
    """
    text = f"usable: {format_bytes(budget_bytes)}"
    note = {"x": 0, "xref": "paper", "xanchor": "left", "showarrow": False, "bgcolor": "var:panel"}
    if is_far:
        return [], note | {"y": 1, "yref": "paper", "yanchor": "top", "text": f"↑ {text}, far above"}
    y = budget_bytes / unit_bytes
    line = {"width": 2.5, "color": "var:alarm", "dash": "longdash"}
    shape = {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": y, "y1": y, "line": line}
    return [shape], note | {
        "y": y,
        "yanchor": "bottom",
        "text": f"<b>{text}</b>",
        "font": {"color": "var:alarm"},
    }


def _labels(lines: Iterable[CurveLine], points: Iterable[MeasuredPoint]) -> list[str]:
    return list(dict.fromkeys([*(line.label for line in lines), *(point.label for point in points)]))


_Style = tuple[str, str, str]


def _line(line: CurveLine, style: _Style, unit: str, unit_bytes: int) -> Figure:
    """Plotly trace of a line of peaks over the batch size."""
    color, dash, _ = style
    reach = "" if line.largest_batch is None else f": {line.largest_batch}"
    return {
        "type": "scatter",
        "name": f"{line.label}{reach}",
        "mode": "lines",
        "x": list(line.batch_sizes),
        "y": [round(peak / unit_bytes, 4) for peak in line.peaks_bytes],
        # Solid lines are wider, so that a dashed line is seen on a solid one that it coincides with.
        "line": {"color": color, "dash": dash, "width": 4 if dash == "solid" else 2},
        "hovertemplate": f"{line.label}: batch %{{x}}, %{{y:.2f}} {unit}<extra></extra>",
    }


def _boundary(line: CurveLine, style: _Style, unit: str, unit_bytes: int) -> list[Figure]:
    """Two markers on a line of peaks: the largest batch size that fits, and the next, which does not.

    A marker is left out if its batch size is unknown.
    """
    peaks = dict(zip(line.batch_sizes, line.peaks_bytes, strict=True))
    color, _, symbol = style
    marks = []
    for size, what, mark in (
        (line.largest_batch, "fits", symbol),
        (line.first_failing_batch, "does not fit", "x-thin"),
    ):
        if size is None or size not in peaks:
            continue
        marks.append(
            {
                "type": "scatter",
                "name": f"{line.label}: {what}",
                "showlegend": False,
                "mode": "markers",
                "x": [size],
                "y": [peaks[size] / unit_bytes],
                "marker": {"color": color, "symbol": mark, "size": 11, "line": {"width": 2, "color": color}},
                "hovertemplate": f"{line.label}: batch %{{x}} {what}, %{{y:.2f}} {unit}<extra></extra>",
            }
        )
    return marks


def _measured(
    points: Sequence[MeasuredPoint], styles: dict[str, _Style], unit: str, unit_bytes: int
) -> list[Figure]:
    """Plotly traces of measured points, one for each knob setting."""
    return [
        {
            "type": "scatter",
            "name": f"{label}, measured",
            "mode": "markers",
            "x": [point.batch_size for point in group],
            "y": [point.peak_bytes / unit_bytes for point in group],
            "text": [point.verdict for point in group],
            "marker": {
                "color": styles[label][0],
                "symbol": f"{styles[label][2]}-open",
                "size": 12,
                "line": {"width": 2},
            },
            "hovertemplate": f"{label}, measured: batch %{{x}}, %{{y:.2f}} {unit}, %{{text}}<extra></extra>",
        }
        for label, group in (
            (label, [point for point in points if point.label == label]) for label in _labels((), points)
        )
    ]  # fmt: skip


def _bars(
    name: str, names: Sequence[str], sizes: Sequence[int], *, unit: tuple[str, int], color: str, pattern: str
) -> Figure:
    """Plotly trace of horizontal bars, one for each name."""
    word, unit_bytes = unit
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": [round(size / unit_bytes, 4) for size in sizes],
        "y": list(names),
        "marker": {
            "color": color,
            "pattern": {
                "shape": pattern, "size": 6, "solidity": 0.3, "fgcolor": "var:panel", "fillmode": "overlay",
            },
        },
        "hovertemplate": f"%{{y}}, {name}: %{{x:.3f}} {word}<extra></extra>",
    }  # fmt: skip


def _bar_layout(num_rows: float, title: str) -> Figure:
    return {
        "height": round(130 + _ROW_PIXELS * max(num_rows, 2)),
        "barmode": "group",
        "xaxis": {"title": {"text": title}, "zeroline": True, "zerolinecolor": "var:ink"},
        "yaxis": {"autorange": "reversed", "automargin": True, "ticklabelstandoff": 6},
    }
