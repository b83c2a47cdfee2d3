"""Clients of `autofit serve`, all at once: 100 that scrape, 1,000 that say nothing, 100 that drip.

The bad ones live in a process of their own. They come over some seconds, as strangers do, and each connects
again whenever it is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import multiprocessing
import random
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.synchronize import Event
from typing import TypeVar

_What = TypeVar("_What")

_Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

NUM_CLIENTS, NUM_SILENT, NUM_DRIPPING = 100, 1000, 100

_SCRAPE_SECONDS = 1.0  # between two of a client; Prometheus's default is 60 times that
_DRIP_SECONDS = 0.5
_COMING_SECONDS = 10.0
_NUM_ALONE = 200
_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: autofit\r\nConnection: close\r\n\r\n"


@dataclasses.dataclass(frozen=True)
class Crowd:
    """What clients saw; seconds.

    Attributes:
        alone_p50: the median of one client while there is no other.
    """

    alone_p50: float
    p50: float
    p99: float
    slowest: float
    num_scrapes: int
    num_failed: int

    @property
    def ratio(self) -> float:
        return self.p99 / self.alone_p50


def measure(port: int, seconds: float, share: float = 1.0) -> Crowd:
    """One client alone, then such a share of all of them for so long."""
    alone = asyncio.run(_alone(port))
    with beside(_crowd, (port, share)):
        durations, num_failed = asyncio.run(_together(port, seconds, math.ceil(share * NUM_CLIENTS)))
    in_order = sorted(durations)
    return Crowd(
        alone_p50=statistics.median(alone),
        p50=statistics.median(in_order),
        p99=in_order[int(0.99 * (len(in_order) - 1))],
        slowest=in_order[-1],
        num_scrapes=len(in_order),
        num_failed=num_failed,
    )


async def _alone(port: int) -> list[float]:
    return [await _scrape(port) for _ in range(_NUM_ALONE)]


async def _together(port: int, seconds: float, num_clients: int) -> tuple[list[float], int]:
    durations: list[float] = []
    num_failed = 0
    until = time.perf_counter() + seconds

    async def client() -> None:
        nonlocal num_failed
        await asyncio.sleep(random.uniform(0, _SCRAPE_SECONDS))
        while time.perf_counter() < until:
            try:
                durations.append(await _scrape(port))
            except (OSError, EOFError):
                num_failed += 1
            await asyncio.sleep(random.uniform(0.5, 1.5) * _SCRAPE_SECONDS)

    await asyncio.gather(*(client() for _ in range(num_clients)))
    return durations, num_failed


async def _scrape(port: int) -> float:
    """Seconds until the whole answer was there."""
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_REQUEST)
    answer = await reader.read(-1)
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200 OK") or not answer.endswith(b"\n"):
        raise EOFError(answer[:80])
    return time.perf_counter() - started


@contextlib.contextmanager
def beside(run: Callable[[_What, Event, Event], None], what: _What) -> Iterator[None]:
    """Another process runs a function meanwhile, which sets its first event once it has begun, and ends
    with its second one.
    """
    processes = multiprocessing.get_context("spawn")
    begun, stop = processes.Event(), processes.Event()
    process = processes.Process(target=run, args=(what, begun, stop))
    process.start()
    begun.wait()
    try:
        yield
    finally:
        stop.set()
        process.join()


def _crowd(what: tuple[int, float], connected: Event, stop: Event) -> None:
    port, share = what
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_behave_badly(port, share, connected, stop))


async def _behave_badly(port: int, share: float, connected: Event, stop: Event) -> None:
    num_connected = 0

    async def again_and_again(behave: _Behaviour) -> None:
        nonlocal num_connected
        is_first = True
        await asyncio.sleep(random.uniform(0, share * _COMING_SECONDS))
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                num_connected += is_first
                is_first = False
                await behave(reader, writer)
                writer.close()

    tasks = [asyncio.create_task(again_and_again(_silent)) for _ in range(math.ceil(share * NUM_SILENT))]
    tasks += [asyncio.create_task(again_and_again(_dripping)) for _ in range(math.ceil(share * NUM_DRIPPING))]
    while num_connected < len(tasks):
        await asyncio.sleep(0.01)
    connected.set()
    await asyncio.to_thread(stop.wait)
    for task in tasks:
        task.cancel()


async def _silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read(-1)


async def _dripping(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A byte of a request now and then, until that fails."""
    writer.write(_REQUEST[:30])
    while True:
        writer.write(b"X")
        await writer.drain()
        await asyncio.sleep(_DRIP_SECONDS)
