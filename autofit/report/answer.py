"""A search's answer in words, for the terminal and for the report."""

from __future__ import annotations

import dataclasses

from autofit.report.words import evidence_phrase, rate, samples_in_words
from autofit.settings.goals import Risk
from autofit.settings.words import with_setting
from autofit.tuning.result import Best, FrontierEntry, TuneResult
from autofit.units import format_bytes, size_or_dash
from workers import conv
from workers.protocol import Evidence


def answer_in_words(result: TuneResult) -> tuple[str, ...]:
    """What was found, the answer first; each a sentence or a few."""
    kinds = () if result.batch_kinds is None else (result.batch_kinds.in_words(),)
    if result.best is None:
        return (_nothing(result), *kinds)
    default = _default(result, result.best)
    if result.num_ranks > 1:
        best = result.best
        samples = samples_in_words(best.knobs, best.batch_size, result.num_ranks)
        kinds = (f"That is {samples}.", *kinds)
    return (_found(result, result.best), *kinds, *(() if default is None else (default,)))


def smallest_batch(result: TuneResult) -> int | None:
    """The smallest size that is known to fail; None where a search was stopped before it knew one."""
    failing = (entry.first_failing_batch for entry in result.frontier)
    return min((size for size in failing if size is not None), default=None)


def needed_at_least(result: TuneResult) -> int | None:
    """The least that the smallest size needs under any setting, in bytes; None where it is not known."""
    budget_bytes, smallest = result.budget.usable_bytes, smallest_batch(result)
    peaks = [trial.budgeted_bytes for trial in result.trials if trial.batch_size == smallest]
    if result.estimate is not None and result.estimate.batch_size == smallest:
        interval = result.estimate.interval
        peaks.append(interval.likely_bytes if result.risk is Risk.LIKELY else interval.high_bytes)
    # What ran out of memory had reached no more than the budget: that says nothing of its need.
    return min((peak for peak in peaks if peak is not None and peak > budget_bytes), default=None)


def _found(result: TuneResult, best: Best) -> str:
    return (
        f"{result.workload} {_fits(result, best)} at batch {best.batch_size} in "
        f"{format_bytes(result.budget.device_total_bytes)}"
        f"{with_setting(result.setting_names[best.knobs])}: "
        f"{_peak(result, best)}; "
        f"{evidence_phrase(best.evidence, result.device)}.{_accumulated(best)}{_speed(best)}"
    )


def _accumulated(best: Best) -> str:
    """How an optimizer step is made of such batches, where it is made of several or had to be exact."""
    count, whole = best.grad_accumulation, best.batch_size * best.grad_accumulation
    if best.knobs.global_batch is not None and count == 1:
        return f" That is the whole global batch of {whole}."
    return "" if count == 1 else f" An optimizer step takes {count} such batches: {whole} samples."


def _fits(result: TuneResult, best: Best) -> str:
    is_likely = best.evidence is Evidence.PREDICTED and result.risk is Risk.LIKELY
    return "likely fits" if is_likely else "fits"


def _peak(result: TuneResult, best: Best) -> str:
    usable = format_bytes(result.budget.usable_bytes)
    if result.device.kind == "cpu":
        return f"a resident peak of {size_or_dash(best.device_peak_bytes)} of the {usable} usable"
    likely, interval = size_or_dash(best.peak_reserved_bytes), best.interval
    spread = (
        f" likely, {format_bytes(interval.high_bytes)} at most,"
        if best.evidence is Evidence.PREDICTED
        and interval is not None
        and interval.high_bytes != interval.likely_bytes
        else ""
    )
    return f"a reserved peak of {likely}{spread} of the {usable} usable"


def _speed(best: Best) -> str:
    if best.step_seconds is None or best.samples_per_second is None:
        return ""
    num_passes = best.knobs.num_passes(best.batch_size)
    step = "A step" if num_passes == best.grad_accumulation else f"A step of {num_passes} batches"
    speed = f" {step} took {best.step_seconds:.3g} s, {rate(best.samples_per_second)} samples a second."
    verified = f" It was verified by {best.soak_steps} steps in a fresh process."
    return speed if best.soak_steps is None else speed + verified


def _default(result: TuneResult, best: Best) -> str | None:
    """How far PyTorch's default gets, where another algorithm is the best."""
    algo, name = best.knobs.conv_algo, conv.defaults(result.device.kind)[0]
    as_default = dataclasses.replace(best.knobs, conv_algo=name)
    default = next((entry for entry in result.frontier if entry.knobs == as_default), None)
    if algo == name or default is None:
        return None
    reached = "none" if default.largest_batch is None else f"batch {default.largest_batch}"
    pace = _pace(default) or (" and is usually far faster" if algo == "native" else "")
    return f"PyTorch's default, {name}, reaches {reached}{pace}; --conv-algo {name} selects it."


def _pace(entry: FrontierEntry) -> str:
    """What was measured of a setting's speed at its largest batch."""
    if entry.samples_per_second is None:
        return ""
    return f" with {rate(entry.samples_per_second)} samples a second"


def _nothing(result: TuneResult) -> str:
    smallest = smallest_batch(result)
    if result.stopped_by is not None:
        tried = "no size was tried" if smallest is None else f"batch {smallest}, the smallest tried, failed"
        return f"Nothing is known to fit: {result.stopped_by} ended the search; {tried}."
    needed_bytes = needed_at_least(result)
    need = "more than is available" if needed_bytes is None else format_bytes(needed_bytes)
    usable = format_bytes(result.budget.usable_bytes)
    return (
        f"Nothing fits: at batch {smallest}, the smallest tried, {result.workload} needs {need}; "
        f"{usable} are usable."
    )
