"""Describes the result of a search in sentences, for the terminal and for the HTML report."""

from __future__ import annotations

from autofit.answers.words.numbers import duration, rate, span_of_epoch, span_of_seconds
from autofit.answers.words.phrases import evidence_phrase, samples_in_words
from autofit.search.choice import RecommendedBy
from autofit.settings.goals import Risk
from autofit.settings.words import with_setting
from autofit.tuning.found import Best
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes, size_or_dash
from autofit_workers.spec.protocol import Evidence
from autofit_workers.spec.setup import Parallel


def answer_in_words(result: TuneResult) -> tuple[str, ...]:
    """Sentences that state the result of a search: first the batch that fits, or that nothing fits.

    Each entry has one sentence or a few; the later ones are on ranks and on kinds of batches.
    """
    kinds = () if result.batch_kinds is None else (result.batch_kinds.in_words(),)
    chosen = result.chosen
    if chosen is None:
        return (_nothing(result), *kinds)
    if result.num_ranks > 1:
        samples = samples_in_words(chosen.knobs, chosen.batch_size, Parallel.named(result.parallel))
        kinds = (f"That is {samples}.", *kinds)
    return (_found(result, chosen), *kinds)


def smallest_batch(result: TuneResult) -> int | None:
    """Smallest batch size known not to fit; None if none is known, as when the search was stopped early."""
    failing = (entry.first_failing_batch for entry in result.frontier)
    return min((size for size in failing if size is not None), default=None)


def needed_at_least(result: TuneResult) -> int | None:
    """Least memory in bytes that the smallest failing batch needs, with whatever precision, optimizer, ….

    It is the smallest predicted or measured peak above the budget at that batch size; None if there is none.
    """
    budget_bytes, smallest = result.budget.usable_bytes, smallest_batch(result)
    peaks = [trial.budgeted_bytes for trial in result.trials if trial.batch_size == smallest]
    if result.estimate is not None and result.estimate.batch_size == smallest:
        interval = result.estimate.needed
        peaks.append(interval.likely_bytes if result.risk is Risk.LIKELY else interval.high_bytes)
    # A trial that ran out of memory reports a peak within the budget, which says nothing about its need.
    return min((peak for peak in peaks if peak is not None and peak > budget_bytes), default=None)


def _found(result: TuneResult, chosen: Best) -> str:
    return (
        f"{result.workload} {_fits(result, chosen)} at batch {chosen.batch_size}{_of_size(result, chosen)} "
        f"in {format_bytes(result.budget.device_total_bytes)}"
        f"{with_setting(result.setting_names[chosen.knobs])}{_default(result, chosen)}: "
        f"{_peak(result, chosen)}; "
        f"{evidence_phrase(chosen.evidence, result.device)}.{_accumulated(chosen)}{_speed(chosen)}"
        f"{_epoch(result, chosen)}"
        f"{_largest(result, chosen)}"
    )


def _of_size(result: TuneResult, chosen: Best) -> str:
    size = result.size_in_words(chosen.knobs)
    return size and f" of {size}"


def _default(result: TuneResult, chosen: Best) -> str:
    if result.recommended is not None and result.recommended.by is RecommendedBy.PREDICTED_RATE:
        return ", predicted to be as fast as any"
    return "" if _larger(result, chosen) is None else ", PyTorch's default backend"


def _larger(result: TuneResult, chosen: Best) -> Best | None:
    """Configuration with the largest batch; None if its batch is that of the recommended configuration.

    Args:
        chosen: configuration (batch size, precision, …) that the answer recommends.
    """
    best = result.best
    return None if best is None or best.batch_size == chosen.batch_size else best


def _largest(result: TuneResult, chosen: Best) -> str:
    """Sentence on the largest batch and how much slower it is; empty if the chosen batch is the largest.

    Args:
        chosen: configuration that the answer recommends.
    """
    best = _larger(result, chosen)
    if best is None:
        return ""
    name = with_setting(result.setting_names[best.knobs])
    return f" Batch {best.batch_size} {_fits(result, best)}{name}{_cost(result, best, chosen)}."


def _cost(result: TuneResult, best: Best, chosen: Best) -> str:
    """Clause that compares the speeds of two configurations; empty if neither is known.

    Args:
        best: configuration with the largest batch.
        chosen: configuration that the answer recommends.
    """
    if best.samples_per_second is not None and chosen.samples_per_second is not None:
        return (
            f", with {rate(best.samples_per_second)} samples a second instead of "
            f"{rate(chosen.samples_per_second)}"
        )
    if best.predicted_samples_per_second is not None and chosen.predicted_samples_per_second is not None:
        return (
            f", with {rate(best.predicted_samples_per_second)} samples a second instead of "
            f"{rate(chosen.predicted_samples_per_second)}, as predicted"
        )
    costs = {(trial.knobs, trial.batch_size): trial.conv_cost for trial in result.trials}
    most = costs.get((best.knobs, best.batch_size))
    least = costs.get((chosen.knobs, chosen.batch_size))
    if most is None or least is None:
        return ""
    if most <= least:
        return ", no slower as predicted"
    return f", whose convolutions are predicted to take {most / least:.1f} times as long"


def _accumulated(best: Best) -> str:
    """Sentence on gradient accumulation: how many batches an optimizer step takes; empty without."""
    count, whole = best.grad_accumulation, best.batch_size * best.grad_accumulation
    if best.knobs.global_batch is not None and count == 1:
        return f" That is the whole global batch of {whole}."
    return "" if count == 1 else f" An optimizer step takes {count} such batches: {whole} samples."


def _fits(result: TuneResult, best: Best) -> str:
    is_likely = best.evidence is Evidence.PREDICTED and result.risk is Risk.LIKELY
    return "likely fits" if is_likely else "fits"


def _peak(result: TuneResult, best: Best) -> str:
    """Clause with the peak of a search's best batch and the usable memory."""
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
    """Sentence on the measured or predicted step time of a batch; empty if unknown."""
    num_passes = best.knobs.num_passes(best.batch_size)
    step = "A step" if num_passes == best.grad_accumulation else f"A step of {num_passes} batches"
    if best.step_seconds is None or best.samples_per_second is None:
        seconds, per_second = best.predicted_step_seconds, best.predicted_samples_per_second
        if seconds is None or per_second is None:
            return ""
        return (
            f" {step} is predicted to take {span_of_seconds(seconds)}, {rate(per_second)} samples a second."
        )
    speed = f" {step} took {best.step_seconds:.3g} s, {rate(best.samples_per_second)} samples a second."
    verified = f" It was verified by {best.soak_steps} steps in a fresh process."
    return speed if best.soak_steps is None else speed + verified


def _epoch(result: TuneResult, chosen: Best) -> str:
    """Sentence on how long an epoch takes, or that it is unknown; empty if the user gave no `--samples`.

    Args:
        chosen: configuration (batch size, precision, …) that the answer recommends.
    """
    if result.epoch_samples is None:
        return ""
    epoch = f" An epoch of {result.epoch_samples:,} samples"
    if result.epoch_seconds is None:
        return " How long an epoch takes is not known, as no step time is given."
    if chosen.predicted_step_seconds is None or chosen.samples_per_second is not None:
        return f"{epoch} takes {duration(result.epoch_seconds)}."
    num_samples = chosen.batch_size * chosen.knobs.num_passes(chosen.batch_size)
    return (
        f"{epoch} is predicted to take "
        f"{span_of_epoch(result.epoch_samples, num_samples, chosen.predicted_step_seconds)}."
    )


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
