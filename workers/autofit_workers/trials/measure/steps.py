"""Runs the loop of steps of a measured trial, on any device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from autofit_workers.apply import process_state, setting
from autofit_workers.apply.compiling import what_was_compiled
from autofit_workers.apply.parallel.ddp import bucket_bytes
from autofit_workers.apply.parallel.ranks import Ranks
from autofit_workers.conv.intercept import Rewriting
from autofit_workers.process.heart import Report, unheard
from autofit_workers.spec.errors import InvalidTrialError
from autofit_workers.spec.protocol import CHECKPOINT, EVALUATION, Device, Heartbeat, Peaks, TrialSpec
from autofit_workers.trials.measure import after_steps
from autofit_workers.workload.in_backward import make_in_backward
from autofit_workers.workload.optimizers import each_of, make_optimizers
from autofit_workers.workload.overrides import with_overrides
from autofit_workers.workload.step import Part, infer_step, parts_of_step, seed, train_step
from autofit_workers.workload.workload import Optimizers, Workload, check_batch

_PIECE_ELEMENTS = 2**20


class Meter(Protocol):
    """Interface to a device's measurements during the loop of steps: peaks, clock and errors."""

    def reset(self) -> None:
        """Resets the peaks, so that they cover the steps from now on."""

    def peaks(self) -> Peaks:
        """Peak memory of the process or device since the last `reset`."""

    def seconds_of(self, step: Callable[[], None]) -> float:
        """Runs a step to its end on the device and returns how long that took, in seconds."""

    def attempt(self, action: Callable[[], None]) -> str | None:
        """Runs an action that a workload may not support, such as an evaluation.

        Returns:
            Why it failed, as a text; None if it succeeded.

        Raises:
            Exception: the action ran out of memory, or the trial is invalid.
        """


@dataclass(slots=True)
class Progress:
    """Progress of a trial; still readable after a step ran out of memory.

    Attributes:
        device: the device that the trial runs on.
        report: called for every phase as it begins.
        phase: the phase that began last.
        first_step: the peaks of the first step, once it is done.
        steady: the peaks of the steps after the warm-up, once all are done.
        evaluation, checkpoint: the peaks of the evaluation and the checkpoint that follow the steps.
        num_steps_done: number of steps that completed, warm-up included.
        step_seconds: durations of the steps after the warm-up.
        remarks: facts for the outcome, by name: why a phase could not be run, the checkpoint's size, and so
            on.
        begin: time at which the trial began, by `time.monotonic`.
    """

    device: Device | None = None
    report: Report = unheard
    phase: str = ""
    first_step: Peaks = field(default_factory=Peaks)
    steady: Peaks | None = None
    evaluation: Peaks = field(default_factory=Peaks)
    checkpoint: Peaks = field(default_factory=Peaks)
    num_steps_done: int = 0
    step_seconds: list[float] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)
    begin: float = field(default_factory=time.monotonic)

    def enter(self, phase: str) -> None:
        """Records that a phase of the trial begins, and reports it."""
        self.phase = phase
        self.report(Heartbeat(phase=phase, num_steps_done=self.num_steps_done, device=self.device))

    @property
    def median_step_seconds(self) -> float | None:
        return statistics.median(self.step_seconds) if self.step_seconds else None


def run(workload: Workload, spec: TrialSpec, device: torch.device, meter: Meter, progress: Progress) -> None:
    """Runs a measured trial in this process: its steps, an evaluation and a checkpoint.

    Random generators and PyTorch's flags are restored afterwards.

    Args:
        workload: the workload.
        spec: the trial.
        device: device that it runs on.
        meter: measures peaks and times.
        progress: gets phases, peaks and times.

    Raises:
        InvalidTrialError: the steps did not do the work; see `Trial.take_steps`.
    """
    with conditions(spec, device, progress.remarks) as rewriting:
        trial = Trial(workload, spec, device, meter, progress, rewriting=rewriting)
        trial.take_steps()
        trial.follow_up()


