"""How long operators take on a processor: sums of what they demand, by the constants of their classes.

A processor does one operator after the other, each by all of its threads:

    seconds = calls · call_seconds + products / flops + (moved + weights) / bandwidth + operations / flops
              + fresh · page_seconds

with a factor of the class before each but the last. `cpu_speeds.py` measures the speeds of a
machine in two seconds; cpu.toml has the factors.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autofit_workers.replay.time.constants import HostConstants
from autofit_workers.replay.time.kernels import IMAGE_CHANNELS, Kernel, KernelClass, Product, kernels_of
from autofit_workers.replay.time.speeds import Speeds
from autofit_workers.spec.pythons import read_toml
from autofit_workers.spec.work import ELEMENT_BYTES, Convolution, Operand, Work

CPU = "cpu"  # what a processor has for an architecture
# glibc maps each block from so many bytes on, and its pages are new (DEFAULT_MMAP_THRESHOLD_MAX of malloc.c).
MAPPED_FROM_BYTES = 32 * 2**20
_CHANNELS_OF_VECTOR = 16  # that oneDNN's blocked layouts round up to, where there is more than an image's few
_RANDOM = ("bernoulli_", "native_dropout", "uniform_", "normal_", "rand_like", "randn_like", "rand", "randn")
_TRANSCENDENTAL = (
    "gelu", "gelu_backward", "tanh", "silu", "silu_", "sigmoid", "exp", "log", "erf", "sin", "cos",
    "softplus", "mish", "log_sigmoid_forward",
)  # fmt: skip
_COPIES = ("select_backward", "slice_backward")
_ELEMENTWISE = ("hardtanh", "hardtanh_", "hardtanh_backward")
_VARIED = (
    KernelClass.POOL, KernelClass.BATCH_NORM, KernelClass.LAYER_NORM, KernelClass.SOFTMAX, KernelClass.INDEX,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSpeeds(Speeds):
    """The speeds of a processor.

    Attributes:
        call_seconds: that PyTorch takes for an operator with next to nothing to do.
        page_seconds: for each byte of a block whose pages are new.
    """

    call_seconds: float
    page_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What an operator asks of a processor.

    Attributes:
        kind: its class.
        name: of the constants: the class, a variant, the data type.
        calls: times that PyTorch or oneDNN begins something.
        dtype: of its products.
        flops: of its products.
        moved_bytes: read and written, …
        weight_bytes: … and those of weights, or of a product's result, apart.
        num_elements: that it goes through.
        fresh_bytes: that it writes to new pages.
    """

    kind: KernelClass
    name: str
    calls: int
    dtype: str
    flops: float = 0.0
    moved_bytes: int = 0
    weight_bytes: int = 0
    num_elements: int = 0
    fresh_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuConstants:
    """The factors of a class.

    Attributes:
        calls, products, moved, weights: see the module.
        operations: for each element, counted as multiplications and additions of products in float32.
    """

    calls: float
    products: float = 0.0
    moved: float = 0.0
    weights: float = 0.0
    operations: float = 0.0


class CpuCosts:
    """Seconds of operators on one processor.

    Args:
        speeds: of the processor.
        classes: the factors; those of this version unless given.
        mapped_from_bytes: blocks from so many bytes on are new memory.

    Attributes:
        host: what PyTorch takes beside operators.
        digest: names the constants.
    """

    is_synchronous = True
    slowdown = 1.0

    def __init__(
        self,
        speeds: CpuSpeeds,
        classes: Mapping[str, CpuConstants] | None = None,
        *,
        mapped_from_bytes: int = MAPPED_FROM_BYTES,
    ) -> None:
        self.speeds = speeds
        known, self.digest = cpu_constants()
        self._classes = known if classes is None else classes
        self._mapped_from_bytes = mapped_from_bytes
        beside = _BESIDE_CALL * speeds.call_seconds
        self.host = HostConstants(call=beside, backward_call=beside, view=beside, launch=0.0, step=0.0)

    def of(self, work: Work) -> tuple[int, tuple[tuple[KernelClass, float], ...]]:
        """The kernels that are launched, which are none, and seconds by class."""
        demand = demand_of(work, self._mapped_from_bytes)
        return 0, ((demand.kind, self.seconds(demand)),)

    def seconds(self, demand: Demand) -> float:
        """What an operator takes."""
        speeds, known = self.speeds, self._classes[self.class_of(demand)]
        return (
            known.calls * demand.calls * speeds.call_seconds
            + known.products * demand.flops / speeds.product_flops(demand.dtype)
            + (known.moved * demand.moved_bytes + known.weights * demand.weight_bytes) / speeds.bandwidth
            + known.operations * demand.num_elements / speeds.vector_flops
            + demand.fresh_bytes * speeds.page_seconds
        )

    def class_of(self, demand: Demand) -> str:
        """The name of the most exact constants there are: of variant and data type, or of less."""
        kind, *more = demand.name.split()
        names = (demand.name, f"{kind} {more[-1]}", f"{kind} float32", f"{KernelClass.ELEMENTWISE} float32")
        return next(name for name in names if name in self._classes)


_BESIDE_CALL = 0.8  # of the time of a call: what Python and autograd take for each operator, and for a view


