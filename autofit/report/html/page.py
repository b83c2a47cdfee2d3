"""Renders sections into one HTML file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from autofit.answers.figures import (
    Curves,
    Levers,
    ModuleMemory,
    ModuleTimes,
    Roofline,
    SizeMap,
    StepMemory,
    Workspaces,
)
from autofit.answers.section import Figure, Section
from autofit.report.html import figures
from autofit.report.html.icicle import memory_by_module, time_by_module
from autofit.report.html.plotly_js import plotly_js
from autofit.report.html.roofline import roofline
from autofit_workers.spec import shown as others

# Function that draws a figure, by the class of the figure's data.
_DRAWN: dict[type, Callable[[Any], figures.Figure]] = {
    Curves: lambda of: figures.peak_against_batch(of.lines, of.measured, of.budget_bytes),
    SizeMap: lambda of: figures.peak_by_size(of, of.budget_bytes),
    StepMemory: lambda of: figures.memory_over_step(of.lane, of.budget_bytes),
    ModuleMemory: lambda of: memory_by_module(of.nodes),
    Roofline: lambda of: roofline(of.times),
    ModuleTimes: lambda of: time_by_module(of.times),
    Workspaces: lambda of: figures.workspace_bars(of.layers),
    Levers: lambda of: figures.lever_bars(of.what_if),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Labelled number in the head of a report, such as the batch size.

    Attributes:
        name: label.
        value: number with its unit, as text.
        note: meaning of the number, or how it is known; may be empty.
    """

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Content of an HTML report, before it is laid out.

    Attributes:
        answer: sentences at the top, the main answer first.
        facts: numbers below these sentences.
        sections: tables and figures.
        made: text for the foot of the page, such as versions of the software.
    """

    title: str
    answer: tuple[str, ...]
    facts: tuple[Fact, ...]
    sections: tuple[Section, ...] = ()
    made: str = ""


def render(page: Page) -> str:
    """Text of the HTML page of a report, which loads nothing: plotly.js, styles and scripts are in it."""
    # Imported here, as it takes a part of a second and few commands write a page.
    import jinja2

    parts = resources.files(__package__)
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: others.shown(value) if type(value) is str else value,
    )
    template = environment.from_string(parts.joinpath("page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        page=page,
        # A `<` in the data could end the script element.
        figures=others.redacted(json.dumps(drawn(page), separators=(",", ":"))).replace("<", "\\u003c"),
        plotly=plotly_js(),
        style=parts.joinpath("style.css").read_text(encoding="utf-8"),
        drawing=parts.joinpath("drawing.js").read_text(encoding="utf-8"),
        script=parts.joinpath("page.js").read_text(encoding="utf-8"),
    )


def drawn(page: Page) -> dict[str, figures.Figure]:
    """Figures of a page as plotly.js data, by the name of the section that each is in."""
    return {
        section.name: _DRAWN[type(block.drawing)](block.drawing)
        for section in page.sections
        for block in section.blocks
        if isinstance(block, Figure)
    }
