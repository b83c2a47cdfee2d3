"""Trials on this machine, each in a child process of this one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from pathlib import Path

import workers
from autofit.dispatch import processes
from autofit.dispatch.base import Devices, Dispatcher, PendingTrials, Runner
from autofit.errors import DispatchError
from autofit.hardware.gpus import LocalGpu, local_gpus
from workers.protocol import Probe, TrialOutcome, TrialSpec

_KILL_AGAIN_SECONDS = 0.1


class InlineDispatcher(Dispatcher):
    """Runs trials here, from a pool of threads that each wait for a child process.

    Args:
        num_parallel: so many CPU trials run at once. CUDA trials never share the machine's GPU,
            and predictions share one warm process.
        runner: what runs a trial; its processes have to be children of this one.
        gpus: asks the driver for the machine's GPUs.
    """

    def __init__(
        self,
        *,
        num_parallel: int = 1,
        runner: Runner = workers.run,
        gpus: Callable[[], Sequence[LocalGpu]] = local_gpus,
    ) -> None:
        self._num_parallel = num_parallel
        self._runner = runner
        self._gpus = gpus
        self._gpu_in_use = threading.Lock()
        self._pool = ThreadPoolExecutor(num_parallel, thread_name_prefix="autofit-trial")
        self._pending: PendingTrials[Future[TrialOutcome]] = PendingTrials()

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        if not self.capacity(spec):
            raise DispatchError(
                "this machine has no NVIDIA GPU to measure on: predict instead (--probe predict), or name a "
                "Ray cluster that has one with --address"
            )
        running = self._pool.submit(self._run, spec)
        future = self._pending.add(running)
        running.add_done_callback(lambda done: self._complete(future, done))
        return future

    def capacity(self, trial: Probe | TrialSpec) -> int:
        match trial if isinstance(trial, Probe) else trial.probe:
            case Probe.PREDICT:
                return 1
            case Probe.CPU:
                return self._num_parallel
            case Probe.CUDA:
                return min(1, len(self._gpus()))

    def devices(self) -> Devices:
        names = tuple(gpu.name for gpu in self._gpus())
        return Devices(num_gpus=len(names), names=names)

    def close(self) -> None:
        trials = self._pending.cancel_all()
        self._pool.shutdown(wait=False, cancel_futures=True)
        # A trial is told by what its process runs, which libcudnn's process does not. It may be
        # between two processes, so those that are found are not always all.
        while running := [trial for trial in trials if not trial.done()]:
            folder = Path(workers.__path__[0])
            processes.kill_groups(processes.children_running(folder, "workers.child"))
            wait(running, timeout=_KILL_AGAIN_SECONDS)
        self._pool.shutdown()

    def _run(self, spec: TrialSpec) -> TrialOutcome:
        with self._gpu_in_use if spec.probe is Probe.CUDA else nullcontext():
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
