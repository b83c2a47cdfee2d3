"""Phrases that several texts share."""

from __future__ import annotations

from collections.abc import Sequence

from autofit.gpus import oldest_first
from workers.protocol import WORST, Device, Evidence, Knobs


def configuration(knobs: Knobs, mode: str | None, batch_kind: str | None = None, num_ranks: int = 1) -> str:
    """The knobs beside the convolution algorithm: `fp32 · the workload's optimizer · train`.

    Those of memory format, optimizer implementation, gradients and checkpointing are named where they are
    not the default, and the kind of the batches and the ranks where there are several.
    """
    optimizer = knobs.optimizer or "the workload's optimizer"
    parts = [knobs.precision]
    if knobs.memory_format != "contiguous":
        parts.append(knobs.memory_format)
    parts.append(optimizer if knobs.optimizer_impl == "default" else f"{optimizer} ({knobs.optimizer_impl})")
    if not knobs.set_to_none:
        parts.append("gradients kept as zeros")
    if knobs.checkpointing != "none":
        parts.append(f"checkpointing {knobs.checkpointing}")
    if batch_kind is not None:
        parts.append("worst-case batches" if batch_kind == WORST else f"{batch_kind} batches")
    if num_ranks > 1:
        parts.append(f"one of {num_ranks} ranks of DistributedDataParallel")
    return " · ".join(parts if mode is None else [*parts, mode])


def samples_in_words(batch_size: int, num_ranks: int) -> str:
    """How many samples a step has of all ranks together."""
    return f"{num_ranks} ranks with a batch of {batch_size} each: {num_ranks * batch_size} samples a step"


def outside_allocator(num_ranks: int) -> str:
    """What a process holds of the card outside PyTorch's allocator."""
    return "CUDA context" if num_ranks == 1 else "CUDA context and NCCL"


def unnamed_card(architectures: Sequence[str]) -> str:
    """What an interval over several architectures, the likely one first, is of and how to narrow it."""
    spanned = ", ".join(oldest_first(architectures))
    return (
        f"an {architectures[0]} card is likely, as none was named with --gpu; the interval spans {spanned}: "
        "naming the card narrows it"
    )


def evidence_phrase(evidence: Evidence, device: Device) -> str:
    """How a size is known."""
    match evidence:
        case Evidence.PREDICTED:
            return "predicted, not measured"
        case Evidence.MEASURED:
            return f"measured on {device.name}"
        case Evidence.EMULATED:
            return f"measured on {device.name}, a larger card, under a limit"
        case Evidence.MEASURED_CPU:
            return "measured on the CPU"


def rate(samples_per_second: float) -> str:
    """Samples a second, with as many digits as mean something."""
    return f"{samples_per_second:,.{0 if samples_per_second >= 100 else 1}f}"
