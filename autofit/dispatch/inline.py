"""Runs trials on this machine without Ray, each in a child process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

import psutil

from autofit.dispatch.base import Devices, Dispatcher, PendingTrials, Runner
from autofit.dispatch.requests import Node, Wishes, can_run, in_words, offers_in_words
from autofit.errors import DispatchError
from autofit.hardware.gpus import LocalGpu, local_gpus, visible_gpus
from autofit_workers.process.operating_system import num_processors
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec
from autofit_workers.trials import door
from autofit_workers.trials.door import ended_by


class InlineDispatcher(Dispatcher):
    """Dispatcher that runs trials on this machine, each in a child process that a thread waits for.

    Args:
        num_parallel: number of trials on the CPU that run at the same time. Trials on a GPU and predictions
            run one at a time.
        runner: runs a trial in a child process.
        gpus: returns the machine's GPUs; of these, `CUDA_VISIBLE_DEVICES` selects those that count.
        notes: sentences for the user about the place where trials run.
    """

    def __init__(
        self,
        *,
        num_parallel: int = 1,
        runner: Runner = door.run,
        gpus: Callable[[], Sequence[LocalGpu]] = local_gpus,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.notes = notes
        self._num_parallel = num_parallel
        self._runner = runner
        self._gpus = gpus
        self._machine = {"CPU": num_processors(), "memory": psutil.virtual_memory().total}
        self._gpu_in_use = threading.Lock()
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(num_parallel, thread_name_prefix="autofit-trial")
        self._pending: PendingTrials[Future[TrialOutcome]] = PendingTrials()

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        if not self.capacity(spec):
            raise self._too_much(spec)
        running = self._pool.submit(self._run, spec)
        future = self._pending.add(running)
        running.add_done_callback(lambda done: self._complete(future, done))
        return future

    def capacity(self, trial: Probe | TrialSpec) -> int:
        probe, spec = (trial, None) if isinstance(trial, Probe) else (trial.probe, trial)
        if not can_run([self._node(probe)], Wishes().request(probe, spec, ())):
            return 0
        return self._num_parallel if probe is Probe.CPU else 1

    def devices(self) -> Devices:
        names = tuple(gpu.name for gpu in self._visible_gpus())
        return Devices(num_gpus=len(names), names=names)

    def close(self) -> None:
        self._closed.set()  # set first, as a thread that gets free takes the next trial immediately
        self._pending.cancel_all()
        self._pool.shutdown(cancel_futures=True)

    def _visible_gpus(self) -> tuple[LocalGpu, ...]:
        return visible_gpus(self._gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))

    def _node(self, probe: Probe) -> Node:
        """Resources of this machine in Ray's terms, as for a node; GPUs only for trials that run on a GPU."""
        return self._machine | ({"GPU": len(self._visible_gpus())} if probe is Probe.CUDA else {})

    def _too_much(self, spec: TrialSpec) -> DispatchError:
        if spec.probe is Probe.CUDA and not self._visible_gpus():
            return DispatchError(
                "this machine has no NVIDIA GPU to measure on: predict instead (--probe predict), or name a "
                "Ray cluster that has one with --address"
            )
        request = Wishes().request(spec.probe, spec, ())
        return DispatchError(
            f"this machine cannot run the trial: it asks for {in_words(request)}, and here are "
            f"{offers_in_words([self._node(spec.probe)], request)}: ask for less, or name a Ray cluster "
            "that has as much with --address"
        )

    def _run(self, spec: TrialSpec) -> TrialOutcome:
        with self._gpu_in_use if spec.probe is Probe.CUDA else nullcontext(), ended_by(self._closed):
            return self._runner(spec)

    def _complete(self, future: Future[TrialOutcome], done: Future[TrialOutcome]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._pending.complete(future, done.result())
            return
        failure = DispatchError(f"the trial could not be supervised ({error!r}): run `autofit doctor`")
        failure.__cause__ = error
        self._pending.complete(future, failure)
