"""How long convolutions likely take by each algorithm: the larger of arithmetic and memory traffic.

A roofline orders algorithms; nothing is said in seconds from it. Where trials were measured, their
times count instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workers import conv
from workers.architecture import Architecture
from workers.conv import ConvPolicy, Rewrite
from workers.conv.algorithm import direct_flops, tensor_bytes
from workers.predict.plans.device_properties import DeviceProperties
from workers.work import Convolution

# Multiplications and additions, counted as two, that one multiprocessor does in a clock: of fp32 in its
# plain units, and in tensor cores of TF32 and of 16-bit types (NVIDIA's white papers on Volta, Turing,
# Ampere GA100 and GA102, Ada, Hopper and Blackwell; consumer cards of 8.9 and 12.0 at their halved rate).
_PLAIN = {70: 128, 75: 128, 80: 128, 86: 256, 89: 256, 90: 256, 100: 256, 120: 256}
_TF32 = {80: 1024, 86: 256, 89: 256, 90: 2048, 100: 2048, 120: 256}
_HALF = {70: 1024, 75: 1024, 80: 2048, 86: 512, 89: 512, 90: 4096, 100: 4096, 120: 512}
# Shares of those peaks that kernels reach; assumptions, the same on every card.
_OF_BACKEND, _OF_PRODUCTS, _OF_PLAIN_KERNELS, _OF_TRANSFORMS = 0.5, 0.7, 0.25, 0.25
_LAUNCH_SECONDS = 5e-6
# How much longer a plan takes that needs less memory than cuDNN's first choice; an assumption.
FALLBACK_SLOWDOWN = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a device can do at most, in operations and bytes a second.

    Attributes:
        backend_flops: of the backend's convolutions.
        product_flops: of matrix products, which PyTorch keeps out of TF32.
        plain_flops: outside of tensor cores.
    """

    backend_flops: float
    product_flops: float
    plain_flops: float
    bytes_per_second: float

    @classmethod
    def of(cls, card: DeviceProperties, *, dtype: str, allow_tf32: bool) -> Rates:
        """The rates of a card for tensors of a type."""
        capability = Architecture.of(card.architecture).capability
        clocks = card.num_sms * card.sm_clock_khz * 1e3
        plain = _PLAIN[capability]
        products = plain if dtype not in ("float16", "bfloat16") else _HALF[capability]
        backend = max(products, _TF32.get(capability, 0) if dtype == "float32" and allow_tf32 else 0)
        return cls(
            backend_flops=backend * clocks,
            product_flops=products * clocks,
            plain_flops=plain * clocks,
            bytes_per_second=card.memory_clock_khz * 1e3 * 2 * card.memory_bus_bits / 8,
        )


def relative_cost(calls: Iterable[Convolution], conv_algo: str, rates: Rates) -> float:
    """The time of calls by one algorithm, over that of the backend's own choice; 1 where there are none.

    What a rewrite does not apply to is the backend's.
    """
    algorithm = conv.find(conv_algo)
    default = conv.defaults("cuda")[0]
    total = by_default = 0.0
    for call in calls:
        is_left = isinstance(algorithm, Rewrite) and algorithm.leaves(call) is not None
        total += seconds(call, default if is_left else conv_algo, rates)
        by_default += seconds(call, default, rates)
    return total / by_default if by_default else 1.0


def seconds(call: Convolution, conv_algo: str, rates: Rates) -> float:
    """How long a call likely takes; only to be compared with others of the same rates."""
    algorithm = conv.find(conv_algo)
    if isinstance(algorithm, ConvPolicy):
        rate = rates.backend_flops * _OF_BACKEND
        if not algorithm.enabled:
            rate = rates.plain_flops * _OF_PLAIN_KERNELS
        return _longest(direct_flops(call) / rate, tensor_bytes(call), 1, rates)
    assert isinstance(algorithm, Rewrite)
    part = algorithm.handed_on(call)
    if part is not None:
        rate = rates.backend_flops * _OF_BACKEND
    elif algorithm.name == "fft":
        rate = rates.plain_flops * _OF_TRANSFORMS
    else:
        rate = rates.product_flops * _OF_PRODUCTS
    return _longest(
        algorithm.flops(call) / rate, algorithm.moved_bytes(call), algorithm.num_portions(call), rates
    )


def _longest(arithmetic_seconds: float, moved_bytes: int, num_portions: int, rates: Rates) -> float:
    return max(arithmetic_seconds, moved_bytes / rates.bytes_per_second) + num_portions * _LAUNCH_SECONDS
