"""Runs one step of a workload: forward, backward and optimizer, or forward without gradients."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from autofit_workers.spec.protocol import TrialSpec
from autofit_workers.workload.optimizers import each_of
from autofit_workers.workload.workload import Optimizers, Workload, check_loss

PhaseHook = Callable[[str], None]
AutocastFactory = Callable[[], AbstractContextManager[object]]


_NO_SCALER = torch.amp.GradScaler(enabled=False)  # neither scales losses nor checks gradients


def no_phase(_name: str) -> None:
    """Does nothing; default callback for the phases of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Place of one forward and backward pass in an optimizer step that accumulates gradients.

    Attributes:
        number: number of the pass in the step, from 1.
        num_passes: number of passes that are run before the optimizer steps.
        num_batches: number of batches whose gradients a real step accumulates; may be more than the passes
            that are run. The loss is divided by it.
    """

    number: int = 1
    num_passes: int = 1
    num_batches: int = 1

    @property
    def is_first(self) -> bool:
        return self.number == 1

    @property
    def is_last(self) -> bool:
        return self.number == self.num_passes


WHOLE = Part()


def parts_of_step(spec: TrialSpec) -> tuple[Part, ...]:
    """Passes that each optimizer step of a trial (one predicted or measured run) makes, in order."""
    num_batches = spec.knobs.num_batches(spec.batch_size)
    num_passes = spec.knobs.num_passes(spec.batch_size)
    return tuple(
        Part(number=number, num_passes=num_passes, num_batches=num_batches)
        for number in range(1, num_passes + 1)
    )


class ScheduledModel(torch.nn.Module):
    """Model with its own schedule of forward and backward, such as the stages of a pipeline.

    Attributes:
        casts_to: type that it computes in, if that is not the type of its parameters; else None.
    """

    casts_to: torch.dtype | None = None

    @property
    def parts(self) -> tuple[tuple[torch.nn.Module, Sequence[torch.nn.Module]], ...]:
        """Submodules that run separately, such as pipeline stages, each with its repeated blocks."""
        raise NotImplementedError

    def forward_backward(self, batch: Any, *, autocast: AutocastFactory, phase: PhaseHook) -> None:
        """Runs forward and backward of a batch, leaving gradients; reports each phase to `phase`."""
        raise NotImplementedError

    def infer(self, batch: Any, *, autocast: AutocastFactory) -> None:
        """Runs one forward pass of a batch."""
        raise NotImplementedError


def train_step(
    workload: Workload,
    model: torch.nn.Module,
    optimizer: Optimizers,
    batch: Any,
    *,
    autocast: AutocastFactory = nullcontext,
    scaler: torch.amp.GradScaler = _NO_SCALER,
    set_to_none: bool = True,
    clip_grad_norm: float | None = None,
    in_backward: bool = False,
    phase: PhaseHook = no_phase,
    part: Part = WHOLE,
) -> None:
    """Runs one training step: drops gradients, then forward, loss, backward, optimizer.

    For an accumulated step it runs one pass: gradients are dropped before the first pass only, and the
    optimizer steps after the last. A workload's own `step` runs under autocast as a whole, and drops and
    scales its gradients itself.

    Args:
        workload: has the loss, or its own step.
        model: the model, on its device.
        optimizer: its optimizer or optimizers.
        batch: batch of the step, or of the pass.
        autocast: makes the context of the forward pass and the loss.
        scaler: scales the loss and calls the optimizer's step.
        set_to_none: whether gradients are freed when they are dropped; else they are set to zero.
        clip_grad_norm: norm to which unscaled gradients are clipped before the optimizer's step; None for
            none.
        in_backward: whether hooks step the optimizer and drop the gradients during backward.
        phase: called with `forward`, `backward` and `optimizer` as each begins; for a workload's own step
            with `forward` only.
        part: which pass of an accumulated step this is; by default the only one.
    """
    phase("forward")
    if workload.step is not None:
        with autocast():
            workload.step(model, optimizer, batch)
        return
    optimizers = each_of(optimizer)
    if part.is_first and not in_backward:
        for each in optimizers:
            each.zero_grad(set_to_none=set_to_none)
    if isinstance(model, ScheduledModel):
        model.forward_backward(batch, autocast=autocast, phase=phase)
    else:
        with autocast():
            loss = workload.loss(model, batch)
        check_loss(loss)
        if part.num_batches > 1:
            loss = loss / part.num_batches
        phase("backward")
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    if not part.is_last:
        return
    phase("optimizer")
    if in_backward:
        return
    if clip_grad_norm is not None:
        for each in optimizers:
            scaler.unscale_(each)
        _clip(model, clip_grad_norm)
    for each in optimizers:
        scaler.step(each)
    scaler.update()


def _clip(model: torch.nn.Module, norm: float) -> None:
    """Clips gradients, with the model's own method if it has one.

    `FullyShardedDataParallel` has one, which takes the norm over all ranks.
    """
    own = getattr(model, "clip_grad_norm_", None)
    if own is None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
    else:
        own(norm)


def infer_step(
    workload: Workload,
    model: torch.nn.Module,
    batch: Any,
    *,
    autocast: AutocastFactory = nullcontext,
    phase: PhaseHook = no_phase,
) -> None:
    """Runs a workload's `loss` once without gradients, and ignores its result."""
    phase("forward")
    with torch.no_grad():
        if isinstance(model, ScheduledModel):
            model.infer(batch, autocast=autocast)
            return
        with autocast():
            workload.loss(model, batch)


def seed(value: int) -> None:
    """Seeds the random generators of PyTorch and Python, from which models and batches draw."""
    torch.manual_seed(value)
    random.seed(value)
