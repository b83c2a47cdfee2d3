"""Lays out a predicted peak (an `Estimate`) as sections of tables and sentences."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence

from autofit.answers.memory import memory_sections
from autofit.answers.section import Bullets, Paragraph, Row, Section, grid, quiet, row, strong
from autofit.answers.words.numbers import exact, likely_and_span, rate, span_of_epoch, three_digits
from autofit.answers.words.phrases import (
    PeakNames,
    assumptions,
    batch_of_script,
    evidence_phrase,
    on_its_card,
    samples_in_words,
    span_of_bytes,
)
from autofit.answers.words.run import growth_in_words, short_source
from autofit.hardware.budget import Budget, assumed_context
from autofit.hardware.gpus import Gpu
from autofit.identity import told_version
from autofit.predict.estimate import Estimate
from autofit.settings.words import configuration
from autofit.units import format_bytes
from autofit_workers.spec.setup import Parallel
from autofit_workers.spec.versions import is_supported

_NUM_LINES = 8
_PHASES = {"model": "before the first step", "input": "between passes"}


def estimate_sections(
    estimate: Estimate,
    gpu: Gpu | None,
    *,
    of_script: bool = False,
    epoch_samples: int | None = None,
    notes: Sequence[str] = (),
) -> Iterator[Section]:
    """Yields the sections of a predicted peak: peaks, step time, memory by category, and assumptions.

    Args:
        gpu: card that the user named; None if none was named.
        of_script: whether the step is that of a user's training script, not of a model run by autofit.
        epoch_samples: samples of an epoch, to state its duration; None if the user did not give them.
        notes: further notes, shown after those of the estimate.
    """
    algorithm = estimate.knobs.conv_algo if estimate.convolves else ""
    setting = setting_in_words(estimate, of_script=of_script)
    yield configuration_section(estimate.workload, estimate.batch_size, algorithm, setting)
    if on_card := on_its_card(estimate):
        said = Paragraph(f"{on_card[0].upper()}{on_card[1:]}.", "bad")
        yield Section(name="verdict", blocks=(said,))
    yield _peaks(estimate)
    yield from _time(estimate, epoch_samples)
    yield from memory_sections(estimate)
    if of_script:
        phases = (
            (
                _PHASES.get(phase.name, phase.name),
                format_bytes(phase.num_bytes),
                "the peak" if phase.name == estimate.peak_phase else "",
            )
            for phase in estimate.phases
        )
        yield Section(name="phases", title="Allocated peak of each phase", blocks=(grid("<><", phases),))
    if estimate.growth:
        lines = (
            (format_bytes(line.bytes_per_step), "a step", short_source(line.line))
            for line in estimate.growth[:_NUM_LINES]
        )
        said = Paragraph(f"{growth_in_words(estimate.growth, estimate.seen)}.")
        yield Section(name="growth", title="Grows with each step", blocks=(grid("><<", lines), said))
    yield Section(name="notes", title="Assumed", blocks=(Bullets((*_assumed(estimate, gpu), *notes)),))


def setting_in_words(estimate: Estimate, *, of_script: bool = False) -> str:
    """Display name of how an estimate's step runs, such as `fp32 · train`, without convolution algorithm.

    Args:
        of_script: whether the step is that of a user's script, which sets precision and optimizer itself.
    """
    return configuration(
        estimate.knobs,
        estimate.mode,
        estimate.batch_kind,
        estimate.parallel,
        rank=estimate.rank,
        of_script=of_script,
    )


def configuration_section(workload: str, batch_size: int, algorithm: str, setting: str) -> Section:
    """Section with the heading of an answer: workload, batch size, convolution algorithm and setting.

    Args:
        algorithm: name of the convolution algorithm; empty for a step without convolutions.
        setting: precision, optimizer and mode in words, such as `fp32 · train`.
    """
    parts = " · ".join(filter(None, (algorithm, setting)))
    said = Paragraph(f"{workload} at batch {batch_size} · {parts}", "strong", (workload,))
    return Section(name="configuration", blocks=(said,))


def _peaks(estimate: Estimate) -> Section:
    """Section with the allocated, reserved and device peak of an estimate."""
    interval = estimate.whole_interval
    names = PeakNames.of(estimate.architecture, runs_out=estimate.runs_out)
    spread = (
        ("  at least", interval.low_bytes, ""),
        ("  at most" if estimate.is_of_whole_run else "  up to", interval.high_bytes, _rest(estimate)),
    )
    *until_reserved, device = names.peaks(
        estimate.peak_allocated_bytes, estimate.whole_peak_bytes, estimate.context_bytes
    )
    peaks = (*until_reserved, *(spread if interval.low_bytes != interval.high_bytes else ()), device)
    rows = (row(name, strong(format_bytes(size)), exact(size), quiet(note)) for name, size, note in peaks)
    return Section(name="peaks", title="Peaks", blocks=(grid("<>><", rows),), is_leading=True)


def _rest(estimate: Estimate) -> str:
    """Note that a predicted peak covers only a part of the run, as `in the first 3 steps`; else empty."""
    seen = estimate.seen
    if seen is None or estimate.is_of_whole_run:
        return ""
    phases = " and ".join(seen.unseen_phases)
    return f"without {phases}, not seen" if phases else f"in the first {seen.steps} steps"


def _time(estimate: Estimate, epoch_samples: int | None) -> Iterator[Section]:
    """Yields the section on the predicted time of a step; no section without a prediction.

    Args:
        epoch_samples: samples of an epoch, to state its duration too; None to leave it out. If given, a
            section also says why no time is predicted.
    """
    seconds, per_second = estimate.step_seconds, estimate.samples_per_second
    if seconds is None or per_second is None:
        if epoch_samples is not None:
            said = f"How long an epoch takes is not known: {estimate.step_time_note}."
            yield Section(name="seconds", blocks=(Paragraph(said),))
        of_tokens = tuple(_of_tokens(estimate))
        if of_tokens:
            yield Section(name="tokens", title="Time, predicted", blocks=(grid("<><", of_tokens),))
        return
    unit, factor = ("s", 1.0) if seconds.likely >= 1 else ("ms", 1000.0)

    def ends(low: float, high: float) -> str:
        return f"{three_digits(factor * low)} to {three_digits(factor * high)} {unit}"

    rows: list[Row] = [
        row(
            "step",
            strong(f"{three_digits(factor * seconds.likely)} {unit}"),
            f"{ends(seconds.low, seconds.high)} with 95 % confidence",
        ),
        row("", "", f"{ends(seconds.low_80, seconds.high_80)} with 80 % confidence"),
        row("samples a second", strong(rate(per_second)), ""),
        *_of_tokens(estimate),
    ]
    if epoch_samples is not None:
        epoch = span_of_epoch(epoch_samples, per_second * seconds.likely, seconds)
        rows.append(row(f"an epoch of {epoch_samples:,} samples", "", epoch))
    yield Section(name="seconds", title="Time, predicted", blocks=(grid("<><", rows),))


def _of_tokens(estimate: Estimate) -> Iterator[Row]:
    """Yields rows on the first token of a text generation and the tokens after it; none for other steps."""
    times = estimate.generation
    if times is None:
        return
    for name, seconds in (("first token", times.first_token_seconds), ("each token", times.token_seconds)):
        if seconds is not None:
            likely, span = likely_and_span(seconds)
            yield row(name, strong(likely), f"{span} with 95 % confidence")
    if times.tokens_per_second is not None:
        yield row("tokens a second", strong(rate(times.tokens_per_second)), "after the first")


def _assumed(estimate: Estimate, gpu: Gpu | None) -> tuple[str, ...]:
    """Notes on what an estimate assumes: card, context outside PyTorch's allocator, ranks, workspaces.

    Args:
        gpu: card that the user named; None if none was named.
    """
    architecture, key = (None, None) if gpu is None else (gpu.architecture, gpu.key)
    ranks = estimate.num_ranks if estimate.communicators else None
    followed = estimate.versions.get("torch_followed")
    _, context = assumed_context(architecture, key, estimate.communicators, ranks, followed)
    torch_version = importlib.metadata.version("torch")
    parallel = Parallel.named(estimate.parallel)
    return (
        *((samples_in_words(estimate.knobs, estimate.batch_size, parallel),) if parallel else ()),
        *batch_of_script(estimate),
        *(() if gpu is None else (f"{gpu.name} ({gpu.architecture})",)),
        "predicted, not measured",
        *context,
        *(() if is_supported(torch_version) else (f"PyTorch {told_version(torch_version)}",)),
        *assumptions(estimate, names_card=gpu is not None),
        *((estimate.step_time_note,) if gpu is not None and estimate.step_time_note else ()),
    )


def answer_in_words(estimate: Estimate, budget: Budget | None) -> Iterator[str]:
    """Yields sentences on an estimate's reserved peak, and on whether it fits a budget.

    Args:
        budget: memory that PyTorch may use on a card; None to leave out whether the peak fits.
    """
    interval = estimate.interval
    evidence = evidence_phrase(estimate.evidence, estimate.device)
    if on_card := on_its_card(estimate):
        where = f"{estimate.workload} at batch {estimate.batch_size} on {estimate.device.name}"
        yield f"{where} {on_card}; {evidence}."
        return
    yield (
        f"{estimate.workload} at batch {estimate.batch_size} is likely to reserve "
        f"{format_bytes(estimate.peak_reserved_bytes)} on {estimate.device.name}, {span_of_bytes(interval)} "
        f"with 95% confidence; {evidence}."
    )
    if budget is not None:
        usable = format_bytes(budget.usable_bytes)
        if interval.high_bytes <= budget.usable_bytes:
            yield f"That fits the {usable} that are usable on the card."
        elif interval.low_bytes > budget.usable_bytes:
            yield f"That does not fit the {usable} that are usable on the card."
        else:
            yield f"That may or may not fit the {usable} that are usable on the card."
