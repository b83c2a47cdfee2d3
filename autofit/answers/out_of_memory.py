"""Lays out an explained out-of-memory error: what happened, what was held, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.answers.section import Bullets, Paragraph, Section, grid, table
from autofit.answers.section import left as left_column
from autofit.answers.section import right as right_column
from autofit.answers.words.phrases import span_of_bytes
from autofit.explain.out_of_memory.diagnosis import Cause
from autofit.explain.out_of_memory.reader import MemoryFailure
from autofit.questions.failures.explained import Avoiding, ExplainedError
from autofit.units import format_bytes

_NUM_ERRORS = 8
_CAUSES = {
    Cause.TOO_LARGE: "one request was larger than all there was",
    Cause.LIMITED: "the process had reached the limit that it was given",
    Cause.FRAGMENTED: "the memory was fragmented: enough was reserved and unused, in pieces too small",
    Cause.OTHER_PROCESSES: "other processes held what was missing",
    Cause.OUTSIDE: "a library beside PyTorch's allocator found no room",
    Cause.FULL: "the card was full",
    Cause.HOST: "the machine's own memory was full",
    Cause.UNKNOWN: "the error states no sizes",
}


def explained_error_sections(answer: ExplainedError) -> Iterator[Section]:
    """Yields the sections of `autofit explain-oom`."""
    yield Section(
        name="happened", blocks=(Paragraph(_happened(answer), "strong", (_CAUSES[answer.diagnosis.cause],)),)
    )
    if rows := list(_held(answer)):
        yield Section(name="held", title="On the card at that moment", blocks=(grid("<><", rows),))
    if len(answer.errors) > 1:
        rows = [(_place(each), _asked(each), each.line or each.who) for each in answer.errors[-_NUM_ERRORS:]]
        columns = (left_column("where"), right_column("asked for"), left_column("by"))
        yield Section(
            name="errors",
            title=f"Errors in the log: {len(answer.errors)}, which differ",
            blocks=(table(columns, rows, fit="listed"),),
        )
    yield Section(name="steps", title="What to do", blocks=(Bullets(answer.next_steps),))
    if answer.avoiding is not None:
        yield _avoided(answer.avoiding)


def _happened(answer: ExplainedError) -> str:
    error = answer.error
    where = f" on {place}" if (place := _place(error)) else ""
    asked = "" if error.requested_bytes is None else f" when asked for {format_bytes(error.requested_bytes)}"
    by = f" at {error.line}" if error.line else ""
    times = f", {error.count} times" if error.count > 1 else ""
    return f"{error.who} ran out of memory{where}{asked}{by}{times}: {_CAUSES[answer.diagnosis.cause]}"


def _place(error: MemoryFailure) -> str:
    device = "" if error.device is None else f"GPU {error.device}"
    rank = "" if error.rank is None else f"rank {error.rank}"
    return ", ".join(filter(None, (device, rank)))


def _asked(error: MemoryFailure) -> str:
    return "" if error.requested_bytes is None else format_bytes(error.requested_bytes)


def _held(answer: ExplainedError) -> Iterator[tuple[str, str, str]]:
    """Yields rows on who held what: name, size, remark."""
    error, diagnosis = answer.error, answer.diagnosis
    fragments = {
        None: "",
        True: "enough for the request, had it been in one piece",
        False: "not enough for the request",
    }[diagnosis.is_fragmented]
    private = (
        "" if error.private_bytes is None else f"{format_bytes(error.private_bytes)} in CUDA graphs' pools"
    )
    rows = (
        ("total", error.total_bytes, ""),
        ("allowed to this process", error.allowed_bytes, "set_per_process_memory_fraction or a watermark"),
        ("this process", error.process_bytes, ""),
        ("  allocated by PyTorch", error.allocated_bytes, private),
        ("  reserved and unused", error.unallocated_bytes, fragments),
        ("  outside PyTorch's allocator", diagnosis.other_bytes, "the context, NCCL, libraries"),
    )
    yield from ((name, format_bytes(size), remark) for name, size, remark in rows if size is not None)
    for each in error.processes:
        yield f"process {each.pid}", format_bytes(each.num_bytes), ""
    if not error.processes and diagnosis.others_bytes:
        yield "other processes", format_bytes(diagnosis.others_bytes), ""
    elif error.process_bytes is None and diagnosis.outside_bytes is not None:
        remark = "this process's context and libraries, and other processes"
        yield "held by others than PyTorch", format_bytes(diagnosis.outside_bytes), remark
    if error.free_bytes is not None:
        yield "free", format_bytes(error.free_bytes), ""


def _avoided(avoiding: Avoiding) -> Section:
    """Section on the prediction of the workload, and the changes with which it would have fitted."""
    on = f" on {avoiding.gpu}" if avoiding.gpu else ""
    said = (
        f"{avoiding.workload} at batch {avoiding.batch_size}{on} is predicted to reserve "
        f"{span_of_bytes(avoiding.interval)}; there was room for {format_bytes(avoiding.limit_bytes)}"
    )
    if avoiding.would_fit:
        why = (
            "So a step fits, and something else took the memory: another batch size or setting than is "
            "named here, memory that grows from step to step, or what the program held before"
        )
        return Section(name="avoided", title="Predicted", blocks=(Paragraph(said), Paragraph(why)))
    rows = [
        (
            " ".join(each.options),
            f"at most {format_bytes(each.peak_reserved_bytes)}",
            "a larger card" if each.saved_bytes is None else f"saves {format_bytes(each.saved_bytes)}",
        )
        for each in avoiding.changes
    ]
    none = Paragraph("no change that was tried makes it fit" + ("" if avoiding.is_complete else " in time"))
    return Section(
        name="avoided",
        title="What would have avoided it, as predicted",
        blocks=(Paragraph(said), grid("<><", rows, fit="listed") if rows else none),
    )
