"""Peaks of traced trials, for tests that look at no more of the trace."""

from __future__ import annotations

from autofit_workers.replay.curve.host_blocks import asked_bytes
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.curve.traced_step import traced_step
from autofit_workers.spec.protocol import Peaks, TrialOutcome
from autofit_workers.spec.trace import Trace


def peaks_of(outcome: TrialOutcome) -> Peaks:
    """Likely peaks of a traced trial on its card; for the CPU only the allocated peak of its blocks."""
    assert outcome.trace_json is not None, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    if outcome.device.kind == "cpu":
        return Peaks(allocated_bytes=asked_bytes(PeakCurve.through([trace]).at(trace.batch_size)))
    replay = traced_step(trace, outcome.device.name).likely().replay
    return Peaks(allocated_bytes=replay.peak_allocated_bytes, reserved_bytes=replay.peak_reserved_bytes)
