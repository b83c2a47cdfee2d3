"""Predicted seconds of kernels on a device, by the constants of their classes."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from autofit_workers.replay.time.attention import attention_bytes
from autofit_workers.replay.time.collectives import Exchange, Network
from autofit_workers.replay.time.constants import ClassConstants, Constants, HostConstants
from autofit_workers.replay.time.kernels import (
    Attention,
    Kernel,
    KernelClass,
    Product,
    kernel_of,
    kernels_of,
)
from autofit_workers.replay.time.products import TILES, product_seconds
from autofit_workers.replay.time.speeds import TF32, Speeds
from autofit_workers.replay.time.tiles import tiles_of
from autofit_workers.spec.work import ELEMENT_BYTES, Convolution, Work

# Share of the last cache in which a kernel finds what was written before it: A40, A100 and H100 save the
# traffic of 0.45, 0.18 and 0.23 of their 6, 40 and 50 MB in additions (vidur's operators).
_KEPT_IN_CACHE = 0.25
_LEAST_TIMED_BYTES = 250_000  # fewest bytes of the measured all-reduces behind residuals.toml
_USUAL_TAPS = 9
_USUAL_CLOCK = 1.5e9  # of a card whose clock is not known


class OperatorCosts(Protocol):
    """Interface of an object that predicts the seconds of operators on a device.

    Attributes:
        is_synchronous: whether the host waits for each operator.
        slowdown: factor by which operators take longer while a collective runs beside them.
    """

    is_synchronous: bool
    slowdown: float

    @property
    def host(self) -> HostConstants:
        """Constants of the host's launch times in seconds."""

    def of(self, work: Work) -> tuple[int, tuple[tuple[KernelClass, float], ...]]:
        """Number of kernels that an operator launches, and the class and seconds of each.

        Several kernels that are alike may be one entry.
        """


