"""Measures the steps of a training script without changing it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from autofit_workers.apply.attention import every_model_told
from autofit_workers.scripts.batches.size import Batches
from autofit_workers.scripts.follower import StepKind
from autofit_workers.scripts.running import run_script
from autofit_workers.scripts.watching import StepWatch
from autofit_workers.spec.errors import InvalidTrialError
from autofit_workers.spec.protocol import TrialSpec
from autofit_workers.trials.measure import steps


class ScriptTrial:
    """Training script that runs as it is under the conditions of a trial; counterpart of `steps.Trial`.

    Evaluations and checkpoints are measured if the script makes them between its steps. None are added after
    the steps.

    Args:
        spec: the trial.
        device: device that is measured.
        meter: measures peaks and times.
        progress: gets phases, peaks and times.
        give_up: called in a thread if the script goes on after it was ended, see `run_script`.
    """

    def __init__(
        self,
        spec: TrialSpec,
        device: torch.device,
        meter: steps.Meter,
        progress: steps.Progress,
        *,
        give_up: Callable[[], None],
    ) -> None:
        self._spec, self._device = spec, device
        self._meter, self._progress = meter, progress
        self._give_up = give_up
        num_steps = spec.num_warmup_steps + spec.num_steps
        assert spec.workload.script is not None
        self._batches = Batches(spec.workload.name, spec.workload.script, spec.batch_size)
        self._watch = StepWatch(self._batches, num_steps, self, follows_modules=False)
        self._step_began = 0.0

    def take_steps(self) -> None:
        """Runs the training script until it has made the steps of the trial.

        Raises:
            InvalidTrialError: the script made no steps, ran another batch size, or used no device memory.
            Exception: the script failed; see `run_script`.
        """
        spec, progress = self._spec, self._progress
        flags = _conv_flags()
        progress.enter("build")
        self._meter.reset()
        with self._watch.watching(), every_model_told(spec.knobs.attention):
            run_script(spec.workload, spec.batch_size, self._watch, saves=True, give_up=self._give_up)
        self._batches.require_proof()
        if not self._watch.has_ended:
            progress.steady = self._meter.peaks()
            progress.remarks["steps"] = f"{spec.workload.name} ended by itself after {self._watch.num_seen}"
            progress.num_steps_done = max(progress.num_steps_done, self._watch.num_seen)
        if self._watch.notes:
            progress.remarks["notes"] = "; ".join(self._watch.notes)
        if self._batches.whole_dataset is not None:
            progress.remarks["whole_dataset"] = str(self._batches.whole_dataset)
        self._demand_memory()
        if _conv_flags() != flags and self._device.type == "cuda":
            raise InvalidTrialError(
                f"{spec.workload.name} sets the flags of torch.backends.cudnn itself: name the same with "
                "--conv-algo (cudnn-benchmark, cudnn-deterministic), or remove that from the script"
            )

    def follow_up(self) -> None:
        """Does nothing: no evaluation or checkpoint follows a script's steps."""

    def _demand_memory(self) -> None:
        steady = self._progress.steady
        assert steady is not None
        used_bytes = steady.device_bytes if steady.allocated_bytes is None else steady.allocated_bytes
        if not used_bytes:
            raise InvalidTrialError(
                f"{self._spec.workload.name} used no GPU memory: make it train on the GPU if "
                "torch.cuda.is_available() is true"
            )

    # ── calls of the script's watch ─────────────────────────────────────────────────────────────

    def forward(self, module: torch.nn.Module) -> None:
        """Does nothing: modules are not followed."""

    def backward(self) -> None:
        """Does nothing: backward passes are not followed."""

    after_backward = backward

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Does nothing: peaks are read when a step has ended, not when the optimizer begins it."""

    def stepped(self, optimizer: torch.optim.Optimizer | None) -> None:  # noqa: ARG002 - the follower's signature
        """Records time and peaks after each step of the script."""
        progress, num_warmup = self._progress, self._spec.num_warmup_steps
        if self._watch.num_steps == progress.num_steps_done:
            return  # another optimizer of the same step
        progress.num_steps_done = self._watch.num_steps
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if progress.num_steps_done == 1:
            progress.first_step = self._meter.peaks()
        if progress.num_steps_done > max(num_warmup, 1):
            progress.step_seconds.append(now - self._step_began)
        if progress.num_steps_done == num_warmup:
            self._meter.reset()
        self._step_began = time.perf_counter()
        progress.enter(f"step {progress.num_steps_done - num_warmup + 1}")

    def counted(self, kind: StepKind) -> None:
        """Does nothing: steps are counted as they end."""

    def wants_more(self, kind: StepKind) -> bool:  # noqa: ARG002 - the follower's signature
        return False

    def saving(self) -> None:
        """Does nothing: a checkpoint is measured as part of the time between the steps."""

    def ended(self) -> None:
        self._progress.steady = self._meter.peaks()


def _conv_flags() -> tuple[bool, ...]:
    flags = torch.backends.cudnn
    return flags.enabled, flags.benchmark, flags.deterministic, torch.are_deterministic_algorithms_enabled()
