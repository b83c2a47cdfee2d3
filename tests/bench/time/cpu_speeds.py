"""What this machine's processor can do, measured in two seconds: what step times on it are predicted from."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable

import torch

from autofit_workers.tracing.recording.names import name_of_type
from autofit_workers.trials.outcomes import processor_name
from tests.bench.time.cpu_costs import CPU, CpuSpeeds

_SECONDS = 0.25  # for each of the six things that are timed
_LEAST_TIMES = 3
_SIDE, _SLOW_SIDE = 1024, 256  # of the matrices; of types that the processor has no instructions for
_SLOW = (torch.float16,)
_BLOCK_ELEMENTS = 2**24  # in float32: larger than caches
_CALLS = 200


def measure_cpu_speeds(seconds_each: float = _SECONDS) -> CpuSpeeds:
    """The speeds of this process's threads; beside other work they come out low.

    Args:
        seconds_each: for each of the things that are timed.
    """
    median = functools.partial(_median_seconds, seconds=seconds_each)
    flops = {
        name_of_type(dtype): _flops(dtype, median) for dtype in (torch.float32, torch.bfloat16, torch.float16)
    }
    left, right = torch.ones(_BLOCK_ELEMENTS), torch.ones(_BLOCK_ELEMENTS)
    kept = torch.ones(_BLOCK_ELEMENTS)
    in_kept = median(lambda: torch.add(left, right, out=kept))
    in_fresh = median(lambda: torch.add(left, right))
    one = torch.zeros(1)

    def calls() -> None:
        for _ in range(_CALLS):
            one.add(1.0)

    return CpuSpeeds(
        name=processor_name(),
        architecture=CPU,
        num_units=torch.get_num_threads(),
        flops=flops,
        vector_flops=flops["float32"],
        bandwidth=3 * kept.nbytes / in_kept,
        cache_bytes=0,  # on which no constant of a processor depends
        call_seconds=median(calls) / _CALLS,
        page_seconds=max(0.0, in_fresh - in_kept) / kept.nbytes,
    )


def _flops(dtype: torch.dtype, median: Callable[[Callable[[], object]], float]) -> float:
    """Of products of matrices in a type, a second."""
    side = _SLOW_SIDE if dtype in _SLOW else _SIDE
    left, right = torch.ones(side, side, dtype=dtype), torch.ones(side, side, dtype=dtype)
    return 2 * side**3 / median(lambda: torch.mm(left, right))


def _median_seconds(action: Callable[[], object], *, seconds: float) -> float:
    action()  # which makes what the next ones find
    found: list[float] = []
    begin = time.perf_counter()
    while len(found) < _LEAST_TIMES or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        action()
        found.append(time.perf_counter() - start)
    return statistics.median(found)
