"""Budget of a device: the memory that is left for PyTorch's allocator.

    device total ─ CUDA context ─ other processes ─ margin = usable

Only the total is known before a process runs on the card; assumptions are stated in words.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cache

from autofit.errors import BudgetError
from autofit.hardware.context import ContextInterval, context_interval
from autofit.hardware.gpus import Gpu
from autofit.hardware.nccl import communicators_interval
from autofit.units import format_bytes
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.vendors import Facts
from autofit_workers.spec.versions import wheel_for

DEFAULT_MARGIN = Decimal("0.03")
DEFAULT_ARCHITECTURE = "sm_80"
_SMALLEST_MEANT_BYTES = 1024**2  # no device has less memory: the user left out the unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Memory of a device, divided into what PyTorch's allocator may reserve and what it may not.

    Attributes:
        device_total_bytes: on a GPU, the total that CUDA reports; on the CPU, the memory that the process may
            use.
        context_bytes: most memory that the process holds outside PyTorch's allocator: the CUDA context and,
            for one of several ranks, NCCL's memory.
        other_bytes: memory that other processes hold, or that is reserved for them.
        margin_bytes: memory that is kept free for needs that predictions do not know.
        assumptions: phrases on sizes that were assumed.
        context: low, likely and high value of the memory outside the allocator; the high one is
            `context_bytes`. None on the CPU.
    """

    device_total_bytes: int
    context_bytes: int
    other_bytes: int
    margin_bytes: int
    assumptions: tuple[str, ...] = ()
    context: ContextInterval | None = None

    @property
    def usable_bytes(self) -> int:
        """Bytes that PyTorch's allocator may reserve."""
        return self.device_total_bytes - self.context_bytes - self.other_bytes - self.margin_bytes

    @property
    def most_usable_bytes(self) -> int:
        """Bytes that the allocator could reserve if as little as possible is held outside it.

        A configuration that needs less than this, and more than `usable_bytes`, may fit: what NCCL takes is
        known within 1.5 GiB only.
        """
        spared = 0 if self.context is None else self.context_bytes - self.context.low_bytes
        return self.usable_bytes + spared


def make_budget(
    device_total_bytes: int,
    *,
    architecture: str | None = None,
    card: str | None = None,
    margin: Decimal | Fraction | float = DEFAULT_MARGIN,
    reserve_bytes: int = 0,
    kind: str = GPU_KIND,
    mesh: Sequence[int] = (),
    num_ranks: int | None = None,
) -> Budget:
    """Budget of a device: its memory less context, memory of other processes, and margin.

    Args:
        device_total_bytes: total memory that CUDA reports; on the CPU, the memory that the process may use.
        architecture: architecture of the card, on which the size of the CUDA context depends; None assumes
            `sm_80`.
        card: key or CUDA name of the card, with which the context is known more exactly; None if unknown.
        margin: share of the device's total, from 0 up to but not including 1. A float is taken as the decimal
            number that it prints as.
        reserve_bytes: memory reserved for other processes on the device.
        kind: `cuda`, or `cpu`, which has no context.
        mesh: number of ranks in each dimension of the processes that train together, one on each card; empty
            for one process. If there are any, NCCL's memory is subtracted.
        num_ranks: number of all ranks; None for the product of `mesh`.

    Raises:
        BudgetError: no memory is left for the allocator.
        ValueError: the margin is below 0, or 1 or more.
    """
    share = Fraction(str(margin))
    if not 0 <= share < 1:
        raise ValueError(f"margin must be at least 0 and less than 1, got {margin}")
    context, assumptions = (
        (None, ()) if kind == "cpu" else assumed_context(architecture, card, mesh, num_ranks)
    )
    budget = Budget(
        device_total_bytes=device_total_bytes,
        context_bytes=0 if context is None else context.high_bytes,
        other_bytes=reserve_bytes,
        margin_bytes=math.ceil(share * device_total_bytes),
        assumptions=assumptions,
        context=context,
    )
    if budget.usable_bytes <= 0:
        if device_total_bytes < _SMALLEST_MEANT_BYTES:
            unit = "G" if device_total_bytes < 1024 else "M"
            raise BudgetError(
                f"--gpu-mem {device_total_bytes} is {device_total_bytes} bytes: did you mean "
                f"{device_total_bytes}{unit}?"
            )
        outside = outside_allocator(architecture, exchanges=bool(mesh))
        raise BudgetError(
            f"nothing is left of {format_bytes(device_total_bytes)} for PyTorch: "
            f"{format_bytes(budget.context_bytes)} for the {outside}, {format_bytes(reserve_bytes)} "
            f"for other processes, {format_bytes(budget.margin_bytes)} for the margin. Give a larger "
            "--gpu-mem, or a smaller --reserve or --margin"
        )
    return budget


def least_total_bytes(needed_bytes: int, margin: Decimal | Fraction | float) -> int:
    """Smallest total memory of a device that holds so many bytes beside the margin.

    Args:
        needed_bytes: bytes that PyTorch's allocator has to be able to reserve, with those that are held
            outside it: the context, and what is kept for other processes.
        margin: share of the device's total that is kept free, as for `make_budget`.
    """
    # `make_budget` rounds the margin up, so that floor((1 - margin) × total) bytes are left beside it.
    return math.ceil(needed_bytes / (1 - Fraction(str(margin))))


