"""Speed limits of a device: FLOP per second by data type, and bytes per second of its memory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofit_workers.replay.plans.device_properties import DeviceProperties
from autofit_workers.replay.time.tables import text_of
from autofit_workers.spec.pythons import read_toml

TF32 = "tf32"  # float32 products on tensor cores, with 10 bits of mantissa


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Speed limits of a device: FLOP per second by data type, memory bandwidth and more.

    Attributes:
        name: name of the device.
        architecture: `sm_XY`, or `cpu` for a processor.
        num_units: number of multiprocessors, or of cores.
        flops: FLOP per second of matrix products by data type, or `tf32`, at the clock rates that the device
            sustains under load, see `sustained`.
        vector_flops: FLOP per second in float32 outside tensor cores, at the same clock rates.
        bandwidth: bytes per second between the device and its memory.
        cache_bytes: size of the last cache before the memory.
        clock: clock rate of the multiprocessors in hertz; 0 if unknown.
        launch_seconds: seconds between two kernels of which the second waits for the first.
        rated: FLOP per second by data type at the highest clock, times `power_share`.
        exponentials: exponentials of a multiprocessor in a clock cycle, over those of its architecture.
    """

    name: str
    architecture: str
    num_units: int
    flops: Mapping[str, float]
    vector_flops: float
    bandwidth: float
    cache_bytes: int
    clock: float = 0.0
    launch_seconds: float = 1.5e-6
    rated: Mapping[str, float] = dataclasses.field(default_factory=dict)
    exponentials: float = 1.0

    @property
    def generation(self) -> str | None:
        """Generation of tensor cores that constants are fitted for by themselves; None for others."""
        # GeForce cards, whose tensor cores are halved, have rows of their own: those of timm's models.
        return None if _GEFORCE in self.name else _GENERATIONS.get(self.architecture)

    def rated_flops(self, dtype: str) -> float:
        """FLOP per second of matrix products by the data sheet and the power limit."""
        return self.rated.get(dtype) or self.product_flops(dtype)

    def product_flops(self, dtype: str) -> float:
        """FLOP per second of matrix products in a data type; outside tensor cores if these lack the type."""
        return self.flops.get(dtype, self.vector_flops)

    def units(self, dtype: str) -> tuple[str, ...]:
        """Names of the units that compute products in a data type, as names of constants have them.

        They are `vector` units, or `tensor` cores. For cards for desktops and inference (sm_86, sm_89,
        sm_120), whose tensor cores do less in a clock cycle, `narrow tensor` comes before `tensor`. The
        generation of the tensor cores comes first, with its fp8 before.
        """
        if dtype not in self.flops or dtype == "float32":
            return ("vector",)
        generation = self.generation
        names = [] if generation is None or dtype == TF32 else [f"{generation} tensor"]
        if names and dtype.startswith(_FLOAT8):
            names = [f"{generation} {_FLOAT8}", *names]
        return (*names, "narrow tensor", "tensor") if self.architecture in _NARROW else (*names, "tensor")


# FLOP of a multiprocessor in one clock, a multiplication and an addition counted as two: in float32 outside
# tensor cores, and in float16 on tensor cores with sums in float32. From the tables of NVIDIA's architecture
# papers (Volta to Blackwell: "peak FP16 tensor TFLOPS with FP32 accumulate" over multiprocessors and boost
# clock).
_VECTOR_FLOPS = {
    "sm_60": 128, "sm_61": 256, "sm_70": 128, "sm_75": 128, "sm_80": 128, "sm_86": 256, "sm_89": 256,
    "sm_90": 256, "sm_100": 256, "sm_120": 256,
}  # fmt: skip
_TENSOR_FLOPS = {
    "sm_70": 1024, "sm_75": 1024, "sm_80": 2048, "sm_86": 1024, "sm_89": 1024, "sm_90": 4096, "sm_100": 8192,
    "sm_120": 1024,
}  # fmt: skip
# GeForce cards of these architectures reach half of that, where sums are kept in float32.
_HALVED_ON_GEFORCE = ("sm_75", "sm_86", "sm_89", "sm_120")
_WITHOUT_TENSOR_CORES = "GTX 16"  # other cards of sm_75 have them
_NARROW = ("sm_86", "sm_89", "sm_120")
_BFLOAT16_SINCE = 80
_FLOAT8_SINCE = 89
_FLOAT8 = "float8"
_GEFORCE = "GeForce"
# Generations of tensor cores that constants are fitted for by themselves. Nothing is fitted on cards of
# sm_89, to which those of sm_120 are the nearest: of the same width, and below their clocks by their power.
_GENERATIONS = {
    "sm_80": "ampere",
    "sm_89": "small blackwell",
    "sm_90": "hopper",
    "sm_100": "blackwell",
    "sm_120": "small blackwell",
}


