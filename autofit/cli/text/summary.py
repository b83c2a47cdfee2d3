"""Text of a model's summary, in torchsummary's layout, and why a real step's memory differs."""

from __future__ import annotations

from rich.console import Console

from autofit.cli.text.output import bullets, exact, grid, headed, heading, indented, listing, styled
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


def print_summary(answer: SummarizedEstimate) -> None:
    """Prints a model's layers, their sums, and the terms that lead from the sums to the simulated peaks."""
    console = listing()
    summary, estimate = answer.summary, answer.estimate
    console.print(
        styled(summary.workload, "bold"),
        f"at batch {summary.batch_size}, {_BY_TORCHSUMMARY}",
    )
    for part in summary.parts:
        title = " · ".join(filter(None, (part.name, part.module_type)))
        heading(console, title)
        _print_layers(console, part)
        _print_sizes(console, part, summary.batch_size)
    if len(summary.parts) > 1:
        heading(console, f"Together: {', '.join(part.name for part in summary.parts)}")
        _print_sizes(console, summary, summary.batch_size)
    heading(console, f"Simulated for comparison: a {estimate.mode} step at batch {estimate.batch_size}")
    _print_difference(console, answer.difference, estimate)


def _print_layers(console: Console, part: SummaryPart) -> None:
    table = headed(
        ("layer (type)", "left"), ("module", "left"), ("output shape", "right"), ("param #", "right")
    )
    for row in part.rows:
        shapes = "\n".join(str(list(shape)) for shape in row.output_shapes)
        table.add_row(row.name, row.layer.name, shapes, f"{row.num_parameters:,}")
    console.print(indented(table))
    console.print()


def _print_sizes(console: Console, counted: Summary | SummaryPart, batch_size: int) -> None:
    table = headed(("", "left"), (f"batch {batch_size}", "right"), ("one sample", "right"))
    grows = counted.input_bytes + counted.forward_backward_bytes
    table.add_row("total params", f"{counted.num_parameters:,}", "")
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
        style = "bold" if num_bytes == counted.total_bytes else ""
        table.add_row(styled(name, style), styled(_megabytes(num_bytes), style), _megabytes(sample_bytes))
    console.print(indented(table))


def _print_difference(console: Console, difference: Difference, estimate: Estimate) -> None:
    table = grid("left", "right", "right", "left")

    def row(name: str, num_bytes: int, note: str = "", *, is_sum: bool = False) -> None:
        style = "bold" if is_sum else ""
        table.add_row(
            styled(name, style), styled(_megabytes(num_bytes), style), exact(num_bytes), styled(note, "dim")
        )

    table.add_row("", styled("MB", "dim"), "", "")
    row("  summary", difference.summary_bytes, is_sum=True)
    for term in difference.terms:
        row(f"{'−' if term.num_bytes < 0 else '+'} {term.name}", term.num_bytes, term.note)
    row("= allocated peak", difference.allocated_bytes, f"in {difference.peak_phase}", is_sum=True)
    row("+ not in use", difference.unused_bytes, "held by the allocator: fragments and blocks freed before")
    row("= reserved peak", difference.reserved_bytes, "PyTorch's segments, likely", is_sum=True)
    row(
        f"+ {outside_allocator(estimate.architecture, exchanges=bool(estimate.communicators))}",
        difference.context_bytes,
        "assumed",
    )
    row(
        "= device peak",
        difference.device_bytes,
        f"what {shown_by(estimate.architecture)} would show",
        is_sum=True,
    )
    console.print(indented(table))
    off = difference.summary_bytes - difference.device_bytes
    word = "more" if off > 0 else "less"
    bullets(console, (f"The summary is {format_bytes(abs(off))} {word} than the device peak.",))


def _megabytes(num_bytes: float) -> str:
    return f"{num_bytes / _MIB:.2f}"
