"""Decorator that finds a training function's batch size, starting from the predicted one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from autofit import api
from autofit.errors import UsageError
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.workload.workload import Workload


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
    *,
    workload: Workload | Script | str | None = None,
    **options: Any,
) -> Any:
    """Decorator that calls a function with smaller batch sizes until it does not run out of memory.

    It can replace Accelerate's decorator of the same name: the first parameter of the function is the
    batch size, which callers leave out. When PyTorch runs out of memory, the function is called again with
    a batch that is a tenth smaller. With a workload the first try is the predicted size, not a guess:

        >>> @autofit.find_executable_batch_size(workload="train.py:workload")
        ... def train(batch_size, epochs): ...
        >>> train(epochs=3)

    Args:
        function: function to decorate; its first parameter is the batch size.
        starting_batch_size: batch size of the first try, without a workload.
        reduce_batch_size_fn: called without arguments, returns the next size; by default a tenth less.
        workload: workload that the function trains: a `Workload`, a `Script`, or any argument of
            `Workload.load`.
        options: options of `autofit.tune` for the prediction: `gpu_mem`, `gpu`, `conv_algo` (default
            `cudnn`), `precision`, `risk` (default `likely`, as too large a size only costs another try),
            …. Without `gpu` and `gpu_mem` the card is this machine's.

    Returns:
        The decorated function, or the decorator when called without `function`.

    Raises:
        UsageError: there are options but no workload; or, when the function is called, no card is named
            and this machine has none, or no batch is predicted to fit.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
            workload=workload,
            **options,
        )
    if workload is None and options:
        raise UsageError(
            f"{', '.join(sorted(options))} can only be used with workload=: give it too, or leave them out"
        )
    from autofit_workers.trials.measure.executable_batch_size import with_executable_batch_size

    def first() -> int:
        return starting_batch_size if workload is None else _predicted(workload, options)

    return with_executable_batch_size(function, first, reduce_batch_size_fn)


def _predicted(workload: Workload | Script | str, options: dict[str, Any]) -> int:
    best = api.tune(workload, **{"probe": "predict", "conv_algo": "cudnn", "risk": "likely"} | options).best
    if best is None:
        raise UsageError(
            "not even the smallest batch is predicted to fit: leave out workload= to try anyway, or run "
            "`autofit tune` to see why"
        )
    return best.batch_size
