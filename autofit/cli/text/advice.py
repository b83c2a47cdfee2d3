"""What may help where nothing fits."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.errors import BudgetError
from autofit.hardware.budget import make_budget
from autofit.hardware.gpus import Gpu, catalogue
from autofit.questions.advice import Advice
from autofit.report.answer import needed_at_least
from autofit.settings.tune_settings import TuneSettings
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes
from workers import conv

_NUM_CARDS = 4
_NUM_LEVERS = 6


def what_may_help(result: TuneResult, settings: TuneSettings) -> tuple[str, ...]:
    """One phrase for each thing to change, the cheapest first; only what was not asked for already."""
    return tuple(_phrases(result, settings, needed_at_least(result)))


def _phrases(result: TuneResult, settings: TuneSettings, needed_bytes: int | None) -> Iterator[str]:
    budget, on_cpu = result.budget, result.device.kind == "cpu"
    kept_bytes = budget.margin_bytes + budget.other_bytes
    if needed_bytes is not None and needed_bytes <= budget.usable_bytes + kept_bytes:
        yield f"a smaller --margin or --reserve: they keep {format_bytes(kept_bytes)} free"
    state_bytes = 0 if result.estimate is None else result.estimate.breakdown.optimizer_state
    if result.advice is not None:
        yield from _computed(result.advice)
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
        and "native" not in (settings.conv_algos or conv.defaults("cuda"))
    ):
        yield "--conv-algo native: its workspace does not grow with the batch, but it is slow"
    if on_cpu:
        yield "a larger --gpu-mem"
    elif needed_bytes is None:
        yield "a larger card (`autofit gpus` lists them)"
    else:
        yield _larger_card(needed_bytes, settings)


def _computed(advice: Advice) -> Iterator[str]:
    """What each change saves, as it was tried; and what they do together."""
    at = f"batch {advice.batch_size}"
    for lever in advice.levers[:_NUM_LEVERS]:
        if lever.saved_bytes > 0:
            enough = f": {at} fits" if lever.fits else ""
            yield f"{lever.how} saves {format_bytes(lever.saved_bytes)}{enough}"
    if advice.combination is None:
        tried = "" if advice.is_complete else " in the time there was"
        yield f"no combination of such options that was tried{tried} makes {at} fit"
    elif len(advice.combination.options) > 1:
        options = " ".join(advice.combination.options)
        yield f"{options} together: {at} fits in {format_bytes(advice.combination.peak_reserved_bytes)}"


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
    """Whether steps are a training's, as they are where neither setting nor estimate says otherwise."""
    mode = settings.setup.mode if result.estimate is None else result.estimate.mode
    return mode != "infer"


def _larger_card(needed_bytes: int, settings: TuneSettings) -> str:
    need = f"{format_bytes(needed_bytes)} for the allocator"
    cards = sorted(
        (g for g in catalogue().values() if not g.is_mig_slice and _holds(g, needed_bytes, settings)),
        key=lambda gpu: gpu.total_bytes,
    )
    if not cards:
        return f"no card: none in the catalogue leaves {need}"
    names = ", ".join(gpu.key for gpu in cards[:_NUM_CARDS])
    return f"a card that leaves {need}: {names}{', …' if len(cards) > _NUM_CARDS else ''}"


def _holds(gpu: Gpu, needed_bytes: int, settings: TuneSettings) -> bool:
    try:
        budget = make_budget(
            gpu.total_bytes,
            architecture=gpu.architecture,
            card=gpu.key,
            margin=settings.margin,
            reserve_bytes=settings.reserve_bytes,
            num_ranks=settings.setup.num_ranks,
        )
    except BudgetError:
        return False
    return budget.usable_bytes >= needed_bytes