@contextmanager
def conditions(spec: TrialSpec, device: torch.device, remarks: dict[str, str]) -> Iterator[Rewriting | None]:
    """Context manager that sets seeds and PyTorch's flags as a trial asks, and restores them afterwards.

    Yields the object that rewrites convolutions into other operators, or None if none are rewritten.

    Args:
        spec: the trial.
        device: device that it runs on.
        remarks: gets an entry if the rewrite left convolutions to cuDNN or oneDNN.

    Raises:
        InapplicableError: after the block, no convolution was rewritten.
    """
    with (
        process_state.kept(device),
        setting.applied(spec.knobs, device.type, spec.conv_plan) as rewriting,
    ):
        seed(spec.seed)
        yield rewriting
    if rewriting is not None and rewriting.left:
        remarks["conv_algo"] = (
            f"left to the backend where {'; '.join(dict.fromkeys(rewriting.left.values()))}"
        )


class Trial:
    """Workload that was built on a device, whose steps run inside a `conditions` block.

    Args:
        workload: the workload.
        spec: the trial.
        device: device that it runs on.
        meter: measures peaks and times.
        progress: gets phases, peaks and times.
        rewriting: the object that `conditions` yielded.
    """

    def __init__(
        self,
        workload: Workload,
        spec: TrialSpec,
        device: torch.device,
        meter: Meter,
        progress: Progress,
        *,
        rewriting: Rewriting | None,
    ) -> None:
        workload = with_overrides(workload, spec.knobs, spec.setup)
        self._workload, self._spec, self._device = workload, spec, device
        self._meter, self._progress = meter, progress
        progress.enter("build")
        ranks = Ranks(spec.setup.parallel)
        ranks.require_applicable(spec, workload)
        ranks.join(spec, device)
        self._autocast = setting.autocast_factory(spec.knobs, device.type, spec.setup.parallel)
        self._scaler = setting.make_scaler(spec.knobs, device.type)
        training = workload.mode == "train"
        model = setting.built_model(workload.build_model, spec.knobs)
        model = ranks.placed(model, spec.knobs, device, workload).train(training)
        if rewriting is not None:
            rewriting.follow(model)
        self._model = ranks.wrapped(model, spec.seed)
        self._optimizer: Optimizers | None = None
        if training:
            make = make_in_backward if spec.knobs.optimizer_in_backward else make_optimizers
            self._optimizer = make(workload, model, spec.knobs.optimizer_impl)
            engine = ranks.engine(model, self._optimizer, spec.knobs, spec.batch_size)
            if engine is not None:
                self._workload, self._optimizer = engine.stepped(workload), engine.optimizer

    def take_steps(self) -> None:
        """Runs the warm-up and the measured steps of a trial, and records their peaks and times.

        Raises:
            InapplicableError: `torch.compile` was asked for, and compiled nothing.
            InvalidTrialError: the steps changed no parameter, or used no memory of the device.
        """
        before = _fingerprint(self._model)
        self._run_steps()
        progress = self._progress
        progress.steady = steady = self._meter.peaks()
        if self._spec.knobs.compile:
            progress.remarks["compile"] = what_was_compiled()
        used_bytes = steady.device_bytes if steady.allocated_bytes is None else steady.allocated_bytes
        if not used_bytes:
            raise InvalidTrialError(
                f"{progress.num_steps_done} steps used no memory of the device: leave the model where "
                "autofit moves it, and make batches on the device that make_batch receives"
            )
        if self._optimizer is not None and _fingerprint(self._model) == before:
            raise InvalidTrialError(
                f"{progress.num_steps_done} training steps changed no parameter: "
                "call loss.backward() and optimizer.step() in every step"
            )

    def follow_up(self) -> None:
        """Runs one evaluation step and saves one checkpoint after the steps of a training.

        Running out of memory in them raises as in a step. If the workload can do neither, such as a model
        that returns no loss in evaluation, a remark gives the reason.
        """
        if self._optimizer is None or not self._spec.with_follow_up:
            return
        progress = self._progress
        progress.evaluation = self._attempt(EVALUATION, self._evaluate)
        progress.checkpoint = self._attempt(CHECKPOINT, self._save)

    def step(self) -> None:
        """Runs one step, with new batches."""
        for part in parts_of_step(self._spec):
            self._take_part(part)

    def _take_part(self, part: Part) -> None:
        """Runs one pass of a step on a new batch: forward, and in training backward and optimizer."""
        batch = self._batch()
        if self._optimizer is None:
            infer_step(self._workload, self._model, batch, autocast=self._autocast)
            return
        train_step(
            self._workload,
            self._model,
            self._optimizer,
            batch,
            autocast=self._autocast,
            scaler=self._scaler,
            set_to_none=self._spec.knobs.set_to_none,
            clip_grad_norm=self._spec.knobs.clip_grad_norm,
            in_backward=self._spec.knobs.optimizer_in_backward,
            part=part,
        )

    @property
    def bytes_out_of_sight(self) -> int:
        """Bytes of DDP's gradient buckets, which stay between steps but belong to no tensor in Python."""
        return bucket_bytes(self._model)

    def drop_gradients(self) -> None:
        """Calls `zero_grad` on the optimizers, as a training step does first."""
        if self._optimizer is not None:
            for each in each_of(self._optimizer):
                each.zero_grad(set_to_none=self._spec.knobs.set_to_none)

    def _run_steps(self) -> None:
        """Runs warm-up and measured steps, and records the peaks and times of each."""
        spec, meter, progress = self._spec, self._meter, self._progress
        meter.reset()
        for index in range(spec.num_warmup_steps + spec.num_steps):
            number = index - spec.num_warmup_steps + 1
            progress.enter(f"step {number}" if number > 0 else f"warm-up step {index + 1}")
            if number == 1 and index > 0:
                meter.reset()
            seconds = meter.seconds_of(self.step)
            if number > 0:
                progress.step_seconds.append(seconds)
            if index == 0:
                progress.first_step = meter.peaks()
            progress.num_steps_done += 1

    def _attempt(self, phase: str, action: Callable[[], None]) -> Peaks:
        self._progress.enter(phase)
        self._meter.reset()
        reason = self._meter.attempt(action)
        if reason is not None:
            self._progress.remarks[phase] = f"could not be run: {reason}"
            return Peaks()
        return self._meter.peaks()

    def _evaluate(self) -> None:
        batch = self._batch()
        after_steps.evaluate(
            self._model,
            lambda: infer_step(self._workload, self._model, batch, autocast=self._autocast),
        )

    def _save(self) -> None:
        assert self._optimizer is not None
        num_bytes = after_steps.save_checkpoint(self._model, each_of(self._optimizer))
        self._progress.remarks["checkpoint_bytes"] = str(num_bytes)

    def _batch(self) -> Any:
        batch_size = self._spec.batch_size * self._spec.setup.parallel.num_microbatches
        batch = self._workload.make_batch(batch_size, self._device)
        check_batch(batch, batch_size)
        return setting.converted_batch(batch, self._spec.knobs)


def in_one_line(error: BaseException) -> str:
    """Type and first line of an error's message, in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _sum(parameter: torch.Tensor) -> float:
    """Sum of a parameter in double precision; it is added up in pieces, lest a full double copy is made."""
    flat = parameter.reshape(-1)
    pieces = (flat[start : start + _PIECE_ELEMENTS] for start in range(0, len(flat), _PIECE_ELEMENTS))
    return float(sum(piece.sum(dtype=torch.float64) for piece in pieces))


def _own_part(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Part of a parameter that this rank holds: the shard of a DTensor or ZeRO 3 parameter, or all of it."""
    part: torch.Tensor = getattr(parameter, "_local_tensor", getattr(parameter, "ds_tensor", parameter))
    return part


def _fingerprint(model: torch.nn.Module) -> list[tuple[int, float]]:
    """Version and sum of each trainable parameter, which change when an optimizer updates the parameter.

    Of a sharded parameter, this rank's part counts. In-place operators count a tensor's version up, even
    where a learning rate of zero leaves the values; updates through `.data` leave the version and change the
    values.
    """
    parameters = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return [
        (part._version, _sum(part.detach()))  # noqa: SLF001 - no public name
        for part in map(_own_part, parameters)
        if not part.is_complex()
    ]
