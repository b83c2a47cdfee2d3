"""Lays out the memory that each lever (a changed knob or option) would save as sections of tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autofit.answers.figures import Levers
from autofit.answers.section import Bullets, Cell, Code, Figure, Section, grid, left, quiet, right, table
from autofit.answers.words.commands import fitting_commands
from autofit.answers.words.numbers import change_in_words, seconds_in_words, span_of_seconds
from autofit.answers.words.remedies import how_it_fits
from autofit.questions.what_if import LeverResult, WhatIf
from autofit.units import format_bytes


def what_if_sections(answer: WhatIf, asked: Mapping[str, Any]) -> Iterator[Section]:
    """Yields a table of levers (single changes of options) by the memory each saves, and those without use.

    Args:
        answer: predictions of the configuration and of each lever on it.
        asked: typed options, from parameter name to value, to repeat in a command that makes the batch fit.
    """
    base = answer.base
    peak = format_bytes(base.whole_peak_bytes)
    is_stated = base.step_seconds is not None
    is_timed = any(result.relative_step_time is not None for result in answer.effective)
    shown = table(
        (
            left("lever"),
            right("saves"),
            right("reserved"),
            right("allocated"),
            *((right("step"),) if is_stated else ()),
            *((right("speed, about"),) if is_timed else ()),
        ),
        (_cells(result, is_stated=is_stated, is_timed=is_timed) for result in answer.effective),
        has_long_names=is_timed,
    )
    drawn = any(each.saved_bytes for each in answer.applicable)
    yield Section(
        name="levers",
        title=f"What if: each lever on its own, against {peak} reserved at batch {base.batch_size}",
        blocks=(*((Figure(Levers(answer)),) if drawn else ()), shown, Bullets(tuple(_remarks(answer)))),
    )
    if answer.inapplicable:
        by_reason: dict[str, list[LeverResult]] = {}
        for result in answer.inapplicable:
            by_reason.setdefault(result.reason, []).append(result)
        reasons = grid("<<", ((_grouped(alike), quiet(reason)) for reason, alike in by_reason.items()))
        yield Section(name="inapplicable", title="Does not apply", blocks=(reasons,))
    if answer.advice is not None:
        commands = fitting_commands(answer.advice, "check", asked)
        yield Section(
            name="help",
            title=f"Batch {base.batch_size} may not fit on {base.device.name}",
            blocks=(Bullets(tuple(how_it_fits(answer.advice))), *((Code(commands),) if commands else ())),
        )


def _cells(result: LeverResult, *, is_stated: bool, is_timed: bool) -> Iterator[str | Cell]:
    estimate = result.estimate
    assert estimate is not None
    yield result.lever.label
    yield Cell(format_bytes(result.saved_bytes), "good" if result.saved_bytes > 0 else "")
    yield format_bytes(estimate.whole_peak_bytes)
    yield format_bytes(estimate.peak_allocated_bytes)
    if is_stated:
        yield "–" if estimate.step_seconds is None else seconds_in_words(estimate.step_seconds.likely)
    if is_timed:
        yield "–" if result.relative_step_time is None else change_in_words(result.relative_step_time)


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


def _grouped(results: Iterable[LeverResult]) -> str:
    """Text of levers (single changed options) by option: `optimizer_impl foreach, fused; conv_algo mixed`."""
    by_name = itertools.groupby(
        sorted(results, key=lambda result: result.lever.name), key=lambda result: result.lever.name
    )
    return "; ".join(f"{name} {', '.join(each.lever.value for each in group)}" for name, group in by_name)
