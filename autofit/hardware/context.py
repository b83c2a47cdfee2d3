"""Memory of a process on a card outside PyTorch's allocator: the CUDA context and loaded kernels.

No table is published. Observed sizes are in `data/contexts.toml`, and nearly all of them follow one line:
CUDA sets memory aside for every thread that can be resident on the card (its stack and more), so a
context is a small part that is the same everywhere and a part that grows with

    threads = multiprocessors × resident threads of one

from 36 SMs with 92 to 161 MiB to 148 SMs with 712 MiB, over seven years of architectures.

For AMD's cards there are too few observations for a line, and they follow none: from 202 MiB with the context
alone to 952, on cards of 104 to 256 compute units. Their interval therefore covers all observations, with a
high end above the largest. `_INTERVALS` has the rule for each vendor.
"""

from __future__ import annotations

import functools
import importlib.resources
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autofit.hardware.chips import TYPICAL_CARDS, properties_for
from autofit.hardware.gpus import find_gpu
from autofit_workers.replay.plans.device_properties import ARCHITECTURE_LIMITS, DeviceProperties
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.pythons import read_toml
from autofit_workers.spec.vendors import Vendor

Loading = Literal["lazy", "eager"]

_KIB, _MIB = 1024, 1024**2

# Least squares over the observed cards, each by its median, which
# tests/autofit/hardware/test_context.py fits again. With each card judged by the line of the others, 47 of 48
# observations lie within the interval.
_SAME_EVERYWHERE_MIB = 46.75
_KIB_PER_THREAD = 2.1797
_BELOW_MIB, _ABOVE_MIB = 110, 120

# Memory that is added where all kernels are loaded at the start, not each at its first use: from 362 MiB
# (pytorch/pytorch#86509, on an unnamed card) to 1171 MiB (an RTX 3090 with CUDA 11.0); the others lie at 609
# to 683 MiB.
_EAGER_MIB = (360, 680, 1180)

# For cards without a line, the high end is this many times the largest observation. The factor is an
# assumption, as is that for cards without real runs in `data/residuals.toml`.
_BEYOND_SEEN = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Memory that a real process was seen to hold outside PyTorch's allocator, from `data/contexts.toml`.

    Attributes:
        card: key of the card, or its architecture and number of multiprocessors.
        num_sms: number of the card's multiprocessors.
        num_bytes: the memory outside the allocator.
        loading: how the process loaded kernels: `lazy` or `eager`.
        left_out: reason why the observation does not count; empty if it does.
    """

    card: str
    architecture: str
    num_sms: int
    num_bytes: int
    loading: Loading
    what: str
    source: str
    left_out: str = ""

    @property
    def num_threads(self) -> int:
        """Number of threads that can be resident on the card at the same time."""
        return self.num_sms * ARCHITECTURE_LIMITS[self.architecture].max_threads_per_sm


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInterval:
    """Memory of a process outside PyTorch's allocator: low, likely and high bytes, with 95 % confidence.

    Attributes:
        basis: what the sizes are based on, in words.
    """

    low_bytes: int
    likely_bytes: int
    high_bytes: int
    basis: str


@functools.cache
def observations(vendor: Vendor) -> tuple[Observation, ...]:
    """Memory that real processes held outside PyTorch's allocator, on cards of a vendor, by architecture."""
    text = importlib.resources.files("autofit").joinpath("data/contexts.toml").read_text(encoding="utf-8")
    return tuple(map(_observation, read_toml(text)[vendor]))


def _observation(entry: Mapping[str, Any]) -> Observation:
    architecture, num_sms = _card(entry["card"])
    return Observation(
        card=entry["card"],
        architecture=architecture,
        num_sms=num_sms,
        num_bytes=entry["mib"] * _MIB,
        loading=entry["loading"],
        what=entry["what"],
        source=entry["source"],
        left_out=entry.get("left_out", ""),
    )


