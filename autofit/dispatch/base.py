"""Base of the dispatchers, which take trials and return their outcomes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec

Handle = TypeVar("Handle")

Runner = Callable[[TrialSpec], TrialOutcome]
"""Runs one trial to its end; by default `autofit_workers.trials.run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """GPUs that a dispatcher can reach.

    Attributes:
        names: a name for each GPU, as far as names are known: the driver's on this machine,
            Ray's accelerator types on a cluster.
    """

    num_gpus: int
    names: tuple[str, ...] = ()


class Dispatcher(ABC):
    """Base of the dispatchers, which run trials, several at once if the resources suffice.

    A trial that fails raises no exception: if its worker dies, the verdict of its outcome is `LOST`, and if
    it hangs, `TIMEOUT`. Only if no worker can be reached at all, `autofit.errors.DispatchError` is raised.
    A dispatcher is a context manager, which closes it.

    Attributes:
        notes: sentences for the answer about how trials run here.
    """

    notes: tuple[str, ...] = ()

    @abstractmethod
    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        """Starts a trial, or queues it if `capacity` is used up.

        A trial runs once: the caller decides about another try. The future is cancelled
        if the dispatcher is closed first. Cancelling the future by hand discards the outcome and
        does not stop the trial.

        Raises:
            DispatchError: no worker that can be reached could ever run the trial. If such a worker may
                still come, the future raises this error after a while.
        """

    @abstractmethod
    def capacity(self, trial: Probe | TrialSpec) -> int:
        """Number of trials that may run at once, for a way of measuring or for one spec.

        The number is 0 if there is no device. With a spec, the trial's threads and memory count too.
        """

    @abstractmethod
    def devices(self) -> Devices:
        """GPUs that trials can run on now."""

    @abstractmethod
    def close(self) -> None:
        """Kills running trials, cancels queued ones and leaves no process behind.

        It may be called again, and from a handler of Ctrl-C.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class PendingTrials(Generic[Handle]):
    """Futures of submitted trials that are not completed yet, each with a handle of its trial.

    A future stays pending until its outcome is available, so that the future of a running trial can
    still be cancelled.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: dict[Future[TrialOutcome], Handle] = {}

    def add(self, handle: Handle) -> Future[TrialOutcome]:
        future: Future[TrialOutcome] = Future()
        with self._lock:
            self._handles[future] = handle
        return future

    def snapshot(self) -> dict[Future[TrialOutcome], Handle]:
        """Copy of the futures that are open now, with their handles."""
        with self._lock:
            return dict(self._handles)

    def complete(self, future: Future[TrialOutcome], outcome: TrialOutcome | BaseException) -> None:
        """Completes a future with an outcome or an error; does nothing if the future is no longer open."""
        with self._lock:
            is_open = future in self._handles
            self._handles.pop(future, None)
        if not is_open or not future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def cancel_all(self) -> list[Handle]:
        """Cancels every open future, wakes the threads that wait for a future, and returns the handles."""
        with self._lock:
            handles, self._handles = self._handles, {}
        for future in handles:
            future.cancel()
            future.set_running_or_notify_cancel()
        return list(handles.values())
