"""What every dispatcher is: trials in, outcomes out."""

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
"""Runs one trial to its end; `autofit_workers.trials.run` where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The GPUs that a dispatcher can reach.

    Attributes:
        names: one for each GPU, as far as they are known: the driver's names on this machine,
            Ray's accelerator types on a cluster.
    """

    num_gpus: int
    names: tuple[str, ...] = ()


class Dispatcher(ABC):
    """Runs trials somewhere, several at once where there is room.

    How a trial ended is never an exception: a worker that dies makes an outcome with the verdict
    `LOST`, one that hangs `TIMEOUT`. What is an exception, of `autofit.errors.DispatchError`, is
    that no worker can be had at all. As a context manager it closes itself.

    Attributes:
        notes: what is to be known of how trials run here, beside their outcomes; one sentence each.
    """

    notes: tuple[str, ...] = ()

    @abstractmethod
    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        """Starts a trial, or queues it where `capacity` is used up.

        A trial runs once: whoever asked for it decides about another try. The future is cancelled
        when the dispatcher is closed first. To cancel the future by hand discards the outcome and
        does not stop the trial.

        Raises:
            DispatchError: when nothing that can be reached could ever run the trial; where it may
                still come, the future raises it after a while.
        """

    @abstractmethod
    def capacity(self, trial: Probe | TrialSpec) -> int:
        """How many trials of this probe, or such as this one, may run at once.

        0 where there is no such device. A trial's threads and its memory count where a spec is given.
        """

    @abstractmethod
    def devices(self) -> Devices:
        """The GPUs that trials could run on now."""

    @abstractmethod
    def close(self) -> None:
        """Kills what is running, cancels what is queued and leaves no process behind.

        May be called again, and from a handler of Ctrl-C.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class PendingTrials(Generic[Handle]):
    """The futures handed out and not yet completed, each with a handle on what runs its trial.

    A future stays pending until its outcome is there, so that the future of a running trial can
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
        """The futures that are open now, with their handles."""
        with self._lock:
            return dict(self._handles)

    def complete(self, future: Future[TrialOutcome], outcome: TrialOutcome | BaseException) -> None:
        """Hands over an outcome, or why there is none; nothing where the future is closed already."""
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
        """Cancels every open future, wakes those who wait for one, and returns the handles."""
        with self._lock:
            handles, self._handles = self._handles, {}
        for future in handles:
            future.cancel()
            future.set_running_or_notify_cancel()
        return list(handles.values())
