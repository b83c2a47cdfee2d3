"""Traces the jobs of a script's thread pools, such as those that load weights onto the GPU.

PyTorch's modes are per thread, so each job enters the mode itself. `submit` waits for the job, so
allocations come in the same order in every run, but for at most 5 seconds, as the job may wait for its
submitter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any

_PATIENCE_SECONDS = 5.0


@contextmanager
def jobs_followed(mode: AbstractContextManager[Any]) -> Iterator[None]:
    """Context in which jobs submitted to a `ThreadPoolExecutor` run under `mode`."""
    kind: Any = ThreadPoolExecutor
    submit = kind.submit

    def submitted(
        pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        def job() -> Any:
            with mode:
                return function(*args, **kwargs)

        future: Future[Any] = submit(pool, job)
        wait([future], _PATIENCE_SECONDS)
        return future

    kind.submit = submitted
    try:
        yield
    finally:
        kind.submit = submit