class Costs:
    """Predicted seconds of kernels on one card, each computed once.

    Args:
        speeds: speed limits of the device.
        constants: constants of the kernel classes.
        allow_tf32: whether matrix products of float32 may use tensor cores, in TF32.
        conv_tf32: whether float32 convolutions may use tensor cores, in TF32.
        of_pytorch_1: whether kernels are those of PyTorch 1.12 rather than of PyTorch 2.
        of_older_cublas: whether matrix products are by a cuBLAS of 2024, rather than by that of CUDA 13.
        network: links to other devices; None for a device by itself.
        is_repeated: whether a kernel finds its operands in the cache, as far as they fit, because it ran on
            them just before, and ranks come to a collective at the same time: as benches time kernels.

    Attributes:
        network: as given.
        slowdown: factor by which kernels take longer while a collective runs beside them.
    """

    is_synchronous = False

    def __init__(
        self,
        speeds: Speeds,
        constants: Constants,
        *,
        allow_tf32: bool = False,
        conv_tf32: bool = True,
        of_pytorch_1: bool = False,
        of_older_cublas: bool = False,
        network: Network | None = None,
        is_repeated: bool = False,
    ) -> None:
        self.speeds = speeds
        self.constants = constants
        self._allow_tf32 = allow_tf32
        self._conv_tf32 = conv_tf32
        self._is_repeated = is_repeated
        self._older = constants.older_products if of_older_cublas else {}
        self.network = network
        self.slowdown = 1.0
        if network is not None and speeds.num_units > network.within.units:
            self.slowdown = speeds.num_units / (speeds.num_units - network.within.units)
        self._factors = {} if of_pytorch_1 else constants.since_pytorch_2
        self._newer = {} if of_pytorch_1 else constants.newer_classes
        self._classes = {**constants.classes, **self._newer}
        self._kernels: dict[Work, tuple[Kernel, ...]] = {}
        self._seconds: dict[Kernel, float] = {}
        self._convolutions: dict[Convolution, float] = {}

    @property
    def host(self) -> HostConstants:
        """Constants of the host's launch times in seconds."""
        return self.constants.host

    def of(self, work: Work) -> tuple[int, tuple[tuple[KernelClass, float], ...]]:
        """Number of kernels that an operator launches, and the class and seconds of each.

        Several kernels that are alike may be one entry.
        """
        kernels = self.kernels(work)
        launches = sum(kernel.num_launches for kernel in kernels)
        return launches, tuple((kernel.kind, self.seconds(kernel)) for kernel in kernels)

    def kernels(self, work: Work) -> tuple[Kernel, ...]:
        """GPU kernels that an operator runs, computed once."""
        if work not in self._kernels:
            kernels = kernels_of(work, allow_tf32=self._allow_tf32, conv_tf32=self._conv_tf32)
            self._kernels[work] = kernels if work.group is None else tuple(map(self._with_rows, kernels))
        return self._kernels[work]

    def _with_rows(self, kernel: Kernel) -> Kernel:
        """Kernel of a collective, moved to class `ALL_REDUCE` or `GATHER` if real ones like it were measured.

        They have to be over the links of this network within a node, and of at least 250 kB.
        """
        network, group = self.network, kernel.group
        if network is None or group is None or kernel.moved_bytes < _LEAST_TIMED_BYTES:
            return kernel
        if not network.has_rows(Exchange(kernel.variant), group):
            return kernel
        is_reduced = kernel.variant == Exchange.ALL_REDUCE
        return dataclasses.replace(kernel, kind=KernelClass.ALL_REDUCE if is_reduced else KernelClass.GATHER)

    def seconds(self, kernel: Kernel) -> float:
        """Seconds of a kernel on the device when nothing runs beside it."""
        if kernel not in self._seconds:
            self._seconds[kernel] = self._worked_out(kernel)
        return self._seconds[kernel]

    def convolution_seconds(self, call: Convolution) -> float:
        """Seconds of one convolution pass with cuDNN's default plan when nothing runs beside it."""
        if call not in self._convolutions:
            self._convolutions[call] = self.seconds(kernel_of(call, allow_tf32=self._conv_tf32))
        return self._convolutions[call]

    def matmul_flops(self, dtype: str) -> float:
        """Peak FLOP per second of the device in matrix products of a type; of TF32 for float32 if allowed."""
        return self.speeds.product_flops(TF32 if dtype == "float32" and self._allow_tf32 else dtype)

    def _worked_out(self, kernel: Kernel) -> float:
        """Seconds of a kernel: arithmetic, memory traffic, launches and, for a collective, the links."""
        speeds = self.speeds
        if kernel.group is not None:
            across = 0.0
            if self.network is not None:
                across = self.network.seconds(
                    Exchange(kernel.variant),
                    kernel.moved_bytes,
                    kernel.group,
                    is_repeated=self._is_repeated,
                )
            return across + speeds.launch_seconds
        name = self._class_name(kernel)
        known = self._classes[name]
        launch = speeds.launch_seconds if known.launch is None else known.launch
        started = kernel.num_launches * launch
        moved = max(self._moved(kernel, known), known.least_seconds)
        if known.elements_per_clock and speeds.clock:
            elements = kernel.moved_bytes / ELEMENT_BYTES.get(kernel.dtype, 4)
            moved = max(moved, elements / (known.elements_per_clock * speeds.num_units * speeds.clock))
        copied = kernel.copied_bytes / (speeds.bandwidth * known.copied) if known.copied else 0.0
        arithmetic, overlapped = self._arithmetic(kernel, known)
        longer, shorter = max(moved, arithmetic), min(moved, arithmetic)
        at_work = longer + (1 - overlapped) * shorter + copied
        # The factors are of classes that were fitted on an earlier PyTorch; those of rated speeds were not.
        factor = 1.0 if known.is_rated or name in self._newer else self._factors.get(kernel.kind, 1.0)
        return at_work * factor + started

    def _moved(self, kernel: Kernel, known: ClassConstants) -> float:
        """Seconds of a kernel's traffic with the memory, and with the cache for what is there."""
        speeds = self.speeds
        num_bytes = kernel.moved_bytes
        if kernel.attention is not None and (known.prompt or known.decode):
            num_bytes = attention_bytes(kernel.attention, ELEMENT_BYTES.get(kernel.dtype, 4))
        bandwidth = speeds.bandwidth * known.bandwidth
        if not known.is_rated:
            in_cache = min(known.cached * num_bytes, _KEPT_IN_CACHE * speeds.cache_bytes)
            return (num_bytes - in_cache) / bandwidth
        room = known.kept * speeds.cache_bytes
        # All is found up to the room for it, and nothing where twice as much goes through.
        found = min(max(2 - num_bytes / room, 0.0), 1.0) if self._is_repeated and room else 0.0
        from_cache = max(bandwidth, known.kept_per_clock * speeds.num_units * speeds.clock)
        return (1 - found) * (num_bytes / bandwidth + known.fill_seconds) + found * num_bytes / from_cache

    def _arithmetic(self, kernel: Kernel, known: ClassConstants) -> tuple[float, float]:
        """Seconds of a kernel's matrix product, and how far memory traffic overlaps with it.

        The second value is the share of the shorter of both times that is hidden: 1 if all of it is. A kernel
        without a matrix product takes 0 seconds.

        Args:
            kernel: the kernel.
            known: constants of its class.
        """
        if kernel.product is None:
            return 0.0, 1.0
        if kernel.attention is not None and (known.prompt or known.decode):
            return self._attention(kernel, kernel.attention, known)
        product = kernel.product
        speeds = self.speeds
        flops = (speeds.rated_flops if known.is_rated else speeds.product_flops)(kernel.dtype)
        if known.vector is not None:
            is_of_weight = product.m < product.k
            taps = product.n if is_of_weight else product.k
            share = known.vector * (_USUAL_TAPS / taps) ** known.taps_power
            return product.flops / (self.speeds.vector_flops * share), 1.0
        if known.grouped is not None:
            width = min(product.m, product.n)
            share = known.grouped.share(
                width,
                product.batch,
                num_taps=kernel.num_taps,
                is_strided=kernel.is_strided,
                is_dilated=kernel.is_dilated,
            )
            return product.flops / (self.speeds.product_flops(kernel.dtype) * share), 1.0
        return self._product(kernel, product, known, flops)

    def _attention(self, kernel: Kernel, attention: Attention, known: ClassConstants) -> tuple[float, float]:
        """Seconds of fused attention's arithmetic, and how far memory traffic overlaps with it."""
        speeds = self.speeds
        if known.prompt is not None:
            seconds = known.prompt.seconds(
                attention,
                flops=speeds.rated_flops(kernel.dtype),
                num_units=speeds.num_units,
                clock=speeds.clock or _USUAL_CLOCK,
                exponentials=speeds.exponentials,
            )
            return seconds, known.prompt.overlapped
        assert known.decode is not None
        return known.decode.seconds(attention, num_units=speeds.num_units), known.decode.overlapped

    def _product(
        self, kernel: Kernel, product: Product, known: ClassConstants, flops: float
    ) -> tuple[float, float]:
        """Seconds of a matrix product by tiles, and how far memory traffic overlaps with it."""
        if known.product is None:
            return 0.0, 1.0
        speeds, tiles = self.speeds, TILES
        if kernel.kind is KernelClass.MATMUL:
            tiles = tiles_of(kernel.dtype, speeds.architecture, is_batched=product.batch > 1)
        seconds = product_seconds(
            product,
            flops=flops,
            num_units=speeds.num_units,
            bandwidth=speeds.bandwidth,
            constants=known.product,
            tiles=tiles,
        )
        seconds *= self._older.get(self._class_name(kernel), 1.0)
        return seconds, known.product.overlapped

    def _class_name(self, kernel: Kernel) -> str:
        """Name of the most specific class of kernels that there is for a kernel.

        Names are tried in this order: kind with data type or units (`tensor`, `vector`) and variant, with
        variant, with data type, with units, and kind alone.
        """
        classes = self.constants.classes
        units = self.speeds.units(kernel.dtype)
        exact = [f"{of} {kernel.variant}" for of in (kernel.dtype, *units)] if kernel.variant else []
        for of in (*exact, kernel.variant, kernel.dtype, *units):
            name = f"{kernel.kind} {of}"
            if name in classes:
                return name
        return str(kernel.kind)