def demand_of(work: Work, mapped_from_bytes: int = MAPPED_FROM_BYTES) -> Demand:
    """What an operator asks of a processor."""
    if work.convolutions:
        return _of_convolutions(work, mapped_from_bytes)
    name = work.operator.removeprefix("aten.").partition(".")[0]
    kernel = kernels_of(work, conv_tf32=False)[0]
    kind, variant = _kind(name, kernel)
    num_elements = max((each.num_elements for each in (*work.inputs, *work.outputs[:1])), default=0)
    moved_bytes, weight_bytes, calls = kernel.moved_bytes, 0, 1
    if kind is KernelClass.MATMUL:
        moved_bytes = sum(each.num_bytes for each in work.inputs[-2:])
        weight_bytes = sum(each.num_bytes for each in work.outputs)
    elif kind is KernelClass.RECURRENT:
        calls = work.inputs[0].shape[0]  # of each time step
    flops = kernel.product.flops if kernel.product else 0.0
    if kind is KernelClass.ATTENTION and kernel.product:
        calls, causal_share = _blocks_of_attention(kernel.product)
        flops *= 2 * causal_share if "causal" in work.flags else 1  # half of it is counted
    return Demand(
        kind=kind,
        name=" ".join(part for part in (kind, variant, kernel.dtype) if part),
        calls=calls,
        dtype=kernel.dtype,
        flops=flops,
        moved_bytes=moved_bytes,
        weight_bytes=weight_bytes,
        num_elements=num_elements,
        fresh_bytes=0 if name.endswith("_") else _fresh_bytes(work.outputs, mapped_from_bytes),
    )


def _kind(name: str, kernel: Kernel) -> tuple[KernelClass, str]:
    """The class of an operator and its variant on a processor."""
    kind = kernel.kind
    if name in _COPIES:
        return KernelClass.COPY, ""
    if name.startswith("nll_loss"):
        kind = KernelClass.INDEX
    elif name in _ELEMENTWISE:
        kind = KernelClass.ELEMENTWISE
    elif name in _RANDOM:
        return KernelClass.ELEMENTWISE, "random"
    elif name in _TRANSCENDENTAL:
        return KernelClass.ELEMENTWISE, "transcendental"
    if kind in _VARIED or kind in (KernelClass.ATTENTION, KernelClass.RECURRENT):
        return kind, "backward" if "backward" in name else ""
    return kind, kernel.variant if kind is KernelClass.MATMUL else ""


def _blocks_of_attention(product: Product) -> tuple[int, float]:
    """Blocks of queries that fused attention goes through, and the share of keys that they see if causal.

    From `cpu_flash_attention` of FlashAttentionKernel.cpp: a block sees the keys up to its own last one.
    """
    queries = product.m
    block = next(size for least, size in _ATTENTION_BLOCKS if queries >= least)
    starts = range(0, queries, block)
    seen = sum((min(start + block, queries) - start) * min(start + block, queries) for start in starts)
    return len(starts) * product.batch, seen / queries**2


_ATTENTION_BLOCKS = ((768, 256), (192, 64), (0, 32))  # from so many queries on, and so many in a block


def _of_convolutions(work: Work, mapped_from_bytes: int) -> Demand:
    """One pass, or both of a backward pass, as oneDNN makes them: whole vectors of channels."""
    first = work.convolutions[0]
    kind = kernels_of(work, conv_tf32=False)[0].kind
    is_pointwise = kind is KernelClass.CONVOLUTION and math.prod(first.weight_shape[2:]) == 1
    parts = (
        kind,
        "backward" if "backward" in work.operator else "",
        "pointwise" if is_pointwise else "",
        first.dtype,
    )
    element_bytes = ELEMENT_BYTES.get(first.dtype, 4)
    images = math.prod(first.input_shape) + math.prod(first.output_shape)
    passes = len(work.convolutions)
    return Demand(
        kind=kind,
        name=" ".join(part for part in parts if part),
        calls=1,
        dtype=first.dtype,
        flops=sum(_flops(each) for each in work.convolutions),
        moved_bytes=passes * element_bytes * images,
        weight_bytes=passes * element_bytes * math.prod(first.weight_shape),
        fresh_bytes=_fresh_bytes(work.outputs, mapped_from_bytes),
    )


def _flops(call: Convolution) -> float:
    filters, inputs = call.weight_shape[0] // call.groups, call.weight_shape[1]
    taps, positions = math.prod(call.weight_shape[2:]), math.prod(call.output_shape[2:])
    if call.groups == 1:
        filters = _rounded(filters)
        inputs = _rounded(inputs) if inputs > IMAGE_CHANNELS else inputs
    return 2.0 * call.output_shape[0] * positions * filters * inputs * taps * call.groups


def _rounded(channels: int) -> int:
    return -(-channels // _CHANNELS_OF_VECTOR) * _CHANNELS_OF_VECTOR


def _fresh_bytes(outputs: tuple[Operand, ...], mapped_from_bytes: int) -> int:
    return sum(each.num_bytes for each in outputs if each.num_bytes >= mapped_from_bytes)


@functools.cache
def cpu_constants() -> tuple[Mapping[str, CpuConstants], str]:
    """The factors of this version by class, and what names them."""
    text = Path(__file__).with_name("cpu.toml").read_text(encoding="utf-8")
    classes = read_toml(text)["classes"]
    found = {name: CpuConstants(**values) for name, values in classes.items()}
    return found, hashlib.sha256(text.encode()).hexdigest()
