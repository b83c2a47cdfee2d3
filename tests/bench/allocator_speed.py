"""How many events per second the allocator replays: `python tests/bench/allocator_speed.py`.

Wants the project installed, or its root on PYTHONPATH. The stream imitates training steps of a
convolutional network: large activations kept for the backward pass, workspaces and small buffers
that come and go, gradients, the optimizer's temporaries. Machines differ and are shared, so that the
figure to compare is the ratio to a plain Python loop that sums live bytes over the same events in
the same run.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import time
from collections.abc import Callable

from autofit_workers.replay.allocator import AllocatorSettings, Streams, lags, live_peak_bytes, replay

MIB = 1 << 20
NUM_ROUNDS = 15


class Stream:
    """Events under construction."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.sizes: list[int] = []

    def allocate(self, num_bytes: int) -> int:
        self.sizes.append(num_bytes)
        self.events.append(len(self.sizes) - 1)
        return self.events[-1]

    def free(self, *requests: int) -> None:
        self.events.extend(~request for request in requests)

    def pass_by(self, *sizes: int) -> None:
        """Allocates temporaries together, and frees them."""
        self.free(*[self.allocate(size) for size in sizes])


def training_stream(*, num_layers: int = 53, num_steps: int = 4, seed: int = 0) -> Stream:
    """A stream of about 2,500 events per step, the same for the same seed."""
    rng = random.Random(seed)
    stream = Stream()
    weights = [rng.choice((9, 36, 147, 590, 1049, 2359)) * 4096 for _ in range(num_layers)]
    activations = [int(rng.choice((12.25, 24.5, 49, 98, 196)) * MIB) for _ in range(num_layers)]
    for weight in weights:
        for size in (weight, 256, 256, 1024, 1024, 8):
            stream.allocate(size)
    for _ in range(num_steps):
        step(stream, rng, weights, activations)
    return stream


def step(stream: Stream, rng: random.Random, weights: list[int], activations: list[int]) -> None:
    batch = stream.allocate(128 * 3 * 224 * 224 * 4)
    saved = []
    for activation in activations:
        output = stream.allocate(activation)
        stream.pass_by(rng.choice((512, 3 * MIB, 8_519_680)))
        statistics = [stream.allocate(rng.choice((1024, 2048, 4096))) for _ in range(3)]
        stream.pass_by(512, 512, 512, 512)
        saved.append((output, stream.allocate(activation), *statistics))
    gradients = []
    flowing = stream.allocate(activations[-1])
    for weight, activation, kept in zip(weights[::-1], activations[::-1], saved[::-1], strict=True):
        incoming = stream.allocate(activation)
        stream.free(flowing, kept[1])
        stream.pass_by(rng.choice((512, 3 * MIB, 8_519_680)))
        gradients += [stream.allocate(size) for size in (weight, 2048, 2048)]
        flowing = stream.allocate(activation)
        stream.free(incoming, kept[0], *kept[2:])
    stream.free(flowing, batch)
    stream.pass_by(*[size for weight in weights for size in (weight, 1024, 1024, 256, 256)])
    stream.free(*gradients)


def sum_live_bytes(events: list[int], sizes: list[int]) -> int:
    """The baseline: the least that any replay in Python has to do."""
    live = peak = 0
    for event in events:
        if event >= 0:
            live += sizes[event]
            peak = max(peak, live)
        else:
            live -= sizes[~event]
    return peak


def best_seconds(run: Callable[[], object], num_rounds: int) -> float:
    """The shortest of several rounds, which a busy machine disturbs least."""
    seconds = []
    for _ in range(num_rounds):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=NUM_ROUNDS, help=f"of which the shortest counts [{NUM_ROUNDS}]"
    )
    num_rounds = parser.parse_args().rounds
    stream = training_stream()
    events, sizes = stream.events, stream.sizes
    reserved_bytes = replay(events, sizes).peak_reserved_bytes
    of_requests = dict.fromkeys(range(0, len(sizes), 3), 1)
    used = Streams(of_requests=of_requests, uses=dict.fromkeys(of_requests, (0,)))
    runs: dict[str, Callable[[], object]] = {
        "baseline: sum of live bytes": lambda: sum_live_bytes(events, sizes),
        "live_peak_bytes": lambda: live_peak_bytes(events, sizes),
        "replay": lambda: replay(events, sizes),
        "replay, expandable segments": lambda: replay(
            events, sizes, settings=AllocatorSettings(expandable_segments=True)
        ),
        "replay, a third on another stream": lambda: replay(
            events, sizes, streams=Streams(of_requests=of_requests)
        ),
        "the same, used by the first": lambda: replay(events, sizes, streams=used),
        "the same, on a device that lags": lambda: replay(events, sizes, streams=used, clock=lags),
    }
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    print(f"Python {platform.python_version()}, {len(events)} events, {reserved_bytes >> 20} MiB reserved")
    print(f"{'':36}{'ms per 10,000':>15}{'events / s':>14}{'x baseline':>12}")
    baseline_seconds = 0.0
    for name, run in runs.items():
        seconds = best_seconds(run, num_rounds)
        baseline_seconds = baseline_seconds or seconds
        per_event = seconds / len(events)
        print(f"{name:36}{per_event * 1e7:15.2f}{1 / per_event:14,.0f}{seconds / baseline_seconds:12.1f}")


if __name__ == "__main__":
    main()
