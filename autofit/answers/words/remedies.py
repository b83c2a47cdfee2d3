"""Describes the changes that would make a configuration fit in memory."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.questions.advice import Advice, TriedLever
from autofit.questions.levers import Effect
from autofit.units import format_bytes

_NUM_LEVERS = 6
# Side effects of changes, as phrases.
_BESIDE = {
    Effect.NONE: "",
    Effect.SLOWER: "in a slower step",
    Effect.ROUNDS: "with autocast's rounding",
    Effect.OTHER_RULE: "with another optimizer's rule, whose learning rate has to be found anew",
    Effect.DRASTIC: "with weights rounded",
    Effect.MORE_CARDS: "on each of two such cards",
    Effect.LESS: "with less that is trained: an adapter beside frozen weights, or shorter samples",
}
_OF_KNOBS = {
    ("batch_size", Effect.SLOWER): "in more and smaller batches",
    ("optimizer", Effect.ROUNDS): "with the optimizer's states in fewer bits",
    ("conv_algo", Effect.DRASTIC): "with convolutions that may take many times as long",
}


def what_each_saves(advice: Advice) -> Iterator[str]:
    """Yields sentences on the memory that each of the first six changes of options saves alone.

    Changes that save nothing are left out.
    """
    peak = format_bytes(advice.peak_reserved_bytes)  # the peak with enough memory
    for lever in advice.levers[:_NUM_LEVERS]:
        if lever.saved_bytes > 0:
            enough = f": batch {advice.batch_size} fits" if lever.fits else ""
            yield f"{lever.how} saves {format_bytes(lever.saved_bytes)} of {peak}{_beside(lever)}{enough}"


def _other_ways(advice: Advice) -> Iterator[str]:
    """Yields sentences on changes of options, other than the gentlest, that make the batch fit."""
    listed = {(lever.how,) for lever in advice.levers[:_NUM_LEVERS] if lever.fits}
    for other in advice.others:
        if other.options in listed:
            continue
        options, peak = " ".join(other.options), format_bytes(other.peak_reserved_bytes)
        yield f"or {options}: batch {advice.batch_size} fits in {peak}{_trained(other.effect)}"


def _trained(effect: Effect) -> str:
    return f", {_BESIDE[effect]}" if effect.changes_training or effect is Effect.MORE_CARDS else ""


def how_it_fits(advice: Advice) -> Iterator[str]:
    """Yields sentences on which changes of options together make a batch fit, or that none of them do."""
    at = f"batch {advice.batch_size}"
    if advice.combination is None:
        tried = "" if advice.is_complete else " in the time there was"
        yield f"no combination of such options that was tried{tried} makes {at} fit"
        return
    combination = advice.combination
    if len(combination.options) > 1:
        options, peak = " ".join(combination.options), format_bytes(combination.peak_reserved_bytes)
        yield f"{options} together: {at} fits in {peak}{_trained(combination.effect)}"
    elif sum(lever.fits for lever in advice.levers) > 1:
        yield f"{combination.options[0]} is the gentlest of those that are enough"
    yield from _other_ways(advice)


def _beside(lever: TriedLever) -> str:
    words = _OF_KNOBS.get((lever.name, lever.effect)) or _BESIDE[lever.effect]
    return f" {words}" if words else ""
