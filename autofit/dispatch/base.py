"""Base of the dispatchers, which take trials and return their outcomes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec
from autofit_workers.spec.pythons import Self

Handle = TypeVar("Handle")

Runner = Callable[[TrialSpec], TrialOutcome]
"""Runs one trial to its end; by default `autofit_workers.trials.run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """GPUs that trials can run on: their number and names.

    Attributes:
        names: names of the GPUs, as far as they are known: those of the driver on this machine, Ray's
            accelerator types on a cluster.
    """

    num_gpus: int
    names: tuple[str, ...] = ()


class Dispatcher(ABC):
    """Base of the dispatchers: objects that run trials, several in parallel if resources allow.

    A trial is one run of a configuration, in a process of its own (worker). A trial that fails raises no
    exception: if its worker dies, its outcome has the verdict `LOST`, and if it hangs, `TIMEOUT`.
    `autofit.errors.DispatchError` is raised only if no worker can be had at all. Use a dispatcher in a `with`
    statement, which closes it.

    Attributes:
        notes: sentences for the user about the place where trials run.
    """

    notes: tuple[str, ...] = ()

    @abstractmethod
    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        """Starts a trial, or queues it if as many run as `capacity` allows; returns a future of its outcome.

        A trial is never repeated; the caller decides about another try. If the dispatcher is closed before
        the trial has ended, the future is cancelled. Cancelling the future discards the outcome, but does not
        stop the trial.

        Raises:
            DispatchError: no worker here can run the trial. If a fitting worker may still join the cluster,
                the future raises this error after a while instead.
        """

    @abstractmethod
    def capacity(self, trial: Probe | TrialSpec) -> int:
        """Number of trials that the dispatcher can run at the same time.

        It is 0 if there is no device for the trial.

        Args:
            trial: way of measuring, or specification of a trial, whose threads and memory are then
                considered.
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
    """Futures of trials that have no outcome yet, each with the dispatcher's own reference (handle) to it.

    A future is never marked as running, so that it can be cancelled until it has an outcome.
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
        """Copy of the pending futures, with the handle of each."""
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
        """Cancels all pending futures, and returns the handles of their trials."""
        with self._lock:
            handles, self._handles = self._handles, {}
        for future in handles:
            future.cancel()
            future.set_running_or_notify_cancel()
        return list(handles.values())
