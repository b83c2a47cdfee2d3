"""The steps of a trial, the same whether they are measured or predicted; nothing here knows a device."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from workers.errors import InvalidTrialError
from workers.knobs import apply
from workers.optimizers import make_optimizer
from workers.protocol import Peaks, TrialSpec
from workers.workload import Workload, check_batch, check_loss, with_overrides

PhaseHook = Callable[[str], None]
AutocastFactory = Callable[[], AbstractContextManager[object]]
_PIECE_ELEMENTS = 2**20
_NO_SCALER = torch.amp.GradScaler(enabled=False)  # leaves losses as they are, and only takes the step


def no_phase(_name: str) -> None:
    """The hook of whoever does not watch the phases."""


def train_step(
    workload: Workload,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Any,
    *,
    autocast: AutocastFactory = nullcontext,
    scaler: torch.amp.GradScaler = _NO_SCALER,
    set_to_none: bool = True,
    phase: PhaseHook = no_phase,
) -> None:
    """One training step: gradients dropped, forward, loss, backward, optimizer.

    `autocast` makes the context of the forward pass and the loss, as PyTorch advises; `scaler`
    scales the loss and takes the optimizer's step; `phase` is called with `forward`, `backward`
    and `optimizer` as each begins. A workload's own `step` runs under autocast as a whole, drops
    and scales its gradients itself, and only its beginning (`forward`) can be seen.
    """
    phase("forward")
    if workload.step is not None:
        with autocast():
            workload.step(model, optimizer, batch)
        return
    optimizer.zero_grad(set_to_none=set_to_none)
    with autocast():
        loss = workload.loss(model, batch)
    check_loss(loss)
    phase("backward")
    scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    phase("optimizer")
    scaler.step(optimizer)
    scaler.update()


def infer_step(
    workload: Workload,
    model: torch.nn.Module,
    batch: Any,
    *,
    autocast: AutocastFactory = nullcontext,
    phase: PhaseHook = no_phase,
) -> None:
    """One forward pass without gradients; what the workload's `loss` returns is ignored."""
    phase("forward")
    with torch.no_grad(), autocast():
        workload.loss(model, batch)


def seed(value: int) -> None:
    """Seeds the generators that models and batches draw from."""
    torch.manual_seed(value)
    random.seed(value)


class Meter(Protocol):
    """What a device adds to the loop: its peaks and its clock."""

    def reset(self) -> None:
        """Begins a new stretch of steps."""

    def peaks(self) -> Peaks:
        """The peaks since the last `reset`."""

    def seconds_of(self, step: Callable[[], None]) -> float:
        """Runs a step to its end on the device and returns how long that took, in seconds."""


@dataclass(slots=True)
class Progress:
    """How far a trial came; still readable after a step ran out of memory.

    Attributes:
        first_step: the peaks of the first step, once it is done.
        num_steps_done: steps that ran to their end, warm-up included.
        step_seconds: durations of the steps after the warm-up.
    """

    first_step: Peaks = field(default_factory=Peaks)
    num_steps_done: int = 0
    step_seconds: list[float] = field(default_factory=list)

    @property
    def median_step_seconds(self) -> float | None:
        return statistics.median(self.step_seconds) if self.step_seconds else None


def run(workload: Workload, spec: TrialSpec, device: torch.device, meter: Meter, progress: Progress) -> None:
    """Builds the workload on the device and runs its warm-up and its steps under the meter.

    Raises:
        InvalidTrialError: the steps left every parameter as it was.
    """
    workload = with_overrides(workload, spec.knobs, spec.mode)
    training = workload.mode == "train"
    knobs = spec.knobs
    autocast = apply.autocast_factory(knobs, device.type)
    scaler = apply.make_scaler(knobs, device.type)
    seed(spec.seed)
    with apply.applied(knobs, device.type):
        model = apply.converted_model(workload.build_model(), knobs).to(device).train(training)
        optimizer = None
        if training:
            optimizer = make_optimizer(workload.optimizer, model.parameters(), knobs.optimizer_impl)
        before = _fingerprint(model) if training else None

        def step() -> None:
            batch = workload.make_batch(spec.batch_size, device)
            check_batch(batch, spec.batch_size)
            batch = apply.converted_batch(batch, knobs)
            if optimizer is None:
                infer_step(workload, model, batch, autocast=autocast)
            else:
                train_step(
                    workload,
                    model,
                    optimizer,
                    batch,
                    autocast=autocast,
                    scaler=scaler,
                    set_to_none=knobs.set_to_none,
                )

        _run_steps(step, spec, meter, progress)
        if training and _fingerprint(model) == before:
            raise InvalidTrialError(
                f"{progress.num_steps_done} training steps changed no parameter: "
                "call loss.backward() and optimizer.step() in every step"
            )


def _run_steps(step: Callable[[], None], spec: TrialSpec, meter: Meter, progress: Progress) -> None:
    meter.reset()
    for index in range(spec.num_warmup_steps + spec.num_steps):
        if index == spec.num_warmup_steps and index > 0:
            meter.reset()
        seconds = meter.seconds_of(step)
        if index >= spec.num_warmup_steps:
            progress.step_seconds.append(seconds)
        if index == 0:
            progress.first_step = meter.peaks()
        progress.num_steps_done += 1


def _sum(parameter: torch.Tensor) -> float:
    """The sum in double precision, piece by piece: on the CPU it would else copy the whole parameter."""
    flat = parameter.reshape(-1)
    pieces = (flat[start : start + _PIECE_ELEMENTS] for start in range(0, len(flat), _PIECE_ELEMENTS))
    return float(sum(piece.sum(dtype=torch.float64) for piece in pieces))


def _fingerprint(model: torch.nn.Module) -> list[tuple[int, float]]:
    """Changes when a parameter is updated, by whichever of the two ways optimizers have.

    In-place operators count a tensor's version up, even where a learning rate of zero leaves the
    values; updates through `.data` leave the version and change the values.
    """
    return [
        (parameter._version, _sum(parameter.detach()))  # noqa: SLF001 - no public name
        for parameter in model.parameters()
        if parameter.requires_grad and not parameter.is_complex()
    ]
