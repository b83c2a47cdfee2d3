"""Levers: single changes of a configuration that may save memory, with their side effects."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.knobs import KNOBS, Knob, Knobs
from autofit_workers.spec.knobs.adapter import USUAL
from autofit_workers.spec.knobs.allocator import allocator_conf
from autofit_workers.spec.knobs.base import QUANTIZATIONS
from autofit_workers.spec.knobs.optimizer import NAMED
from autofit_workers.spec.pythons import StrEnum
from autofit_workers.spec.setup import GENERATE, INFER, TRAIN
from autofit_workers.spec.trace import SampleSize, Trace

_CAPABILITY = 80  # compute capability; any will do, as the costs compared here do not depend on it


class Effect(StrEnum):
    """Side effect of a change on training, besides saving memory; the values are from mild to harsh.

    `NONE`: numbers and speed stay about the same.
    `SLOWER`: the numbers stay, the step takes somewhat longer.
    `ROUNDS`: autocast computes parts of the step in half precision, or the optimizer's states have 8 bits.
    `OTHER_RULE`: another optimizer's rule updates the weights, with a learning rate that has to be tuned
    anew. `DRASTIC`: weights are in half precision or fewer bits, or convolutions may take many times as long.
    `LESS`: an adapter is trained beside frozen weights, or samples are shorter.
    `MORE_CARDS`: the step runs on two such cards.
    """

    NONE = "none"
    SLOWER = "slower"
    ROUNDS = "rounds"
    OTHER_RULE = "other-rule"
    DRASTIC = "drastic"
    LESS = "less"
    MORE_CARDS = "more-cards"

    @property
    def rank(self) -> int:
        """Index of the side effect in the order of `Effect`, from 0 for the mildest."""
        return list(Effect).index(self)

    @property
    def changes_training(self) -> bool:
        """Whether the change may alter what is learned by more than rounding does."""
        return Effect.ROUNDS.rank < self.rank < Effect.MORE_CARDS.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One change of a configuration that may save memory: another value of a knob, or a smaller batch.

    Attributes:
        name: name of the changed knob, such as `precision`, or `batch_size`.
        value: value that it is changed to.
        how: command-line option that makes the change.
        knobs: values of all knobs, with the change made.
        allocator: value of `PYTORCH_ALLOC_CONF` that it needs; empty for none.
        effect: side effect besides saving memory.
        may_save: False if no other value of the knob takes more memory, so the change cannot save any.
        batch_size: new batch size, if the change includes one; else None.
        degree: strength of the change, 1 or more: 1 for half of the batch, 2 for a quarter.
        replaces_given: whether it replaces a knob value that the user set.
    """

    name: str
    value: str
    how: str
    knobs: Knobs
    allocator: str = ""
    effect: Effect = Effect.NONE
    may_save: bool = True
    batch_size: int | None = None
    degree: int = 1
    replaces_given: bool = False

    @property
    def label(self) -> str:
        """Name of the change in a table: the knob, and its value up to a first comma."""
        return f"{self.name} {self.value.partition(',')[0]}"

    def why_pointless(self, trace: Trace) -> str:
        """Reason why the change cannot save memory in a traced step; empty if it may."""
        knob = KNOBS.get(self.name)  # none for the size of a batch
        if trace.mode in (INFER, GENERATE) and knob is not None and knob.of_training:
            return "inference has neither an optimizer nor gradients"
        if self.name == "conv_algo" and not trace.convolves:
            return "the step has no convolution"
        if self.name == "loss" and not _has_loss_of_tokens(trace):
            return "the step has no cross entropy of every token's logits"
        if self.name == "optimizer":
            return _why_no_smaller_states(self.value, trace.optimizer)
        return ""

    def changed(self, knobs: Knobs) -> dict[str, Any]:
        """`Knobs` fields, by name, that the change sets: its own knob, and others that differ in `knobs`."""
        return {
            name: value
            for name in KNOBS
            if (value := getattr(self.knobs, name)) != getattr(knobs, name) or name == self.name
        }


def _why_no_smaller_states(name: str, used: str) -> str:
    """Reason why another optimizer has no smaller states than the one in use; empty if it may have."""
    named = NAMED[name]
    if named.same_rule_as and used not in named.same_rule_as:
        return f"the step is not by {' or '.join(named.same_rule_as)}, whose states it makes smaller"
    if used in NAMED and NAMED[used].states <= named.states:
        return f"the states of {used} are no larger"
    return ""


def _has_loss_of_tokens(trace: Trace) -> bool:
    """Whether a trace computes cross entropy per token: a log-softmax over more rows than samples."""
    return any(
        each.operator == "aten._log_softmax" and len(each.shape) == 2 and each.shape[0] > trace.batch_size
        for each in trace.allocations
    )


def levers(knobs: Knobs, mode: str = TRAIN) -> tuple[Lever, ...]:
    """All single changes of a knob setting that may save memory, the gentlest first.

    Args:
        mode: mode of the step, such as `train`.
    """
    found = (
        _lever(knob, value, knobs, changes)
        for knob in KNOBS.values()
        for value in _values(knob)
        if value != getattr(knobs, knob.name) and (changes := _changes(knob, value, knobs, mode)) is not None
    )
    return tuple(sorted(found, key=lambda lever: lever.effect.rank))


