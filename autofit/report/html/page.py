"""Renders sections into one HTML file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

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
from autofit.report.html.still import still_figure
from autofit_workers.spec import shown as others

if TYPE_CHECKING:
    import jinja2
    import markupsafe

_PLACE = '<div class="figure" id="figure-{}" role="img" aria-label="{}"></div>'

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
    return _template("page.html.j2").render(
        page=page,
        id=lambda name: _markup(' id="{}"', name),
        figure=lambda section: _markup(_PLACE, section.name, section.title),
        # A `<` in the data could end the script element.
        figures=others.redacted(json.dumps(drawn(page), separators=(",", ":"))).replace("<", "\\u003c"),
        plotly=plotly_js(),
        style=_text("style.css"),
        drawing=_text("drawing.js"),
        script=_text("page.js"),
    )


def render_small(page: Page) -> str:
    """HTML of an answer for a notebook's cell: sections and still figures, without scripts.

    Figures that have no still picture are left out.
    """
    found = json.loads(others.redacted(json.dumps(drawn(page))))
    pictures = {name: still_figure(figure, name) or "" for name, figure in found.items()}
    return _template("small.html.j2").render(
        page=page,
        id=lambda _name: "",  # names would be there once for each cell
        figure=lambda section: _still(pictures[section.name]),
        style=_text("small.css"),
    )


def _still(picture: str) -> markupsafe.Markup:
    """Markup of a picture, whose texts are escaped already."""
    import markupsafe

    return markupsafe.Markup(picture)  # noqa: S704 - made by `still_figure`


def _template(name: str) -> jinja2.Template:
    """Template of a page, which escapes what it is given."""
    # Imported here, as it takes a part of a second and few commands write a page.
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: others.shown(value) if type(value) is str else value,
        loader=jinja2.FunctionLoader(_text),
    )
    return environment.get_template(name)


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _markup(form: str, *values: str) -> markupsafe.Markup:
    """Markup with values that are escaped, without secrets."""
    import markupsafe

    return markupsafe.Markup(form).format(*map(others.shown, values))  # noqa: S704 - what is formatted into it is escaped


def drawn(page: Page) -> dict[str, figures.Figure]:
    """Figures of a page as plotly.js data, by the name of the section that each is in."""
    return {
        section.name: _DRAWN[type(block.drawing)](block.drawing)
        for section in page.sections
        for block in section.blocks
        if isinstance(block, Figure)
    }
