"""Traces what a process runs between two lines, such as a block of a test, on a GPU that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from autofit_workers.pytorch.autograd import RUN_BACKWARD
from autofit_workers.spec.protocol import Probe, TrialSpec, WorkloadRef
from autofit_workers.spec.trace import Trace
from autofit_workers.tracing import followed_release, probe
from autofit_workers.tracing.compiled import entry as compiled
from autofit_workers.tracing.explaining import explained
from autofit_workers.tracing.fake import fake_device, fake_gpu, streams
from autofit_workers.tracing.fake.devices import GPU
from autofit_workers.tracing.kernels import extensions, run_time, triton
from autofit_workers.tracing.kernels.stand_ins import asking
from autofit_workers.tracing.recording.recorder import Recorder
from autofit_workers.tracing.recording.streams.watch import StreamWatch
from autofit_workers.tracing.scripts.phases import PhaseMarks
from autofit_workers.tracing.scripts.threads import jobs_followed
from autofit_workers.tracing.values.decisions import Decisions, begin


class BlockTracer:
    """Tracer of a block of Python code that uses a fake GPU; it records the memory events of all of it.

    PyTorch stays patched in this process when the block has ended (see `fake_gpu`). So use it in a process
    that ends soon after, such as a fork of the one whose code the block is.

    Args:
        name: name of the block, for the trace.

    Attributes:
        device: the GPU that the block runs on.
    """

    device = GPU

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec = TrialSpec(
            workload=WorkloadRef(kind="pickle", target=name), batch_size=1, probe=Probe.PREDICT
        )
        probe.begin_program(self._spec)
        probe.install(self._spec)
        self._recorder = Recorder()
        self._marks = PhaseMarks(self._recorder, names=False)
        self._decisions = Decisions()
        self._mode = fake_gpu.FakeGpuMode(self._recorder.observe)
        self._mode.worked = self._recorder.note_work
        self._num_backwards = self._num_steps = 0

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Context manager whose block is traced; enter it once.

        Raises:
            DataDependentError: the block needs values that only a real run has.
            UnsupportedError: an operator cannot run without a GPU.
        """
        self._marks.trains = lambda: self._num_steps > 0
        begin(self._decisions)
        streams.begin_program(StreamWatch(self._recorder))
        # Without multithreading the autograd engine runs backward in this thread, where the mode is active.
        with (
            explained(),
            self._mode,
            jobs_followed(self._mode),
            torch.autograd.set_multithreading_enabled(False),
            fake_device.parameters_diverted(self._mode, keeps_meta=True),
            self._recorder.following(),
            self._followed(),
        ):
            yield
        self._recorder.close()

    def trace(self) -> Trace:
        """Trace of the block that has ended. Its batch size is 1, as the block says none."""
        recorder = self._recorder
        return Trace(
            workload=self._name,
            batch_size=1,
            mode="train" if self._num_backwards else "infer",
            optimizer="custom",
            knobs=self._spec.knobs,
            allocations=tuple(recorder.allocations),
            events=recorder.events(),
            marks=tuple(recorder.marks),
            versions=followed_release.versions(),
            assumptions=self._decisions.assumptions,
            host_waits=tuple(recorder.order.host_waits),
            notes=(
                *self._decisions.notes,
                *self._mode.notes,
                *asking.notes(),
                *triton.notes(),
                *compiled.notes(),
                *extensions.notes(),
                *run_time.notes(),
            ),
        )

    @contextmanager
    def _followed(self) -> Iterator[None]:
        """Context in which forward and backward passes and optimizer steps begin phases of the trace."""
        hooks: Any = torch.nn.modules.module
        handles = [
            hooks.register_module_forward_pre_hook(self._entered),
            optimizers.register_optimizer_step_pre_hook(self._stepping),
            optimizers.register_optimizer_step_post_hook(self._stepped),
        ]
        run_backward = RUN_BACKWARD.get()

        def followed(*args: Any, **kwargs: Any) -> Any:
            self._num_backwards += 1
            self._marks.backward()
            try:
                return run_backward(*args, **kwargs)
            finally:
                self._marks.after_backward()

        RUN_BACKWARD.replace(followed)
        try:
            yield
        finally:
            RUN_BACKWARD.replace(run_backward)
            for handle in handles:
                handle.remove()

    def _entered(self, module: torch.nn.Module, _args: object) -> None:
        if self._recorder.num_modules == 1:  # the recorder's own hook has run before
            self._marks.forward(module)

    def _stepping(self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        self._marks.stepping(optimizer)

    def _stepped(self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        self._num_steps += 1
        self._marks.stepped(optimizer)


def use_one_thread() -> None:
    """Lets PyTorch compute in the calling thread alone, as a fork has none of its parent's pool."""
    torch.set_num_threads(1)