def _values(knob: Knob) -> tuple[Any, ...]:
    return conv.applicable(GPU_KIND) if knob.name == "conv_algo" else knob.levers


def _changes(knob: Knob, value: Any, knobs: Knobs, mode: str) -> dict[str, Any] | None:
    """`Knobs` fields that set one knob to a value; None if the value does not suit the knob setting.

    For quantized weights the result also sets an adapter, as they cannot be trained themselves.
    """
    if knob.name == "adapter" and knobs.adapter is not None:
        return None  # another adapter than the requested one saves little
    if knob.name == "base":
        if knobs.base in QUANTIZATIONS:
            return None
        if mode == TRAIN and knobs.adapter is None:
            return {"adapter": USUAL, "base": value}
    return {knob.name: value}


def _lever(knob: Knob, value: Any, knobs: Knobs, changes: dict[str, Any]) -> Lever:
    """Lever that sets one knob to a value, with its command-line options and side effect."""
    changed = dataclasses.replace(knobs, **changes)
    return Lever(
        name=knob.name,
        value=_written(value),
        how=" ".join(_option(KNOBS[name], each) for name, each in changes.items()),
        knobs=changed,
        allocator=allocator_conf(changed.allocator),
        effect=max(
            (_effect(KNOBS[name], getattr(knobs, name), each) for name, each in changes.items()),
            key=lambda effect: effect.rank,
        ),
        may_save=value not in knob.never_saving,
        degree=1 + knob.degrees.get(value, 0),
    )


def smaller_batches(knobs: Knobs, batch_size: int, mode: str) -> tuple[Lever, ...]:
    """Changes that split a batch into 2, 4, … smaller ones, in training accumulated; the largest first."""
    found = []
    for degree, parts in enumerate((2, 4, 8, batch_size), start=1):
        if batch_size % parts or not 1 <= batch_size // parts < batch_size:
            continue
        smaller = batch_size // parts
        how = f"--batch-size {smaller}"
        changed = knobs
        if mode == TRAIN and knobs.global_batch is None:
            batches = parts * knobs.num_batches(batch_size)
            changed = dataclasses.replace(knobs, grad_accumulation=batches)
            how += f" --grad-accumulation {batches}"
        found.append(
            Lever(
                name="batch_size",
                value=str(smaller),
                how=how,
                knobs=changed,
                effect=Effect.SLOWER,
                batch_size=smaller,
                degree=degree,
            )
        )
    return tuple({lever.value: lever for lever in reversed(found)}.values())[::-1]


def shorter_samples(knobs: Knobs, sample: SampleSize | None) -> tuple[Lever, ...]:
    """Changes to samples of 3/4, 1/2 and 1/4 of their size; empty if the workload has one sample size."""
    size = knobs.seq_len or (None if sample is None else sample.size)
    if sample is None or size is None:
        return ()
    multiple = sample.multiple
    sizes = [int(size * share) // multiple * multiple for share in (0.75, 0.5, 0.25)]
    return tuple(
        dataclasses.replace(_lever(KNOBS["seq_len"], each, knobs, {"seq_len": each}), degree=degree)
        for degree, each in enumerate(sizes, start=1)
        if 0 < each < size
    )


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _option(knob: Knob, value: Any) -> str:
    if knob.is_switch:
        return f"--{knob.option}" if value else f"--no-{knob.option}"
    return f"--{knob.option} {_written(value)}"


def in_order(*changes: Lever) -> tuple[Lever, ...]:
    """Changes in their standard order: by side effect, the mildest first, then by name.

    Equal sets of changes are therefore equal tuples.
    """
    return tuple(sorted(changes, key=lambda lever: (lever.effect.rank, lever.name)))


def gentleness(changes: Iterable[Lever]) -> tuple[int, ...]:
    """Sort key of a combination of changes, smaller for milder ones.

    The key counts the changes of each side effect, the harshest side effect first. Each change counts by its
    `degree`. A changed value that the user had set ranks between lower precision and changes of what is
    trained.
    """
    changes = tuple(changes)
    counts = {
        effect: sum(lever.degree for lever in changes if lever.effect is effect)
        for effect in reversed(Effect)
    }
    harsh = [count for effect, count in counts.items() if effect.changes_training]
    soft = [count for effect, count in counts.items() if not effect.changes_training]
    return *harsh, sum(lever.replaces_given for lever in changes), *soft


def _effect(knob: Knob, before: Any, value: Any) -> Effect:
    """Side effect of changing a knob from one value to another."""
    match knob.name:
        case "precision":
            return Effect.ROUNDS if value.startswith("amp-") else Effect.DRASTIC
        case "optimizer":
            return Effect.ROUNDS if NAMED[value].same_rule_as else Effect.OTHER_RULE
        case "adapter" | "seq_len":
            return Effect.LESS
        case "base":
            return Effect.DRASTIC
        case "conv_algo":  # cuDNN has several plans; an algorithm without it is far slower
            return Effect.SLOWER if value.startswith("cudnn") else Effect.DRASTIC
        case _:
            return Effect.SLOWER if _is_costlier(knob, before, value) else Effect.NONE


def _is_costlier(knob: Knob, before: Any, value: Any) -> bool:
    if knob.cost is None:
        return False
    then, now = knob.cost.of(before, _CAPABILITY), knob.cost.of(value, _CAPABILITY)
    return then is not None and now is not None and now > then
