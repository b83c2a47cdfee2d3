"""Lays out a model's summary as torchsummary prints it, and explains why a real step's memory differs."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.answers.section import (
    Bullets,
    Cell,
    Mark,
    Paragraph,
    Row,
    Section,
    Table,
    grid,
    left,
    quiet,
    right,
    row,
    table,
)
from autofit.answers.words.numbers import exact
from autofit.explain.difference import Difference
from autofit.explain.summary import Summary, SummaryPart
from autofit.hardware.budget import outside_allocator, shown_by
from autofit.predict.estimate import Estimate
from autofit.questions.summary import SummarizedEstimate
from autofit.units import format_bytes

_MIB = 1024**2
_BY_TORCHSUMMARY = (
    "counted like torchsummary: every output and its gradient kept, 4 bytes per element, MB of 1024² bytes"
)


def summary_sections(answer: SummarizedEstimate) -> Iterator[Section]:
    """Yields a model's layers and sums as torchsummary prints them, and what separates these from real peaks.

    A last section adds up the terms, such as optimizer state, between the summary's total and the peaks of a
    simulated step.
    """
    summary, estimate = answer.summary, answer.estimate
    said = f"{summary.workload} at batch {summary.batch_size}, {_BY_TORCHSUMMARY}"
    yield Section(
        name="configuration", blocks=(Paragraph(said, "strong", (summary.workload,), is_whole=True),)
    )
    for number, part in enumerate(summary.parts):
        title = " · ".join(filter(None, (part.name, part.module_type)))
        yield Section(name=f"layers-{number}", title=title, blocks=(_layers(part),))
        yield Section(name=f"sizes-{number}", blocks=(_sizes(part, summary.batch_size),))
    if len(summary.parts) > 1:
        title = f"Together: {', '.join(part.name for part in summary.parts)}"
        yield Section(name="together", title=title, blocks=(_sizes(summary, summary.batch_size),))
    off = answer.difference.summary_bytes - answer.difference.device_bytes
    word = "more" if off > 0 else "less"
    yield Section(
        name="difference",
        title=f"Simulated for comparison: a {estimate.mode} step at batch {estimate.batch_size}",
        blocks=(
            _difference(answer.difference, estimate),
            Bullets((f"The summary is {format_bytes(abs(off))} {word} than the device peak.",)),
        ),
    )


def _layers(part: SummaryPart) -> Table:
    """Table of a summary's layers with types, output shapes and numbers of parameters."""
    return table(
        (left("layer (type)"), left("module"), right("output shape"), right("param #")),
        (
            (
                each.name,
                each.layer.name,
                "\n".join(str(list(shape)) for shape in each.output_shapes),
                f"{each.num_parameters:,}",
            )
            for each in part.rows
        ),
        fit="listed",
    )


def _sizes(counted: Summary | SummaryPart, batch_size: int) -> Table:
    """Table of a summary's sums, such as bytes of parameters, for the batch and for one sample."""
    grows = counted.input_bytes + counted.forward_backward_bytes
    rows = [row("total params", f"{counted.num_parameters:,}", "")]
    for name, num_bytes, sample_bytes in (
        ("input size (MB)", counted.input_bytes, counted.input_bytes / batch_size),
        (
            "forward/backward pass size (MB)",
            counted.forward_backward_bytes,
            counted.forward_backward_bytes / batch_size,
        ),
        ("params size (MB)", counted.parameter_bytes, counted.parameter_bytes),
        ("estimated total size (MB)", counted.total_bytes, grows / batch_size + counted.parameter_bytes),
    ):
        mark: Mark = "strong" if num_bytes == counted.total_bytes else ""
        rows.append(row(Cell(name, mark), Cell(_megabytes(num_bytes), mark), _megabytes(sample_bytes)))
    return table((left(), right(f"batch {batch_size}"), right("one sample")), rows)


def _difference(difference: Difference, estimate: Estimate) -> Table:
    """Table of the terms that lead from a summary's total to the peaks of a real step."""
    outside = outside_allocator(estimate.architecture, exchanges=bool(estimate.communicators))
    shown = f"what {shown_by(estimate.architecture)} would show"
    unused = "held by the allocator: fragments and blocks freed before"
    return grid(
        "<>><",
        (
            row("", quiet("MB"), "", ""),
            _sum("  summary", difference.summary_bytes, ""),
            *(
                _term(f"{'−' if term.num_bytes < 0 else '+'} {term.name}", term.num_bytes, term.note)
                for term in difference.terms
            ),
            _sum("= allocated peak", difference.allocated_bytes, f"in {difference.peak_phase}"),
            _term("+ not in use", difference.unused_bytes, unused),
            _sum("= reserved peak", difference.reserved_bytes, "PyTorch's segments, likely"),
            _term(f"+ {outside}", difference.context_bytes, "assumed"),
            _sum("= device peak", difference.device_bytes, shown),
        ),
        fit="listed",
    )


def _term(name: str, num_bytes: int, note: str) -> Row:
    return row(name, _megabytes(num_bytes), exact(num_bytes), quiet(note))


def _sum(name: str, num_bytes: int, note: str) -> Row:
    return row(Cell(name, "strong"), Cell(_megabytes(num_bytes), "strong"), exact(num_bytes), quiet(note))


def _megabytes(num_bytes: float) -> str:
    return f"{num_bytes / _MIB:.2f}"
