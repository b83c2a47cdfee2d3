"""Time of a step on the device, by kernel class with roofline limits, and by module."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autofit.explain.profile import Profile
from autofit.explain.timing import Roofs, TimedCall, TimedKernel, Timing
from autofit_workers.replay.time.kernels import KernelClass
from autofit_workers.spec.work import ELEMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTime:
    """Time and work of all kernels of one class in a step, with the card's limits for them.

    Attributes:
        kind: class of the kernels, such as convolution.
        dtype: data type of their matrix products, or `tf32`; empty for kernels without products.
        share: share of the step's time that the kernels take, from 0 to 1.
        flops: operations of products; without products one operation for each element that they move.
        moved_bytes: bytes moved between the device and its memory.
        roof_flops: highest operations per second of the card in such kernels.
        bandwidth: highest bytes per second of its memory.
    """

    kind: KernelClass
    dtype: str
    share: float
    flops: float
    moved_bytes: float
    roof_flops: float
    bandwidth: float

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.kind.value.replace("_", " "), self.dtype) if part)

    @property
    def intensity(self) -> float:
        """Arithmetic intensity of the kernels: operations for each byte that they move."""
        return self.flops / self.moved_bytes

    @property
    def most_flops(self) -> float:
        """Highest operations a second that the roofline allows, by arithmetic and memory bandwidth."""
        return min(self.roof_flops, self.intensity * self.bandwidth)

    @property
    def is_bound_by_memory(self) -> bool:
        return self.intensity * self.bandwidth < self.roof_flops

    def attained_flops(self, timing: Timing) -> float | None:
        """Operations a second that the kernels reach; None if seconds are not predicted.

        Args:
            timing: predicted times of the step.
        """
        seconds = timing.seconds_of(self.share)
        return None if not seconds else self.flops / seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTime:
    """Time of a module's own operators, without those of its submodules.

    Attributes:
        path: path of the module in the model; empty for the model itself and for operators of no module.
        module_type: name of its class; empty if the trace does not list it.
        own_share: share of the step's time that its own operators take, from 0 to 1.
        kind: class of kernels that takes most of that share; empty if there are none.
    """

    path: str
    module_type: str = ""
    own_share: float = 0.0
    kind: str = ""


def class_times(timing: Timing) -> tuple[ClassTime, ...]:
    """Time of each class of kernels, the largest share of the step first."""
    groups: dict[tuple[KernelClass, str], list[tuple[TimedCall, TimedKernel]]] = {}
    for call in timing.calls:
        for kernel in call.kernels:
            if kernel.moved_bytes:
                key = kernel.kind, kernel.dtype if kernel.flops else ""
                groups.setdefault(key, []).append((call, kernel))
    found = [_class_time(key, group, timing.roofs) for key, group in groups.items()]
    return tuple(sorted(found, key=lambda each: (-each.share, each.name)))


def _class_time(
    key: tuple[KernelClass, str], group: Sequence[tuple[TimedCall, TimedKernel]], roofs: Roofs
) -> ClassTime:
    """Time and work of one class of kernels, from the kernels of the class."""
    kind, dtype = key
    return ClassTime(
        kind=kind,
        dtype=dtype,
        share=sum(call.times * kernel.share for call, kernel in group),
        flops=sum(call.times * _operations(kernel) for call, kernel in group),
        moved_bytes=sum(call.times * kernel.moved_bytes for call, kernel in group),
        roof_flops=roofs.of(dtype) if dtype else roofs.vector_flops,
        bandwidth=roofs.bandwidth,
    )


def _operations(kernel: TimedKernel) -> float:
    return kernel.flops or kernel.moved_bytes / ELEMENT_BYTES.get(kernel.dtype, 4)


def module_times(profile: Profile) -> tuple[ModuleTime, ...]:
    """Times of the modules that run operators, and of their parents, each parent before its children.

    Empty if the profile has no predicted times.
    """
    if profile.timing is None:
        return ()
    own: collections.Counter[str] = collections.Counter()
    kinds: dict[str, collections.Counter[str]] = {}
    for call in profile.timing.calls:
        own[call.module] += call.share  # type: ignore[assignment]
        for kernel in call.kernels:
            of_module = kinds.setdefault(call.module, collections.Counter())
            of_module[kernel.kind.value] += call.times * kernel.share  # type: ignore[assignment]
    types = {layer.name: layer.module_type for layer in profile.trace.layers}
    return tuple(
        ModuleTime(
            path=path,
            module_type=types.get(path, ""),
            own_share=own[path],
            kind=max(kinds[path], key=kinds[path].__getitem__).replace("_", " ") if path in kinds else "",
        )
        for path in dict.fromkeys(each for module in ("", *own) for each in _around(module))
    )


def _around(module: str) -> Iterator[str]:
    """Paths of a module's parents, outermost first, and of the module itself: `a`, `a.b` for `a.b`."""
    parts = module.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))
