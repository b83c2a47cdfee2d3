"""How long the webhook of `autofit serve` takes for a review, and whether its memory grows.

    python tests/bench/webhook_load.py [--reviews 100000] [--clients 50]

`autofit serve --webhook` is started with a lock of 200 configurations, and asked by so many clients at once,
each of which sends its next review when it has the answer to the last. The reviews are 300 documents: pods
and Ray jobs that fit, that do not, that are unknown and that are not annotated, and malformed ones. Beside
it, in the same run: one client alone.

Exits with 1 where an answer was not the one that the document should get, the 99th percentile of the clients
was more than 50 ms and than twice one client's median times their number, or the resident memory grew by
more than 5 % from the first tenth of the reviews to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no package that could be installed

from autofit.locks.lock_file import LockedConfiguration, write_lock
from tests.autofit.webhook.certificate import write_certificate
from tests.autofit.webhook.reviews import lock_of, peak, review, template
from tests.daemons import Daemon

GATE_SECONDS = 0.050
GATE_RATIO = 2.0
GATE_GROWTH = 1.05
_NUM_CONFIGURATIONS, _NUM_DOCUMENTS = 200, 300
_MIB = 1024**2


@dataclass(frozen=True)
class Asked:
    """A document, and what it should be answered: an HTTP status, and whether the pod is admitted."""

    body: bytes
    status: int = 200
    is_allowed: bool | None = True


def documents() -> list[Asked]:
    """300 reviews of all kinds."""
    made = []
    for number in range(_NUM_DOCUMENTS):
        name = f"model-{number % _NUM_CONFIGURATIONS}"
        kind = number % 6
        card = "Tesla-T4" if kind == 0 else "NVIDIA-L4"
        pod = template(None if kind == 3 else name, selector={"nvidia.com/gpu.product": card})
        if kind == 2:
            pod = template(f"{name}-of-nobody", selector={"nvidia.com/gpu.product": card})
        if kind == 4:
            asked = review("RayJob", {"spec": {"rayClusterSpec": {"workerGroupSpecs": [{"template": pod}]}}})
        else:
            asked = review("Pod", pod)
        body = json.dumps(asked).encode()
        is_broken = kind == 5
        made.append(
            Asked(body[: number % len(body)], 400, None) if is_broken else Asked(body, is_allowed=kind != 0)
        )
    return made


async def ask(
    url: str, trusted: ssl.SSLContext, asked: Sequence[Asked], num_reviews: int, num_clients: int
) -> tuple[list[float], int]:
    """Seconds of each review, and the number of wrong answers."""
    seconds: list[float] = []
    num_wrong = 0
    left = iter(range(num_reviews))
    chosen = random.Random(0)

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal num_wrong
        for _ in left:
            document = chosen.choice(asked)
            began = time.perf_counter()
            async with session.post(url, data=document.body) as response:
                content = await response.read()
            seconds.append(time.perf_counter() - began)
            is_right = response.status == document.status
            if is_right and document.is_allowed is not None:
                is_right = json.loads(content)["response"]["allowed"] is document.is_allowed
            num_wrong += not is_right

    connector = aiohttp.TCPConnector(ssl=trusted, limit=num_clients)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(client(session) for _ in range(num_clients)))
    return seconds, num_wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the bench; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reviews", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=50)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return _measured(Path(folder), given.reviews, given.clients)


def _measured(folder: Path, num_reviews: int, num_clients: int) -> int:
    certificate, key = write_certificate(folder)
    configurations = (
        LockedConfiguration(name=f"model-{number}", peaks=(peak("t4", 16, 17), peak("l4", 16, 17)))
        for number in range(_NUM_CONFIGURATIONS)
    )
    write_lock(folder / "team.toml", lock_of(*configurations))
    files = [f"--tls-cert={certificate}", f"--tls-key={key}", f"--lock={folder}"]
    command = [sys.executable, "-m", "autofit.cli", "serve", "--port=0", "--webhook=0", "--deny=does-not-fit"]
    served = Daemon([*command, *files, f"--storage={folder / 'none.journal'}"], log=folder / "serve.log")
    try:
        served.await_log("metrics at http://")
        port = int(served.await_log("admission reviews at https://").split(":")[2].partition("/")[0])
        trusted = ssl.create_default_context(cafile=str(certificate))
        trusted.check_hostname = False
        url, asked = f"https://127.0.0.1:{port}/validate", documents()
        process = psutil.Process(served.process.pid)
        alone, wrong_alone = asyncio.run(ask(url, trusted, asked, max(200, num_reviews // 100), 1))
        resident = []
        seconds: list[float] = []
        num_wrong = wrong_alone
        for _ in range(10):
            took, wrong = asyncio.run(ask(url, trusted, asked, num_reviews // 10, num_clients))
            resident.append(process.memory_info().rss / _MIB)
            seconds.extend(took)
            num_wrong += wrong
    finally:
        served.stop()
    return _report(alone, seconds, num_clients, resident, num_wrong)


def _report(
    alone: list[float], seconds: list[float], num_clients: int, resident: list[float], num_wrong: int
) -> int:
    one = statistics.median(alone)
    cuts = statistics.quantiles(seconds, n=100)
    print(f"one client: median {one * 1000:.2f} ms of {len(alone)} reviews")
    print(
        f"{num_clients} clients: median {cuts[49] * 1000:.1f} ms, 99th percentile {cuts[98] * 1000:.1f} ms, "
        f"slowest {max(seconds) * 1000:.0f} ms of {len(seconds)} reviews"
    )
    print(f"resident memory: {' '.join(f'{size:.1f}' for size in resident)} MiB after each tenth")
    print(f"wrong answers: {num_wrong}")
    is_slow = cuts[98] > max(GATE_SECONDS, GATE_RATIO * one * num_clients)
    return int(is_slow or num_wrong > 0 or resident[-1] > GATE_GROWTH * resident[0])


if __name__ == "__main__":
    sys.exit(main())
