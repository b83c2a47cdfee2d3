"""Checks requested convolution algorithms and allocators against what a workload has and sets itself."""

from __future__ import annotations

import dataclasses

from autofit.errors import UsageError
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.conv_algorithms import Rewrite
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Trace


def require_applicable(knobs: Knobs, trace: Trace) -> None:
    """Raises `UsageError` if the convolution algorithm of `knobs` can run no convolution of a traced step."""
    rewrite = conv.find(knobs.conv_algo)
    if not isinstance(rewrite, Rewrite) or trace.knobs.conv_algo == knobs.conv_algo:
        return  # on the CPU, tracing with this algorithm has shown already that it applies
    calls = dict.fromkeys(a.convolution for a in trace.allocations if a.convolution is not None)
    reasons = [rewrite.leaves(call) for call in calls]
    if None not in reasons:
        raise UsageError(rewrite.applies_to_none(filter(None, reasons)))


def with_own_settings(knobs: Knobs, trace: Trace) -> Knobs:
    """Knob setting with the convolution algorithm and allocator that a traced script sets itself, if it does.

    An allocator that was asked for goes before the script's.
    """
    own, default = trace.versions.get("own_conv_algo", knobs.conv_algo), Knobs()
    if own != default.conv_algo:
        knobs = dataclasses.replace(knobs, conv_algo=own)
    allocator = trace.versions.get("own_allocator", knobs.allocator)
    return dataclasses.replace(knobs, allocator=allocator) if knobs.allocator == default.allocator else knobs


def require_its_conv_algo(knobs: Knobs, trace: Trace) -> None:
    """Raises `UsageError` if a traced script selects another convolution algorithm than `knobs` has."""
    own, default = trace.versions.get("own_conv_algo"), Knobs().conv_algo
    if own is not None and own not in (default, knobs.conv_algo) and knobs.conv_algo != default:
        raise UsageError(
            f"{trace.workload} sets PyTorch flags for {own} convolutions: leave out --conv-algo "
            f"{knobs.conv_algo}, or remove them from the script"
        )
