"""Runs predict trials in background threads, before their traces are needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from autofit.dispatch.base import Runner
from autofit_workers.process.heart import unheard
from autofit_workers.spec.protocol import Heartbeat, TrialOutcome, TrialSpec
from autofit_workers.spec.pythons import Self
from autofit_workers.trials.door import ended_by, reported_to

_AT_ONCE = 2  # trials that run in parallel; `autofit_workers.trials.run` decides whether they share a process

_LOOK_SECONDS = 0.5  # between two looks at how far a trial is that is waited for


class TracesAhead:
    """Makes traces in background threads before they are needed, in the order in which they are asked for.

    A trace is made by a trial, one run of a worker process. Use it in a `with` statement; at its end, queued
    trials are dropped, and running ones are ended.

    Args:
        run: runs a trial that makes a trace; called by several threads.
    """

    def __init__(self, run: Runner) -> None:
        self._run = run
        self._stop = threading.Event()
        self._executor = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="traces-ahead")
        self._futures: dict[Hashable, Future[TrialOutcome]] = {}
        self._beats: dict[Hashable, Heartbeat] = {}  # the last one of each trial

    def ask(self, key: Hashable, spec: TrialSpec) -> None:
        """Adds a trial to the end of the queue, unless one with the same key was added before.

        Args:
            key: name of the trial, by which `take` returns its outcome.
        """
        if key not in self._futures:
            self._futures[key] = self._executor.submit(self._outcome, key, spec)

    def take(self, key: Hashable, report: Callable[[Heartbeat], None] = unheard) -> TrialOutcome | None:
        """Waits for the outcome of a trial and returns it; None if no trial was added as `key`.

        Args:
            report: called again and again with the trial's last heartbeat, in the thread that waits.
        """
        future = self._futures.get(key)
        if future is None:
            return None
        while not wait([future], timeout=_LOOK_SECONDS).done:
            if key in self._beats:
                report(self._beats[key])
        return future.result()

    def close(self) -> None:
        """Drops queued trials, ends those that run, and waits until they have ended."""
        self._executor.shutdown(wait=False, cancel_futures=True)  # so that no queued trial begins
        self._stop.set()
        self._executor.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _outcome(self, key: Hashable, spec: TrialSpec) -> TrialOutcome:
        with ended_by(self._stop), reported_to(lambda beat: self._beats.update({key: beat})):
            return self._run(spec)