def _card(name: str) -> tuple[str, int]:
    architecture, slash, num_sms = name.partition("/")
    if slash:
        return architecture, int(num_sms)
    gpu = find_gpu(name)
    return gpu.architecture, gpu.num_sms


def context_interval(
    architecture: str, name: str | None = None, *, loading: Loading = "lazy"
) -> ContextInterval:
    """Memory that a PyTorch process holds on a card outside the allocator: low, likely and high bytes.

    Args:
        architecture: architecture of the card. If the catalogue has no NVIDIA card of it, the largest known
            card is taken. If no process was observed on it, the interval is twice as wide.
        name: key or CUDA name of the card, if known; else the architecture's typical card
            is taken.
        loading: how CUDA loads kernels into memory: `lazy`, as all supported releases of PyTorch do, or
            `eager`, if `CUDA_MODULE_LOADING=EAGER` is set.
    """
    return _INTERVALS[Architecture.of(architecture).vendor](architecture, name, loading)


def _by_threads(architecture: str, name: str | None, loading: Loading) -> ContextInterval:
    """Memory outside the allocator on a card, by a formula in the number of threads that it can hold.

    CUDA reserves stacks for all threads that can be resident at the same time.
    """
    known = counted(Architecture.of(architecture).vendor)
    if architecture in ARCHITECTURE_LIMITS:
        properties = properties_for(architecture, name)
        num_seen = sum(seen.architecture == architecture for seen in known)
        evidence = (
            f"{num_seen} processes seen on {architecture}, {len(known)} in all"
            if num_seen
            else f"none seen on {architecture}: as {len(known)} on later cards, twice as uncertain"
        )
    else:
        properties, num_seen = max(map(properties_for, TYPICAL_CARDS), key=_num_threads), 0
        evidence = f"none seen on {architecture}: taken from the largest known card, twice as uncertain"
    spread = 1 if num_seen else 2
    below, above = spread * _BELOW_MIB, spread * _ABOVE_MIB
    likely = _SAME_EVERYWHERE_MIB + _KIB_PER_THREAD * _num_threads(properties) / _KIB
    more_low, more_likely, more_high = (0, 0, 0) if loading == "lazy" else _EAGER_MIB
    low, likely, high = likely - below + more_low, likely + more_likely, likely + above + more_high
    return ContextInterval(
        low_bytes=max(0, round(low)) * _MIB,
        likely_bytes=round(likely) * _MIB,
        high_bytes=round(high) * _MIB,
        basis=evidence,
    )


def _as_seen(architecture: str, _name: str | None, _loading: Loading) -> ContextInterval:
    """Memory outside the allocator on a card, from all observations on cards of its vendor.

    The low end is the least that was observed, the likely value the median, the high end a multiple of the
    most.
    """
    vendor = Architecture.of(architecture).vendor
    sizes = [seen.num_bytes for seen in counted(vendor)]
    return ContextInterval(
        low_bytes=min(sizes),
        likely_bytes=round(statistics.median(sizes) / _MIB) * _MIB,
        high_bytes=round(_BEYOND_SEEN * max(sizes) / _MIB) * _MIB,
        basis=f"{len(sizes)} processes seen on {vendor}'s cards; {_BEYOND_SEEN} times the most that any held",
    )


def counted(vendor: Vendor, loading: Loading = "lazy") -> tuple[Observation, ...]:
    """Observations on a vendor's cards to compute with: those with the given kernel loading, not excluded."""
    return tuple(seen for seen in observations(vendor) if seen.loading == loading and not seen.left_out)


def _num_threads(properties: DeviceProperties) -> int:
    return properties.num_sms * properties.limits.max_threads_per_sm


_INTERVALS: dict[Vendor, Callable[[str, str | None, Loading], ContextInterval]] = {
    Vendor.NVIDIA: _by_threads,
    Vendor.AMD: _as_seen,
}
