"""Levers: the single changes of a knob setting that may save memory, and what each takes beside."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autofit_workers import conv
from autofit_workers.knobs import KNOBS, Knob, Knobs
from autofit_workers.knobs.allocator import allocator_conf
from autofit_workers.knobs.optimizer import SMALLER_STATES
from autofit_workers.setup import GENERATE, INFER
from autofit_workers.trace import Trace

_CAPABILITY = 80  # of a GPU: which one makes no difference to the costs that are compared here


class Effect(StrEnum):
    """What a change does to a step beside its memory, the gentlest first.

    `NONE`: numbers and speed stay about as they are.
    `SLOWER`: the numbers stay, the step takes somewhat longer.
    `ROUNDS`: autocast computes parts of the step in half precision, or the optimizer's states have 8 bits.
    `DRASTIC`: the weights are in half precision, or convolutions may take many times as long.
    """

    NONE = "none"
    SLOWER = "slower"
    ROUNDS = "rounds"
    DRASTIC = "drastic"

    @property
    def rank(self) -> int:
        """Its place in that order."""
        return list(Effect).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One change of a configuration.

    Attributes:
        name: what is changed, such as `precision`.
        value: to what.
        how: what to type or to set for it.
        knobs: the whole setting with that change.
        allocator: the value of `PYTORCH_ALLOC_CONF` that it needs; empty for none.
        effect: what it does beside saving memory.
        may_save: False where it takes at least as much memory as any other value of its knob.
    """

    name: str
    value: str
    how: str
    knobs: Knobs
    allocator: str = ""
    effect: Effect = Effect.NONE
    may_save: bool = True

    @property
    def label(self) -> str:
        return f"{self.name} {self.value}"

    def why_pointless(self, trace: Trace) -> str:
        """Why it need not be tried on the step of a trace; empty where it has to be."""
        if trace.mode in (INFER, GENERATE) and KNOBS[self.name].of_training:
            return "inference has neither an optimizer nor gradients"
        if self.name == "conv_algo" and not trace.convolves:
            return "the step has no convolution"
        if self.name == "loss" and not _has_loss_of_tokens(trace):
            return "the step has no cross entropy of every token's logits"
        if self.name == "optimizer" and trace.optimizer not in SMALLER_STATES[self.value]:
            return (
                f"the step is not by {' or '.join(SMALLER_STATES[self.value])}, whose states it makes smaller"
            )
        return ""


def _has_loss_of_tokens(trace: Trace) -> bool:
    """Whether logarithms of shares are made of more rows than there are samples."""
    return any(
        each.operator == "aten._log_softmax" and len(each.shape) == 2 and each.shape[0] > trace.batch_size
        for each in trace.allocations
    )


def levers(knobs: Knobs) -> tuple[Lever, ...]:
    """Every single change of a setting that has to do with memory, the gentlest first."""
    found = []
    for knob in KNOBS.values():
        before = getattr(knobs, knob.name)
        values: tuple[Any, ...] = conv.applicable("cuda") if knob.name == "conv_algo" else knob.levers
        for value in values:
            if value == before:
                continue
            written = str(value).lower() if isinstance(value, bool) else str(value)
            changed = dataclasses.replace(knobs, **{knob.name: value})
            found.append(
                Lever(
                    name=knob.name,
                    value=written,
                    how=_option(knob, value, written),
                    knobs=changed,
                    allocator=allocator_conf(changed.allocator),
                    effect=_effect(knob, before, value),
                    may_save=value not in knob.never_saving,
                )
            )
    return tuple(sorted(found, key=lambda lever: lever.effect.rank))


def _option(knob: Knob, value: Any, written: str) -> str:
    if knob.is_switch:
        return f"--{knob.option}" if value else f"--no-{knob.option}"
    return f"--{knob.option} {written}"


def gentleness(changes: Iterable[Lever]) -> tuple[int, ...]:
    """Orders changes made together: how many of them have each effect, the most drastic counting first."""
    effects = [lever.effect for lever in changes]
    return tuple(effects.count(effect) for effect in reversed(Effect))


def _effect(knob: Knob, before: Any, value: Any) -> Effect:
    if knob.name == "precision":
        return Effect.ROUNDS if value.startswith("amp-") else Effect.DRASTIC
    if knob.name == "optimizer":
        return Effect.ROUNDS
    if knob.name == "conv_algo":  # cuDNN has several plans; what does without it is far from as fast
        return Effect.SLOWER if value.startswith("cudnn") else Effect.DRASTIC
    if knob.cost is None:
        return Effect.NONE
    then, now = knob.cost.of(before, _CAPABILITY), knob.cost.of(value, _CAPABILITY)
    is_costlier = then is not None and now is not None and now > then
    return Effect.SLOWER if is_costlier else Effect.NONE
