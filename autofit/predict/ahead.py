"""Runs predict trials in background threads, before their traces are needed."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from autofit.dispatch.base import Runner
from autofit_workers.spec.protocol import TrialOutcome, TrialSpec
from autofit_workers.trials.door import ended_by

_AT_ONCE = 2  # trials that run at once; `autofit_workers.trials.run` decides whether they share a process


class TracesAhead:
    """Runs queued predict trials in background threads, in the order of `ask`, until it is closed.

    As a context manager it is closed on exit: trials in the queue are dropped, and running ones are ended.

    Args:
        run: runs a predict trial; called by several threads.
    """

    def __init__(self, run: Runner) -> None:
        self._run = run
        self._stop = threading.Event()
        self._executor = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="traces-ahead")
        self._futures: dict[Hashable, Future[TrialOutcome]] = {}

    def ask(self, key: Hashable, spec: TrialSpec) -> None:
        """Adds a trial to the end of the queue, unless `key` is in the queue already."""
        if key not in self._futures:
            self._futures[key] = self._executor.submit(self._outcome, spec)

    def take(self, key: Hashable) -> TrialOutcome | None:
        """Waits for the outcome of a queued trial and returns it; None if no trial was queued as `key`."""
        future = self._futures.get(key)
        return None if future is None else future.result()

    def close(self) -> None:
        """Drops queued trials, ends those that run, and waits until they have ended."""
        self._executor.shutdown(wait=False, cancel_futures=True)  # so that no queued trial begins
        self._stop.set()
        self._executor.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _outcome(self, spec: TrialSpec) -> TrialOutcome:
        with ended_by(self._stop):
            return self._run(spec)
