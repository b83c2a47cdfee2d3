"""Renders a report's content into one HTML file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from autofit.report.html import figures
from autofit.report.html.content import Content, Table, Times
from autofit.report.html.icicle import memory_by_module, time_by_module
from autofit.report.html.roofline import roofline
from autofit.report.html.tables import class_table, module_time_table
from autofit.report.words import span_of_seconds
from autofit_workers.spec import shown as others


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Section of the HTML page: a heading, a sentence, and a figure or a table or both."""

    name: str
    title: str
    text: str = ""
    figure: figures.Figure | None = None
    table: Table | None = None


def render(content: Content) -> str:
    """HTML page as text, with plotly.js, styles and scripts inline; nothing is loaded from elsewhere."""
    # Both cost a part of a second, and few commands end in a page.
    import jinja2
    from plotly.offline import get_plotlyjs

    parts = resources.files(__package__)
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: others.shown(value) if type(value) is str else value,
    )
    template = environment.from_string(parts.joinpath("page.html.j2").read_text(encoding="utf-8"))
    shown = tuple(sections(content))
    drawn = {section.name: section.figure for section in shown if section.figure is not None}
    return template.render(
        content=content,
        sections=shown,
        # Within a script element nothing may look like its end.
        figures=others.redacted(json.dumps(drawn, separators=(",", ":"))).replace("<", "\\u003c"),
        plotly=get_plotlyjs(),
        style=parts.joinpath("style.css").read_text(encoding="utf-8"),
        script=parts.joinpath("page.js").read_text(encoding="utf-8"),
    )


def sections(content: Content) -> Iterator[Section]:
    """Sections of the HTML page that have content, in their order."""
    at = f" at {content.configuration}" if content.configuration else ""
    if content.parallels is not None:
        yield Section(name="parallels", title="Ways of training together", table=content.parallels)
    if content.frontier is not None:
        yield Section(name="frontier", title="The largest batch of every setting", table=content.frontier)
    if content.remedies:
        tried = Table(columns=("predicted",), rows=tuple((said,) for said in content.remedies))
        yield Section(name="remedies", title="What may help", table=tried)
    if content.curves or content.measured:
        yield Section(
            name="curves",
            title="Peak memory against the batch size",
            text=_about_curves(content),
            figure=figures.peak_against_batch(content.curves, content.measured, content.budget_bytes),
        )
    if content.size_map is not None:
        yield Section(
            name="sizes",
            title="Peak memory by batch and size of a sample",
            text="Predicted. The thick line is the usable memory: what is below it fits. Along a dotted line "
            "a step has as many tokens (or pixels of a side).",
            figure=figures.peak_by_size(content.size_map, content.budget_bytes),
        )
    if content.lane is not None:
        yield Section(
            name="step",
            title=f"Memory over the step{at}",
            text="Allocated memory after each allocator event, by what it holds, in the step with the "
            "peak. The dotted line is the reserved memory.",
            figure=figures.memory_over_step(content.lane, content.budget_bytes),
        )
    if content.breakdown is not None:
        yield Section(name="breakdown", title=f"Alive at the peak{at}", table=content.breakdown)
    if content.nodes:
        yield Section(
            name="modules",
            title=f"Which module holds it{at}",
            text="Memory alive at the peak, by the module that allocated or owns it. Click a module to zoom "
            "in, and the bar above to zoom out.",
            figure=memory_by_module(content.nodes),
        )
    if content.times is not None:
        yield from _of_times(content.times, at)
    if any(layer.largest_bytes for layer in content.workspaces):
        yield Section(
            name="workspaces",
            title=f"Workspaces of layers{at}",
            text="Memory that a convolution needs besides its output while it runs. Only one is in use at a "
            "time, but the allocator keeps the largest reserved.",
            figure=figures.workspace_bars(content.workspaces),
        )
    if content.what_if is not None and any(each.saved_bytes for each in content.what_if.applicable):
        yield Section(
            name="levers",
            title="What would save memory",
            text="Each change on its own at this batch size, predicted.",
            figure=figures.lever_bars(content.what_if),
        )


def _of_times(times: Times, at: str) -> Iterator[Section]:
    """Sections on the time of a step, by classes of kernels and by modules.

    Args:
        at: the configuration, for titles.
    """
    if times.classes:
        yield Section(
            name="roofline",
            title=f"How near kernels come to the card's limits{at}",
            text=_about_roofline(times),
            figure=roofline(times),
            table=class_table(times),
        )
    yield Section(
        name="time",
        title=f"Which module takes the time{at}",
        text=f"{_about_seconds(times)} Click a module to zoom in, and the bar above to zoom out; the table "
        "has each without what is in its submodules.",
        figure=time_by_module(times),
        table=module_time_table(times),
    )


def _about_roofline(times: Times) -> str:
    dots = "A dot is a class of kernels, its area the share of the step's time that they take."
    if times.timing.seconds is None:
        dots += " It stands at its roof, the most that the card allows, as no seconds are said."
    else:
        dots += " Predicted."
    return (
        f"{dots} The slope is the memory's roof, beyond which only what the cache still has can take a "
        "kernel; the level roofs are of arithmetic. Kernels without products count one operation for each "
        "element that they move."
    )


def _about_seconds(times: Times) -> str:
    timing = times.timing
    waits = f"{timing.waiting_share:.1%} of the step the device waits for the host."
    note = f"{times.note[:1].upper()}{times.note[1:]}."
    if timing.seconds is None:
        return f"Shares of the step's time on the device; {waits} {note}"
    return f"A step is predicted to take {span_of_seconds(timing.seconds)}; {waits} {note}"


def _about_curves(content: Content) -> str:
    said = ["Lines are predicted."]
    if any(line.largest_batch is not None for line in content.curves):
        said.append(
            "The marker on a line is the largest batch that fits; the cross is the next, which does not."
        )
    if content.measured:
        said.append("Open markers were measured.")
    return " ".join(said)
