"""The text of an estimate."""

from __future__ import annotations

import importlib.metadata

from rich.console import Console

from autofit.cli.text.output import bullets, exact, grid, heading, indented, print_memory, stdout, styled
from autofit.hardware.budget import assumed_context
from autofit.identity import told_version
from autofit.predict.estimate import Estimate
from autofit.report.run_in_words import growth_in_words, lengths_in_words, seen_part, short_source
from autofit.report.words import (
    PeakNames,
    assumed_sizes,
    batch_of_script,
    on_its_card,
    rank_peaks,
    rate,
    samples_in_words,
    span_of_epoch,
    three_digits,
    unnamed_card,
    widest,
    workspaces,
)
from autofit.settings.tune_settings import TuneSettings
from autofit.settings.words import configuration
from autofit.units import format_bytes
from autofit_workers.spec.setup import Parallel
from autofit_workers.spec.versions import is_supported


def print_estimate(estimate: Estimate, settings: TuneSettings) -> None:
    """Prints an estimate's allocated, reserved and device peaks, their breakdown, and the assumptions."""
    console = stdout()
    workload = styled(estimate.workload, "bold")
    knobs = configuration(
        estimate.knobs,
        estimate.mode,
        estimate.batch_kind,
        estimate.parallel,
        rank=estimate.rank,
        of_script=settings.script is not None,
    )
    algorithm = f"{estimate.knobs.conv_algo} · " if estimate.convolves else ""
    console.print(workload, f"at batch {estimate.batch_size} · {algorithm}{knobs}")
    console.print()
    if on_card := on_its_card(estimate):
        console.print(styled(f"{on_card[0].upper()}{on_card[1:]}.", "bold red"))
        console.print()
    table = grid("left", "right", "right", "left")
    interval = estimate.whole_interval
    names = PeakNames.of(estimate.architecture, runs_out=estimate.runs_out)
    peaks = [
        ("allocated peak", estimate.peak_allocated_bytes, "live tensors"),
        (names.reserved, estimate.whole_peak_bytes, "PyTorch's segments, likely"),
        ("  at least", interval.low_bytes, ""),
        ("  at most" if estimate.is_of_whole_run else "  up to", interval.high_bytes, _rest(estimate)),
        (names.device, estimate.whole_device_bytes, names.of_device),
    ]
    if interval.low_bytes == interval.high_bytes:
        del peaks[2:4]
    for name, num_bytes, note in peaks:
        table.add_row(name, styled(format_bytes(num_bytes), "bold"), exact(num_bytes), styled(note, "dim"))
    console.print(indented(table))
    _print_time(console, estimate, settings.epoch_samples)
    heading(console, "Where the memory goes")
    print_memory(console, estimate)
    if settings.script is not None:
        heading(console, "Allocated peak of each phase")
        _print_phases(console, estimate)
    if estimate.growth:
        heading(console, "Grows with each step")
        _print_growth(console, estimate)
    heading(console, "Assumed")
    gpu = settings.gpu
    architecture, key = (None, None) if gpu is None else (gpu.architecture, gpu.key)
    ranks = estimate.num_ranks if estimate.communicators else None
    _, context = assumed_context(architecture, key, estimate.communicators, ranks)
    card = unnamed_card(estimate.architectures) if gpu is None else f"{gpu.name} ({gpu.architecture})"
    torch_version = importlib.metadata.version("torch")
    unverified = () if is_supported(torch_version) else (f"PyTorch {told_version(torch_version)}",)
    parallel = Parallel.named(estimate.parallel)
    of_all = (samples_in_words(estimate.knobs, estimate.batch_size, parallel),) if parallel else ()
    said = (
        *rank_peaks(estimate),
        *of_all,
        *batch_of_script(estimate),
        card,
        "predicted, not measured",
        *context,
        *workspaces(estimate),
        *unverified,
        estimate.calibration.note,
        *widest(estimate),
        *assumed_sizes(estimate),
        *seen_part(estimate.seen),
        *([lengths_in_words(estimate.lengths)] if estimate.lengths else ()),
        *((estimate.step_time_note,) if gpu is not None and estimate.step_time_note else ()),
        *estimate.notes,
    )
    bullets(console, said)


def _rest(estimate: Estimate) -> str:
    """Note on the phases or steps that an estimate's interval does not cover; empty if it covers the run."""
    seen = estimate.seen
    if seen is None or estimate.is_of_whole_run:
        return ""
    phases = " and ".join(seen.unseen_phases)
    return f"without {phases}, not seen" if phases else f"in the first {seen.steps} steps"


def _print_growth(console: Console, estimate: Estimate) -> None:
    table = grid("right", "left", "left")
    for line in estimate.growth[:_NUM_LINES]:
        table.add_row(format_bytes(line.bytes_per_step), "a step", short_source(line.line))
    console.print(indented(table))
    console.print(f"  {growth_in_words(estimate.growth, estimate.seen)}.")


def _print_time(console: Console, estimate: Estimate, epoch_samples: int | None) -> None:
    """Prints the predicted time of a step and of an epoch, if the estimate has these times."""
    seconds, per_second = estimate.step_seconds, estimate.samples_per_second
    if seconds is None or per_second is None:
        if epoch_samples is not None:
            console.print()
            console.print(f"How long an epoch takes is not known: {estimate.step_time_note}.")
        return
    heading(console, "Time, predicted")
    table = grid("left", "right", "left")
    unit, factor = ("s", 1.0) if seconds.likely >= 1 else ("ms", 1000.0)
    for name, low, high in (
        ("step", seconds.low, seconds.high),
        ("", seconds.low_80, seconds.high_80),
    ):
        level = "95 %" if name else "80 %"
        likely = styled(f"{three_digits(factor * seconds.likely)} {unit}", "bold") if name else ""
        ends = f"{three_digits(factor * low)} to {three_digits(factor * high)} {unit}"
        table.add_row(name, likely, f"{ends} with {level} confidence")
    table.add_row("samples a second", styled(rate(per_second), "bold"), "")
    if epoch_samples is not None:
        epoch = span_of_epoch(epoch_samples, per_second * seconds.likely, seconds)
        table.add_row(f"an epoch of {epoch_samples:,} samples", "", epoch)
    console.print(indented(table))


_NUM_LINES = 8
_PHASES = {"model": "before the first step", "input": "between passes"}


def _print_phases(console: Console, estimate: Estimate) -> None:
    table = grid("left", "right", "left")
    for phase in estimate.phases:
        note = "the peak" if phase.name == estimate.peak_phase else ""
        table.add_row(_PHASES.get(phase.name, phase.name), format_bytes(phase.num_bytes), note)
    console.print(indented(table))
