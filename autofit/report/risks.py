"""The largest batch of each predicted knob setting at every risk."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from autofit.events import EventSink, Progress
from autofit.predict.curve import PredictedCurve
from autofit.report.result import FrontierEntry
from autofit.search.boundary import largest_fitting_batch
from autofit.settings.goals import Risk
from workers.protocol import Evidence, Knobs


def with_risks(
    entries: Iterable[FrontierEntry],
    curves: Mapping[Knobs, PredictedCurve],
    *,
    budget_bytes: int,
    sizes: Callable[[Knobs], Sequence[int]],
    emit: EventSink,
) -> tuple[FrontierEntry, ...]:
    """The entries, those that were predicted with their largest batch at every risk, and its prospects.

    Args:
        curves: by knob setting, each at the risk that its entry was found at.
        budget_bytes: of the search.
        sizes: those of interest of a setting.
        emit: is told of each setting.
    """
    answered = []
    for entry in entries:
        curve = curves.get(entry.knobs)
        if entry.evidence is not Evidence.PREDICTED or curve is None or curve.needs_traces:
            answered.append(entry)
            continue
        emit(Progress(stage="other risks"))
        largest = {
            risk: entry.largest_batch
            if risk is curve.risk
            else largest_fitting_batch(
                curve.at_risk(risk), budget_bytes, sizes=sizes(entry.knobs)
            ).largest_batch
            for risk in Risk
        }
        likely = largest[Risk.LIKELY]
        answered.append(
            dataclasses.replace(
                entry,
                largest_by_risk=largest,
                likely_still_runs=None
                if likely is None
                else curve.runs_with_smallest_plans(likely, budget_bytes),
            )
        )
    return tuple(answered)
