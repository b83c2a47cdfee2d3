"""Phrases that several texts share."""

from __future__ import annotations

from workers.protocol import Device, Evidence, Knobs


def configuration(knobs: Knobs, mode: str | None) -> str:
    """The knobs beside the convolution algorithm: `fp32 · the workload's optimizer · train`."""
    parts = [knobs.precision, knobs.optimizer or "the workload's optimizer"]
    return " · ".join(parts if mode is None else [*parts, mode])


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