def sustained(name: str, architecture: str) -> Mapping[str, float]:
    """Shares of its data-sheet speeds that a card sustains under load, from sustained.toml.

    Args:
        name: name of the card in CUDA.
        architecture: `sm_XY`.

    Returns:
        Shares for `vector` and `tensor` arithmetic and for `memory`, and the share to which the tensor cores
        are `cut`.
    """
    table = _sustained()
    of_class = table["low_power"] if name in table["low_power"]["names"] else {}
    shares = {**table["architectures"].get(architecture, {}), **of_class, **table["cards"].get(name, {})}
    return {units: shares.get(units, 1.0) for units in ("vector", "tensor", "memory", "cut")}


def power_share(properties: DeviceProperties) -> float:
    """Share of its highest clock that a card's power limit leaves, over that of the card of the constants.

    Of two cards of one generation, the one with more watts for each multiprocessor runs at the higher
    clock. It is 1 for cards whose power limit sustained.toml does not have.
    """
    power = _sustained()["power"]
    reference = power["references"].get(properties.architecture)
    watts = power["watts"].get(properties.name)
    if reference is None or watts is None:
        return 1.0
    of_unit = watts / properties.num_sms * reference["num_units"] / reference["watts"]
    return float(of_unit ** reference["exponent"] * reference["mhz"] * 1e3 / properties.sm_clock_khz)


@functools.cache
def _sustained() -> dict[str, Any]:
    return read_toml(text_of("sustained.toml"))


def speeds_of(properties: DeviceProperties) -> Speeds:
    """Speed limits of an NVIDIA card, by its clocks, multiprocessors and memory bus.

    Raises:
        KeyError: the architecture is unknown.
    """
    architecture = properties.architecture
    per_clock = properties.num_sms * properties.sm_clock_khz * 1e3
    kept = sustained(properties.name, architecture)
    vector_flops = _VECTOR_FLOPS[architecture] * per_clock * kept["vector"]
    flops = {"float32": vector_flops}
    rated: dict[str, float] = {}
    tensor = None if _WITHOUT_TENSOR_CORES in properties.name else _TENSOR_FLOPS.get(architecture)
    if tensor is not None:
        if _GEFORCE in properties.name and architecture in _HALVED_ON_GEFORCE:
            tensor //= 2
        flops["float16"] = tensor * per_clock * kept["tensor"]
        if int(architecture.removeprefix("sm_")) >= _BFLOAT16_SINCE:
            flops["bfloat16"] = tensor * per_clock * kept["tensor"]
            flops[TF32] = tensor * per_clock * kept["tensor"] / 2
        if int(architecture.removeprefix("sm_")) >= _FLOAT8_SINCE:
            flops |= dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 2 * tensor * per_clock * kept["tensor"])
        share = power_share(properties) * kept["cut"] / kept["tensor"]
        rated = {dtype: each * share for dtype, each in flops.items() if dtype != "float32"}
    return Speeds(
        name=properties.name,
        architecture=architecture,
        num_units=properties.num_sms,
        flops=flops,
        vector_flops=vector_flops,
        bandwidth=properties.memory_clock_khz * 1e3 * 2 * properties.memory_bus_bits / 8 * kept["memory"],
        cache_bytes=properties.l2_bytes,
        clock=properties.sm_clock_khz * 1e3,
        rated=rated,
        exponentials=_sustained()["exponentials"].get(properties.name, 1.0),
    )
