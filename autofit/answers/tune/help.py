"""Phrases on the changes of options that may help a search if nothing fits."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.answers.tune.answer import needed_at_least
from autofit.answers.words.remedies import how_it_fits, what_each_saves
from autofit.errors import BudgetError
from autofit.hardware.gpus import Gpu, catalogue
from autofit.settings.tune_settings import TuneSettings
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.setup import TRAIN

_NUM_CARDS = 4


def what_may_help(result: TuneResult, settings: TuneSettings) -> tuple[str, ...]:
    """Phrases on changes that may make a batch fit where nothing does, such as `--precision amp-bf16: …`.

    Changes of options come first, a larger card last. Changes that the settings have already are left out.
    """
    return tuple(_phrases(result, settings, needed_at_least(result)))


def _phrases(result: TuneResult, settings: TuneSettings, needed_bytes: int | None) -> Iterator[str]:
    """Yields phrases on changes that may make a batch fit: less memory kept free, options, a larger card."""
    budget, on_cpu = result.budget, result.device.kind == "cpu"
    kept_bytes = budget.margin_bytes + budget.other_bytes
    if needed_bytes is not None and needed_bytes <= budget.usable_bytes + kept_bytes:
        yield f"a smaller --margin or --reserve: they keep {format_bytes(kept_bytes)} free"
    state_bytes = 0 if result.estimate is None else result.estimate.breakdown.optimizer_state
    if result.advice is not None:
        yield from what_each_saves(result.advice)
        yield from how_it_fits(result.advice)
    elif settings.script is None:
        yield from _settings_to_change(settings, _trains(result, settings), state_bytes, on_cpu=on_cpu)
    else:
        state = f" (its state is {format_bytes(state_bytes)} now)" if state_bytes else ""
        yield f"another precision or optimizer{state}, set inside the script"
        yield "autofit.checkpoint_blocks(model) inside the script, if the model repeats blocks"
    if (
        result.advice is None
        and not on_cpu
        and result.convolves
        and "native" not in (settings.conv_algos or conv.defaults(GPU_KIND))
    ):
        yield "--conv-algo native: its workspace does not grow with the batch, but it is slow"
    if on_cpu:
        yield "a larger --gpu-mem"
    elif needed_bytes is None:
        yield "a larger card (`autofit gpus` lists them)"
    else:
        yield _larger_card(needed_bytes, settings)


def _settings_to_change(
    settings: TuneSettings, trains: bool, state_bytes: int, *, on_cpu: bool
) -> Iterator[str]:
    searched = dict(settings.searched)
    if settings.knobs.precision in ("fp32", "ieee-fp32", "tf32") and "precision" not in searched:
        yield "--precision amp-bf16: most activations take half the bytes"
    if state_bytes and settings.knobs.optimizer != "sgd" and "optimizer" not in searched:
        yield f"--optimizer sgd: it keeps no state (now {format_bytes(state_bytes)})"
    if trains and settings.knobs.checkpointing == "none" and "checkpointing" not in searched:
        yield "--checkpointing blocks, if the model repeats blocks: they run again in backward"
    if not on_cpu and settings.knobs.allocator == "default" and "allocator" not in searched:
        yield "--allocator expandable_segments: it leaves fewer gaps between allocations"


def _trains(result: TuneResult, settings: TuneSettings) -> bool:
    """Whether the steps of a search train the model, as opposed to inference or generation."""
    mode = settings.setup.mode if result.estimate is None else result.estimate.mode
    return mode in (None, TRAIN)


def _larger_card(needed_bytes: int, settings: TuneSettings) -> str:
    """Phrase that names the smallest cards of the catalogue with enough memory, or says there are none."""
    need = f"{format_bytes(needed_bytes)} for the allocator"
    cards = sorted(
        (
            g
            for g in catalogue().values()
            if g.vendor.facts.predicts_every_step and not g.is_mig_slice and _holds(g, needed_bytes, settings)
        ),
        key=lambda gpu: gpu.total_bytes,
    )
    if not cards:
        return f"no card: none in the catalogue leaves {need}"
    names = ", ".join(gpu.key for gpu in cards[:_NUM_CARDS])
    return f"a card that leaves {need}: {names}{', …' if len(cards) > _NUM_CARDS else ''}"


def _holds(gpu: Gpu, needed_bytes: int, settings: TuneSettings) -> bool:
    try:
        return settings.budget_on(gpu).usable_bytes >= needed_bytes
    except BudgetError:
        return False
