"""Lays out the result of `autofit check` as sections: one line, and changes that would make the step fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autofit.answers.section import Bullets, Code, Paragraph, Section
from autofit.answers.words.commands import as_typed, fitting_commands
from autofit.answers.words.numbers import rate, span_of_epoch, span_of_seconds
from autofit.answers.words.phrases import span_of_bytes
from autofit.answers.words.remedies import how_it_fits, what_each_saves
from autofit.answers.words.run import growth_in_words, lengths_in_words, seen_part
from autofit.hardware.gpus import oldest_first
from autofit.predict.whole_run import fills
from autofit.questions.check import Answer, CheckResult
from autofit.settings.words import with_setting
from autofit.units import format_bytes
from autofit_workers.spec.protocol import Verdict
from autofit_workers.spec.setup import WORST, Parallel

_WORDS = {Answer.FITS: "fits", Answer.DOES_NOT_FIT: "does not fit", Answer.UNSURE: "unsure"}
_LIKELY = {
    Verdict.FITS: "it likely fits",
    Verdict.THRASH: "it likely runs but thrashes",
    Verdict.OOM: "it likely runs out of memory",
}


def check_sections(
    result: CheckResult, options: Mapping[str, Any], asked: Mapping[str, Any]
) -> Iterator[Section]:
    """Yields the answer of `autofit check`: one line, and if the batch may not fit, changes that would help.

    Args:
        options: those of the typed options that `autofit tune` takes too, from parameter name to value; the
            answer suggests a `tune` command with them.
        asked: all typed options, from parameter name to value.
    """
    yield Section(name="answer", blocks=(Paragraph(_line(result, options), is_whole=True),))
    advice = result.advice
    if advice is not None:
        commands = fitting_commands(advice, "check", asked)
        said = Bullets((*what_each_saves(advice), *how_it_fits(advice)))
        blocks = (said, *((Code(commands),) if commands else ()))
        yield Section(name="help", title="What may help", blocks=blocks)


def _line(result: CheckResult, options: Mapping[str, Any]) -> str:
    """Answer of `autofit check` on one line: whether it fits, predicted peak, usable memory, and next step.

    Args:
        options: typed options to repeat in a suggested `autofit tune` command.
    """
    where = f"{result.device.name}{_kind(result)}"
    usable = format_bytes(result.budget.usable_bytes)
    doubts = (
        [] if result.calibration.num_rows or result.calibration.observed else ["not compared with real runs"]
    )
    if len(result.architectures) > 1:
        doubts.append(f"covers {', '.join(oldest_first(result.architectures))}: --gpu narrows it")
    known = f" ({'; '.join(doubts)})" if doubts else ""
    next_step = _next_step(result, _tune(options, convolves=result.convolves))
    return (
        f"{_WORDS[result.verdict]}: {result.workload} at batch {result.batch_size} on {where} is predicted "
        f"to {_peak(result)}{known} of {usable} usable; {_growth(result)}{_time(result)}{next_step}"
    )


def _peak(result: CheckResult) -> str:
    """Clause on the predicted reserved peak, or on the memory needed where that may exceed the card's."""
    if result.need is None:
        return f"reserve {span_of_bytes(result.interval)}"
    if not result.would_thrash:
        return f"need {span_of_bytes(result.need)}"
    return f"reserve {span_of_bytes(result.interval)}, and without a limit {span_of_bytes(result.need)},"


def _growth(result: CheckResult) -> str:
    """Clauses on memory that grows with each step, phases not traced, and batch lengths; may be empty."""
    seen = result.seen
    said = "" if seen is None or not seen.unseen_phases else f"{seen_part(seen)[0]}; "
    said += "" if result.lengths is None else f"{lengths_in_words(result.lengths)}; "
    return f"{growth_in_words(result.growth, seen, full='the budget')}; {said}" if result.growth else said


def _time(result: CheckResult) -> str:
    """Clause on the predicted time of a step and an epoch, or on why the epoch's is unknown; else empty."""
    seconds, per_second, epoch_samples = result.step_seconds, result.samples_per_second, result.epoch_samples
    if seconds is None or per_second is None:
        why = f" ({result.step_time_note})" if result.step_time_note else ""
        said = "" if epoch_samples is None else f"how long an epoch takes is not known{why}; "
        of_tokens = _of_tokens(result)
        return f"{of_tokens}; {said}" if of_tokens else said
    said = f"a step likely takes {span_of_seconds(seconds)}, {rate(per_second)} samples a second"
    of_tokens = _of_tokens(result)
    if of_tokens:
        said += f", {of_tokens}"
    if epoch_samples is not None:
        samples = per_second * seconds.likely
        said += f", an epoch {span_of_epoch(epoch_samples, samples, seconds)}"
    return f"{said}; "


def _of_tokens(result: CheckResult) -> str:
    """Clause on the tokens of a text generation; empty for other steps, or where no time is stated."""
    times = result.generation
    if times is None:
        return ""
    said = []
    if times.first_token_seconds is not None:
        said.append(f"the first token likely takes {span_of_seconds(times.first_token_seconds)}")
    if times.tokens_per_second is not None:
        said.append(f"later ones come at {rate(times.tokens_per_second)} tokens a second")
    return ", ".join(said)


def _kind(result: CheckResult) -> str:
    """Clause on the convolution algorithm, worst-case batches and ranks of a check; empty if none applies."""
    parts = [result.knobs.conv_algo] if result.convolves else []
    parts += ["worst-case batches"] if result.batch_kind == WORST else []
    followed = result.versions.get("torch_followed")
    parts += [] if followed is None else [f"PyTorch {followed}"]
    return with_setting(" and ".join(parts)) + _ranks(result)


def _ranks(result: CheckResult) -> str:
    """Clause on the ranks of a check and their samples a step; empty for a single process.

    For a script's ranks it has no number of samples, as the script decides which ranks share a batch.
    """
    parallel = Parallel.named(result.parallel)
    if not parallel:
        return ""
    if parallel.is_of_script:
        return f" on one of {result.num_ranks} ranks"
    samples = result.knobs.samples_per_step(result.batch_size, parallel.num_batches)
    which = (
        f"{parallel.members.removesuffix('s')} {result.rank} of {result.num_ranks}, which needs the most"
        if result.num_kinds_of_ranks > 1
        else f"each of {result.num_ranks} {parallel.members}"
    )
    return f" on {which}, {samples} samples a step,"


def _next_step(result: CheckResult, tune: str) -> str:
    match result.verdict:
        case Answer.FITS:
            return f"{tune} finds the largest batch"
        case Answer.DOES_NOT_FIT if fills(result.growth):
            return "no smaller batch keeps that from growing"
        case Answer.DOES_NOT_FIT:
            return f"{tune} finds the largest batch that fits"
        case Answer.UNSURE:
            likely = _LIKELY[result.likely_verdict]
            return f"{likely}: measure it on the card, or use the safe batch from {tune}"


def _tune(options: Mapping[str, Any], *, convolves: bool) -> str:
    """Text of an `autofit tune` command to suggest, in backticks.

    Args:
        options: typed options to repeat, from parameter name to value.
        convolves: whether the model has convolutions; then `--conv-algo cudnn` is added unless typed.
    """
    asked = {**({"conv_algo": "cudnn"} if convolves else {}), **options}
    return f"`{as_typed('tune', asked)}`"
