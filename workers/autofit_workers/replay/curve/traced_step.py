"""Step of a single trace on a card, at the trace's batch size, with convolution plans from tables."""

from __future__ import annotations

from autofit_workers.replay.allocator import AllocatorSettings
from autofit_workers.replay.curve.conditions import Conditions
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.curve.step_on_card import StepOnCard
from autofit_workers.replay.vendors import offline_source
from autofit_workers.spec.trace import Trace


def traced_step(trace: Trace, architecture: str) -> StepOnCard:
    """Returns a traced step at the batch size of its trace, on a card of an architecture such as `sm_80`."""
    conditions = Conditions(
        plans=(offline_source(architecture, trace.versions["torch"]),),
        conv_algo=trace.knobs.conv_algo,
        architecture=architecture,
        allow_tf32=trace.knobs.tf32_in_convolutions,
        settings=AllocatorSettings.of_knob(trace.knobs.allocator),
    )
    return PeakCurve.through([trace]).on_card(trace.batch_size, conditions)
