"""Checks that knobs which change the training loop, such as gradient clipping, apply to a workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import Setup


@dataclass(frozen=True, slots=True)
class _LoopPart:
    """Change to the training loop that a training option asks for, such as gradient clipping.

    Attributes:
        is_asked: returns whether given training options ask for it.
        done: the change as a clause for messages, as in "gradients are clipped".
        to_do: the change as a command for messages, as in "clip gradients".
        options: names of the options that ask for it.
    """

    is_asked: Callable[[Knobs], bool]
    done: str
    to_do: str
    options: str


_IN_BACKWARD = "--optimizer-in-backward"
_LOOP_PARTS = (
    _LoopPart(
        lambda knobs: knobs.accumulates,
        "gradients are accumulated",
        "accumulate gradients",
        "--grad-accumulation and --global-batch",
    ),
    _LoopPart(
        lambda knobs: knobs.clip_grad_norm is not None,
        "gradients are clipped",
        "clip gradients",
        "--clip-grad-norm",
    ),
    _LoopPart(
        lambda knobs: knobs.optimizer_in_backward,
        "the optimizer steps",
        "step the optimizer in backward",
        _IN_BACKWARD,
    ),
)


def require_loop(knobs: Knobs, setup: Setup, *, mode: str, has_step: bool) -> None:
    """Raises an error if a workload's training loop cannot be changed as training options ask.

    Args:
        knobs: the training options.
        setup: mode and ranks.
        mode: mode that the workload is run in: `train`, `infer` or `generate`.
        has_step: whether the workload brings its own training step, which autofit cannot change.

    Raises:
        InapplicableError: nothing is trained, the step is the workload's own, or options exclude each other.
    """
    for part in _LOOP_PARTS:
        if part.is_asked(knobs) and mode != "train":
            raise InapplicableError(f"{part.done} only in training: leave out {part.options}")
        if part.is_asked(knobs) and has_step:
            raise InapplicableError(
                f"the workload has its own step, in which autofit cannot {part.to_do}: do so there, and "
                f"leave out {part.options}"
            )
    if knobs.optimizer_in_backward:
        _require_gradients_one_by_one(knobs, setup)


def _require_gradients_one_by_one(knobs: Knobs, setup: Setup) -> None:
    """Raises an error if options or ranks need gradients that the optimizer's steps in backward have freed.

    Raises:
        InapplicableError: they do.
    """
    reasons = {
        "--grad-accumulation and --global-batch": (
            knobs.accumulates,
            "a gradient is freed before there is another to add to it",
        ),
        "--clip-grad-norm": (
            knobs.clip_grad_norm is not None,
            "the norm is of all gradients, and each is freed before the next is there",
        ),
        "--precision amp-fp16": (
            knobs.precision == "amp-fp16",
            "its gradient scaler looks at all gradients before the optimizer steps",
        ),
        "--set-to-none false": (not knobs.set_to_none, "it frees the gradients"),
        "--parallel": (bool(setup.parallel), "ranks exchange the gradients of several parameters at once"),
    }
    for option, (is_given, why) in reasons.items():
        if is_given:
            raise InapplicableError(
                f"{_IN_BACKWARD} cannot be combined with {option}: {why}; leave one of them out"
            )
