"""Summarizes a model layer by layer, and explains the difference from its predicted memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from autofit.explain.difference import Difference, explain_difference
from autofit.explain.summary import Summary, SummaryPart, summarize
from autofit.hardware.card import Card
from autofit.predict.estimate import Estimate
from autofit.predict.predictor import Predictor
from autofit_workers.spec.knobs import Knobs


@dataclass(frozen=True, slots=True, kw_only=True)
class SummarizedEstimate:
    """Layer-by-layer summary of a configuration and its predicted memory, with the difference of the two."""

    estimate: Estimate
    summary: Summary
    difference: Difference

    def to_dict(self) -> dict[str, Any]:
        """Content of the estimate's document, with the fields `summary` and `difference`."""
        return {
            **self.estimate.to_dict(),
            "summary": {
                "parts": [_part(part) for part in self.summary.parts],
                "num_parameters": self.summary.num_parameters,
                **_sizes(self.summary),
            },
            "difference": dataclasses.asdict(self.difference),
        }


def _part(part: SummaryPart) -> dict[str, Any]:
    """Part of a summary as a dictionary of JSON's types."""
    return {
        "name": part.name,
        "module_type": part.module_type,
        "layers": [
            {
                "layer": row.name,
                "module": row.layer.name,
                "output_shapes": row.output_shapes,
                "num_parameters": row.num_parameters,
            }
            for row in part.rows
        ],
        "num_parameters": part.num_parameters,
        **_sizes(part),
    }


def _sizes(counted: Summary | SummaryPart) -> dict[str, int]:
    return {
        "input_bytes": counted.input_bytes,
        "forward_backward_bytes": counted.forward_backward_bytes,
        "parameter_bytes": counted.parameter_bytes,
        "total_bytes": counted.total_bytes,
    }


def summarize_workload(predictor: Predictor, knobs: Knobs, card: Card, batch_size: int) -> SummarizedEstimate:
    """Summarizes and estimates a configuration from one trace.

    Args:
        predictor: predictor whose traces include tensors and layers.

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
