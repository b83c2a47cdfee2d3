"""Text of the memory that each lever (a changed knob or option) would save."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autofit.cli.text.advice import print_fitting
from autofit.cli.text.output import bullets, grid, headed, heading, indented, stdout, styled
from autofit.predict.estimate import Estimate
from autofit.questions.what_if import LeverResult, WhatIf
from autofit.report.remedies import how_it_fits
from autofit.report.words import change_in_words, seconds_in_words, span_of_seconds
from autofit.units import format_bytes


def print_what_if(answer: WhatIf, asked: Mapping[str, Any]) -> None:
    """Prints the levers by saved bytes of the reserved peak, and the levers without effect or not applicable.

    Args:
        asked: the options of the estimate as they were typed, for the command that fits.
    """
    console = stdout()
    base = answer.base
    peak = format_bytes(base.whole_peak_bytes)
    heading(console, f"What if: each lever on its own, against {peak} reserved at batch {base.batch_size}")
    is_stated = base.step_seconds is not None
    is_timed = any(result.relative_step_time is not None for result in answer.effective)
    table = headed(
        ("lever", "left"),
        ("saves", "right"),
        ("reserved", "right"),
        ("allocated", "right"),
        *((("step", "right"),) if is_stated else ()),
        *((("speed, about", "right"),) if is_timed else ()),
        has_long_names=is_timed,
    )
    for result in answer.effective:
        estimate = result.estimate
        assert estimate is not None
        table.add_row(
            result.lever.label,
            styled(format_bytes(result.saved_bytes), "bold green" if result.saved_bytes > 0 else ""),
            format_bytes(estimate.whole_peak_bytes),
            format_bytes(estimate.peak_allocated_bytes),
            *((_step(estimate),) if is_stated else ()),
            *((_change(result),) if is_timed else ()),
        )
    console.print(indented(table))
    bullets(console, _remarks(answer))
    if answer.inapplicable:
        heading(console, "Does not apply")
        reasons = grid("left", "left")
        by_reason: dict[str, list[LeverResult]] = {}
        for result in answer.inapplicable:
            by_reason.setdefault(result.reason, []).append(result)
        for reason, results in by_reason.items():
            reasons.add_row(_grouped(results), styled(reason, "dim"))
        console.print(indented(reasons))
    if answer.advice is not None:
        device = base.device.name
        heading(console, f"Batch {base.batch_size} may not fit on {device}")
        bullets(console, how_it_fits(answer.advice))
        print_fitting(console, answer.advice, "check", asked)


def _remarks(answer: WhatIf) -> Iterator[str]:
    yield "predicted; a minus means more memory"
    if answer.base.step_seconds is not None:
        yield f"a step as it is: {span_of_seconds(answer.base.step_seconds)} with 95 % confidence"
    saving = [result for result in answer.effective if result.saved_bytes > 0]
    if saving:
        yield f"the largest saving: {saving[0].lever.how}"
    else:
        yield "none of them saves memory here: use a smaller batch or a smaller model"
    if idle := [result for result in answer.applicable if not result.changes_something]:
        yield f"no change of memory: {_grouped(idle)}"


def _step(estimate: Estimate) -> str:
    return "–" if estimate.step_seconds is None else seconds_in_words(estimate.step_seconds.likely)


def _change(result: LeverResult) -> str:
    return "–" if result.relative_step_time is None else change_in_words(result.relative_step_time)


def _grouped(results: Iterable[LeverResult]) -> str:
    """Text of levers grouped by name: `optimizer_impl foreach, fused; conv_algo mixed`."""
    by_name = itertools.groupby(
        sorted(results, key=lambda result: result.lever.name), key=lambda result: result.lever.name
    )
    return "; ".join(f"{name} {', '.join(each.lever.value for each in group)}" for name, group in by_name)
