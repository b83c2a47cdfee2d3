"""What this machine's processor can do, measured in two seconds: what step times on it are predicted from."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from workers.predict.time.cpu_costs import CPU, CpuSpeeds
from workers.process.outcomes import processor_name

_SECONDS = 0.25  # for each of the eight things that are timed
_LEAST_TIMES = 3
_SIDE, _SLOW_SIDE = 1024, 256  # of the matrices; of types that the processor has no instructions for
_SLOW = (torch.float16,)
_BLOCK_ELEMENTS = 2**24  # in float32: larger than caches
_CALLS = 200
_CACHE_BYTES = 32 * 2**20  # of a last cache; no constant of a processor's operators depends on it


def measure_cpu_speeds() -> CpuSpeeds:
    """The speeds of this process's threads; beside other work they come out low."""
    flops = {_name(dtype): _flops(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)}
    left, right = torch.ones(_BLOCK_ELEMENTS), torch.ones(_BLOCK_ELEMENTS)
    kept = torch.ones(_BLOCK_ELEMENTS)
    in_kept = _median_seconds(lambda: torch.add(left, right, out=kept))
    in_fresh = _median_seconds(lambda: torch.add(left, right))
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
        cache_bytes=_CACHE_BYTES,
        call_seconds=_median_seconds(calls) / _CALLS,
        page_seconds=max(0.0, in_fresh - in_kept) / kept.nbytes,
    )


def _flops(dtype: torch.dtype) -> float:
    """Of products of matrices in a type, a second."""
    side = _SLOW_SIDE if dtype in _SLOW else _SIDE
    left, right = torch.ones(side, side, dtype=dtype), torch.ones(side, side, dtype=dtype)
    return 2 * side**3 / _median_seconds(lambda: torch.mm(left, right))


def _median_seconds(action: Callable[[], object]) -> float:
    action()  # which makes what the next ones find
    seconds: list[float] = []
    begin = time.perf_counter()
    while len(seconds) < _LEAST_TIMES or time.perf_counter() - begin < _SECONDS:
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