def budget_among(
    budget: Budget, groups: Sequence[int], num_ranks: int, *, architecture: str | None, card: str | None
) -> Budget:
    """Copy of a budget, less NCCL's memory for the process groups of a rank.

    Args:
        groups: number of ranks in each process group that exchanges data.
        num_ranks: number of all ranks.
        architecture: architecture of the card; None if only its memory is known.
        card: key or CUDA name of the card; None if unknown.

    Raises:
        BudgetError: no memory is left for the allocator.
    """
    context, assumptions = assumed_context(architecture, card, groups, num_ranks)
    among = replace(budget, context_bytes=context.high_bytes, assumptions=assumptions, context=context)
    if among.usable_bytes <= 0:
        raise BudgetError(
            f"nothing is left of {format_bytes(budget.device_total_bytes)} for PyTorch: the context and NCCL "
            f"take {format_bytes(among.context_bytes)} for {len(groups)} process groups. Give a larger "
            "--gpu-mem, or a smaller --reserve or --margin"
        )
    return among


def budget_of(
    gpu: Gpu,
    *,
    margin: Decimal | Fraction | float = DEFAULT_MARGIN,
    reserve_bytes: int = 0,
    mesh: Sequence[int] = (),
    num_ranks: int | None = None,
) -> Budget:
    """Budget of a card of the catalogue: its memory less context, memory of other processes, and margin.

    Arguments and errors are those of `make_budget`.
    """
    return make_budget(
        gpu.total_bytes,
        architecture=gpu.architecture,
        card=gpu.key,
        margin=margin,
        reserve_bytes=reserve_bytes,
        mesh=mesh,
        num_ranks=num_ranks,
    )


def assumed_context(
    architecture: str | None,
    card: str | None = None,
    mesh: Sequence[int] = (),
    num_ranks: int | None = None,
    torch_release: str | None = None,
) -> tuple[ContextInterval, tuple[str, ...]]:
    """Memory that a process holds outside PyTorch's allocator, with a sentence for each assumption.

    Args:
        architecture: architecture of the card; None if only its memory is known.
        card: key or CUDA name of the card, if known.
        mesh: number of ranks in each process group that exchanges data, such as in each dimension of a device
            mesh; if there are any, NCCL's memory is added.
        num_ranks: number of all ranks; None for the product of `mesh`.
        torch_release: release of PyTorch that will run; None for the installed one.
    """
    context = context_interval(architecture or DEFAULT_ARCHITECTURE, card)
    name = architecture if architecture is not None else f"{DEFAULT_ARCHITECTURE}, as no card is named"
    names = _names(architecture)
    said, wheel = _assumption(names.context, context, name), _assumed_wheel(architecture, torch_release)
    if not mesh:
        return context, (said, *wheel)
    nccl = communicators_interval(mesh, architecture, num_ranks, card)
    whole = ContextInterval(
        low_bytes=context.low_bytes + nccl.low_bytes,
        likely_bytes=context.likely_bytes + nccl.likely_bytes,
        high_bytes=context.high_bytes + nccl.high_bytes,
        basis=f"{context.basis}; {names.communicator} {nccl.basis}",
    )
    return whole, (
        said,
        _assumption(names.communicator, nccl, f"each of {num_ranks or math.prod(mesh)} ranks"),
        *wheel,
    )


def _assumed_wheel(architecture: str | None, torch_release: str | None) -> tuple[str, ...]:
    """Sentence that a special build of PyTorch is assumed; empty if the usual build runs on the card.

    Args:
        torch_release: release of PyTorch that will run; None for the installed one.
    """
    card = None if architecture is None else Architecture.of(architecture)
    if card is None or not card.vendor.facts.has_capability:
        return ()
    wheel = wheel_for(card.capability, torch_release or _installed_torch())
    return () if wheel is None else (wheel,)


@cache  # it is read from a file, and a table of cards asks for it once for each of them
def _installed_torch() -> str:
    return importlib.metadata.version("torch")


def _names(architecture: str | None) -> Facts:
    return Architecture.of(architecture or DEFAULT_ARCHITECTURE).vendor.facts


def outside_allocator(architecture: str | None, *, exchanges: bool) -> str:
    """Name of a process's memory outside PyTorch's allocator, as `CUDA context and NCCL`.

    Args:
        exchanges: whether the process exchanges data with other processes.
    """
    names = _names(architecture)
    return names.context if not exchanges else f"{names.context} and {names.communicator}"


def shown_by(architecture: str | None) -> str:
    """Name of the vendor's tool that shows the card memory of a process, such as `nvidia-smi`."""
    return _names(architecture).memory_tool


def _assumption(what: str, interval: ContextInterval, of: str) -> str:
    low, likely, high = (
        size // 1024**2 for size in (interval.low_bytes, interval.likely_bytes, interval.high_bytes)
    )
    return f"{what}: {high} MiB assumed for {of} (likely {likely}, at least {low}; {interval.basis})"
