"""Summaries of models, with the simulated peaks beside them."""

from __future__ import annotations

from autofit.explain.difference import explain_difference
from autofit.explain.summary import summarize
from autofit.hardware.card import Card
from autofit.predict.predictor import Predictor
from autofit.report.summary import SummarizedEstimate
from workers.protocol import Knobs


def summarize_workload(predictor: Predictor, knobs: Knobs, card: Card, batch_size: int) -> SummarizedEstimate:
    """Summarizes and estimates a configuration from one trace.

    Args:
        predictor: one whose traces list tensors and layers.

    Raises:
        UsageError: there is no such batch size or mode.
        WorkloadFailedError: the workload fails, or cannot be predicted.
    """
    curve = predictor.curve_at(knobs, card, batch_size)
    estimate = curve(batch_size)
    profile = curve.profile(batch_size)
    summary = summarize(profile.trace)
    return SummarizedEstimate(
        estimate=estimate,
        summary=summary,
        difference=explain_difference(summary, profile),
    )
