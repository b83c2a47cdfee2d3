"""Pareto front of batch size against time of a sample, among a search's knob settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autofit.search.pace import Pace
from autofit_workers.spec.knobs import Knobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Largest batch of a knob setting with its speed, for comparison with other knob settings.

    Attributes:
        samples_per_second: measured rate, or a predicted one that is certain enough; None if there is
            neither.
        pace: usual relative speed, compared where a rate is missing.
    """

    largest_batch: int
    samples_per_second: float | None
    pace: Pace


def dominating(points: Mapping[Knobs, Point]) -> dict[Knobs, Knobs]:
    """Knob settings that another one beats, each with a setting that fits as much and is no slower.

    Settings that are not in the result are on the Pareto front of batch size and speed. Of settings that are
    equal in both, the first is on the front. Settings without rates are compared by `Pace`, which cannot
    compare all of them; settings that are not compared do not dominate each other.
    """
    names = list(points)
    beaten = {
        knobs: [
            other
            for index, other in enumerate(names)
            if other != knobs
            and _is_as_good(points[other], points[knobs])
            and (index < place or not _is_as_good(points[knobs], points[other]))
        ]
        for place, knobs in enumerate(names)
    }
    front = [knobs for knobs in names if not beaten[knobs]]
    return {
        knobs: next((other for other in better if other in front), better[0])
        for knobs, better in beaten.items()
        if better
    }


def _is_as_good(a: Point, b: Point) -> bool:
    if a.largest_batch < b.largest_batch:
        return False
    if a.samples_per_second is not None and b.samples_per_second is not None:
        return a.samples_per_second >= b.samples_per_second
    return a.pace.is_no_slower_than(b.pace)
