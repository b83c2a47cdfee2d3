"""Traces an unmodified training script on a fake GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from autofit_workers.apply.attention import every_model_told
from autofit_workers.process.boundary.permissions import Permissions
from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.scripts.batches.lengths import LengthWatch
from autofit_workers.scripts.batches.size import Batches
from autofit_workers.scripts.follower import StepKind
from autofit_workers.scripts.loops import Loops
from autofit_workers.scripts.ranks import Ranks
from autofit_workers.scripts.running import run_script
from autofit_workers.scripts.watching import StepWatch
from autofit_workers.spec.errors import UnsupportedError, WorkerError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.allocator import (
    CONF_VARIABLE,
    FORMER_CONF_VARIABLE,
    NEW_NAME_SINCE,
    allocator_of,
)
from autofit_workers.spec.knobs.conv_algo import CUDA_POLICIES
from autofit_workers.spec.protocol import TrialSpec
from autofit_workers.spec.setup import Parallel
from autofit_workers.spec.trace import Lengths, Seen, Trace
from autofit_workers.spec.workloads.references import WorkloadError
from autofit_workers.tracing import followed_release
from autofit_workers.tracing.compiled import entry as compiled
from autofit_workers.tracing.explaining import Unpredictable, explanation
from autofit_workers.tracing.fake import fake_device, streams
from autofit_workers.tracing.fake.fake_gpu import FakeGpuMode
from autofit_workers.tracing.fake.libraries import of_transformers
from autofit_workers.tracing.kernels import extensions, run_time, triton
from autofit_workers.tracing.kernels.stand_ins import asking
from autofit_workers.tracing.recording.call_log import CallLog
from autofit_workers.tracing.recording.call_sites import user_source
from autofit_workers.tracing.recording.communicators import Communicators
from autofit_workers.tracing.recording.recorder import Recorder
from autofit_workers.tracing.recording.streams.watch import StreamWatch
from autofit_workers.tracing.scripts import answers, distributed, trainers
from autofit_workers.tracing.scripts.devices import ScriptDevices
from autofit_workers.tracing.scripts.phases import PhaseMarks
from autofit_workers.tracing.scripts.shortcuts import Shortcuts
from autofit_workers.tracing.scripts.threads import jobs_followed
from autofit_workers.tracing.unprotected import notes_of
from autofit_workers.tracing.values.decisions import Decisions, begin
from autofit_workers.workload.libraries.importing import without_missing_operators
from autofit_workers.workload.step import seed


class ScriptTracer:
    """Runs a script on a fake GPU and records its memory events until it has made enough steps.

    Use it in a process that does nothing else, after `fake_gpu.install`.

    Args:
        num_steps: least number of steps to record.
    """

    def __init__(self, spec: TrialSpec, num_steps: int) -> None:
        self._spec = spec
        self._log = CallLog() if spec.with_calls else None
        self._recorder = Recorder(self._log)
        self._follower = PhaseMarks(self._recorder, names=spec.with_calls)
        self._decisions = Decisions(spec.turned, spec.setup.nonzero_share)
        name, script = spec.workload.name, spec.workload.script
        assert script is not None
        batch_size = None if script.keeps_batch else spec.batch_size
        self._batches = Batches(
            name,
            script,
            batch_size,
            loads_here=True,
            num_ranks=lambda: self._ranks.num_ranks,
            position=lambda: self._recorder.position,
        )
        self._lengths = LengthWatch(self._batches)
        self._loops = Loops(
            self._follower.kept,
            lambda: self._recorder.live_bytes if self._follower.is_evaluating else None,
        )
        self._watch = StepWatch(
            self._batches, num_steps, self._follower, follows_modules=True, loops=self._loops
        )
        self._watch.seconds_of_compiler = compiled.seconds
        self._known_lengths: Lengths | None = None
        self._follower.more_tells = self._lengths.wants_more
        self._follower.trains = lambda: self._watch.has_optimizer
        self._ranks = Ranks(name, self._watch.refuse, asked=spec.setup.rank)
        self._communicators = Communicators()
        self._devices = ScriptDevices(name, self._ranks, self._watch.refuse)
        self._mode = _ScriptGpuMode(self._recorder, self._devices, self._communicators, self._watch.refuse)

    def run(self, give_up: Callable[[], None]) -> Trace:
        """Runs the script and returns the trace of its first steps.

        Args:
            give_up: called in a thread if the script, told to end, does not stop.

        Raises:
            UnsupportedError: the script did not use the GPU.
            Exception: any error of `run_script` or `trace`.
        """
        spec, name = self._spec, self._spec.workload.name
        answers.install(spec.architecture, self._ranks, self._devices)
        distributed.install(self._ranks, self._recorder, self._communicators)
        begin(self._decisions)
        trainers.follow(self._loops)
        streams.begin_program(StreamWatch(self._recorder))
        asking.offer_for(spec.knobs)
        seed(spec.seed)
        # Without multithreading the autograd engine runs backward in this thread, where the mode is active.
        with (
            self._mode,
            jobs_followed(self._mode),
            torch.autograd.set_multithreading_enabled(False),
            fake_device.parameters_diverted(self._mode, keeps_meta=True),
            self._recorder.following(),
            self._watch.watching(),
            self._follower.noting_states(),
            Shortcuts(self._watch, lambda: self._recorder.num_live, distributed.has_group).taken(),
            without_missing_operators(),
            every_model_told(spec.knobs.attention),
        ):
            run_script(
                spec.workload,
                spec.batch_size,
                self._watch,
                saves=False,
                give_up=give_up,
                ranks=self._ranks,
                permissions=Permissions.of(spec.setup),
            )
            self._known_lengths = self._lengths.lengths()
        self._recorder.close()
        self._ranks.require_asked()
        self._batches.require_proof()
        if not any(event >= 0 for event in self._recorder.events()):
            raise UnsupportedError(
                f"{name} trained without the GPU: make it use one if torch.cuda.is_available() is true, or "
                "measure it with --device cpu"
            )
        return self.trace()

    def trace(self) -> Trace:
        """Trace of the recorded steps; call it after the script has ended.

        Raises:
            Exception: the error because of which the prediction of the script was refused.
        """
        if self._watch.refusal is not None:
            raise self._watch.refusal
        recorder, spec = self._recorder, self._spec
        return Trace(
            workload=spec.workload.name,
            batch_size=self._batches.size or spec.batch_size,
            batch_count=self._batches.count,
            mode="infer" if self._watch.kind is StepKind.FORWARD else "train",
            optimizer="custom",
            num_ranks=self._ranks.num_ranks,
            parallel=Parallel.of_script(self._ranks.num_ranks).name,
            rank=self._ranks.rank,
            communicators=self._communicators.sizes,
            knobs=spec.knobs,
            allocations=tuple(recorder.allocations),
            events=recorder.events(),
            marks=tuple(recorder.marks),
            versions=self._versions(),
            calls=() if self._log is None else tuple(self._log.calls),
            assumptions=self._decisions.assumptions,
            host_waits=tuple(recorder.order.host_waits),
            work=recorder.work_of_last_step(),
            notes=self._notes(),
            lengths=self._known_lengths,
            seen=self._seen(),
        )

    def _seen(self) -> Seen:
        """Record of how much of the script's run was traced: step ends, length, phases not seen."""
        reached = {mark.name.split(" ")[-1] for mark in self._recorder.marks}
        kind, unseen = self._watch.kind, self._loops.phases_not_reached
        if not self._watch.is_to_end:
            unseen = {"evaluation", "checkpoint"}
        if kind is StepKind.FORWARD:
            unseen = set()
        return Seen(
            step_ends=tuple(self._follower.step_ends[kind].positions),
            num_run_steps=self._num_run_steps(),
            is_to_end=self._watch.is_to_end,
            keepers=tuple(sorted(self._follower.keepers.items())),
            unseen=tuple(sorted(unseen - reached, reverse=True)),
            num_eager_graphs=compiled.num_eager_graphs(),
        )

    def _num_run_steps(self) -> int | None:
        """Number of steps that an untraced run of the script would make; None if unknown."""
        if not self._loops.are_ended and self._watch.is_to_end:
            return self._watch.num_seen
        number = self._loops.num_run_steps
        if number is not None and number < len(self._follower.step_ends[self._watch.kind].positions):
            return None  # the steps of one epoch: a library loops over epochs unseen
        return number

    def _versions(self) -> dict[str, str]:
        num_samples = self._batches.num_in_dataset
        versions = {**followed_release.versions(), "own_conv_algo": own_conv_algo()}
        own_allocator = allocator_of(self._mode.allocator_conf)
        if own_allocator not in (None, Knobs().allocator):
            versions["own_allocator"] = own_allocator
        return versions if num_samples is None else {**versions, "num_samples": str(num_samples)}

    def _notes(self) -> tuple[str, ...]:
        notes = list(self._watch.notes)
        if own_conv_algo() != CUDA_POLICIES[0]:
            notes.append(f"the script sets PyTorch's flags for {own_conv_algo()} convolutions")
        if conf := self._mode.allocator_conf:
            is_followed = allocator_of(conf) is not None
            notes.append(
                f"the script sets its allocator: {conf}"
                if is_followed
                else f"the script sets its allocator, which is not followed: {conf}"
            )
        notes += (*self._decisions.notes, *self._mode.notes, *asking.notes(), *triton.notes())
        notes += compiled.notes()
        notes += (*extensions.notes(), *run_time.notes())
        notes += (*of_transformers.notes(), *followed_release.notes())
        if self._watch.kind is not StepKind.OPTIMIZER:
            notes.append(f"the script steps no optimizer: a step is a {self._watch.kind}")
        if self._batches.whole_dataset is not None:
            notes.append(f"the whole data set of {self._batches.whole_dataset} is one batch")
        notes += self._batches.notes
        return tuple(dict.fromkeys((*notes, *notes_of(self._spec))))


