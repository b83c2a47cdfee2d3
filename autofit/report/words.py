"""Phrases that several texts share."""

from __future__ import annotations

from collections.abc import Sequence

from autofit.gpus import oldest_first
from workers.protocol import Device, Evidence, Knobs


def configuration(knobs: Knobs, mode: str | None, *, of_script: bool = False) -> str:
    """The knobs beside the convolution algorithm: `fp32 · the workload's optimizer · train`.

    Those of memory format, optimizer implementation, gradients and checkpointing are named where they are
    not the default. A script has none of them: it decides by itself.
    """
    if of_script:
        return "the script's own precision and optimizer"
    optimizer = knobs.optimizer or "the workload's optimizer"
    parts = [knobs.precision]
    if knobs.memory_format != "contiguous":
        parts.append(knobs.memory_format)
    parts.append(optimizer if knobs.optimizer_impl == "default" else f"{optimizer} ({knobs.optimizer_impl})")
    if not knobs.set_to_none:
        parts.append("gradients kept as zeros")
    if knobs.checkpointing != "none":
        parts.append(f"checkpointing {knobs.checkpointing}")
    return " · ".join(parts if mode is None else [*parts, mode])


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