def own_conv_algo() -> str:
    """Convolution policy, such as `cudnn-benchmark`, to which the script's cuDNN flags amount."""
    flags: Any = torch.backends.cudnn
    benchmark, deterministic, default = "cudnn-benchmark", "cudnn-deterministic", CUDA_POLICIES[0]
    if not flags.enabled:
        return "native"
    if torch.are_deterministic_algorithms_enabled() or flags.deterministic:
        return deterministic
    return benchmark if flags.benchmark else default


class _ScriptGpuMode(FakeGpuMode):
    """Fake GPU that ends the script at an operator it cannot run, before the script can catch the error."""

    def __init__(
        self,
        recorder: Recorder,
        devices: ScriptDevices,
        communicators: Communicators,
        refuse: Callable[[Exception], NoReturn],
    ) -> None:
        super().__init__(recorder.observe, devices)
        self.worked = recorder.note_work
        self._communicators = communicators
        self._refuse = refuse
        self._confs_before = _allocator_confs()
        self._own_conf: str | None = None

    @property
    def allocator_conf(self) -> str:
        """Settings of PyTorch's allocator that the script made before it used the GPU; empty for none."""
        return self._own_conf or ""

    def _run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._own_conf is None:  # PyTorch reads them when it first allocates
            confs = _allocator_confs()
            changed = [new for new, old in zip(confs, self._confs_before, strict=True) if new != old]
            self._own_conf = next(filter(None, changed), "")
        self._communicators.note(func, args, kwargs)
        try:
            return super()._run(func, args, kwargs)
        except Unpredictable as error:
            if self.num_tried:
                raise
            where = user_source(sys._getframe(1)) or "an unknown line"
            self._refuse(explanation(error, where))
        except (WorkerError, WorkloadError) as error:  # must not reach the script's own handlers
            if self.num_tried:
                raise
            self._refuse(error)


def _allocator_confs() -> tuple[str | None, ...]:
    """Values of the variables that configure PyTorch's allocator, the one that PyTorch prefers first."""
    names = (CONF_VARIABLE, FORMER_CONF_VARIABLE)
    return tuple(os.environ.get(name) for name in names[followed_release.is_before(NEW_NAME_SINCE) :])
