"""Makes the events that announce changes of a search's largest known batches."""

from __future__ import annotations

from collections.abc import Mapping

from autofit.events import BoundaryMoved, PredictionCompared
from autofit.search.boundary import Boundary
from autofit.search.choice import Configuration
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Peaks, TrialOutcome, Verdict


class Findings:
    """Makes events that announce how the largest known batches of a search change, each change once.

    Args:
        study: name of the study, the stored record of the search.
    """

    def __init__(self, study: str) -> None:
        self._study = study
        self._told: dict[Knobs, BoundaryMoved] = {}

    @property
    def told(self) -> list[BoundaryMoved]:
        """Latest event of each knob setting whose largest known batch has changed."""
        return list(self._told.values())

    def moved(
        self, boundaries: Mapping[Knobs, Boundary], known: Mapping[Configuration, TrialOutcome]
    ) -> list[BoundaryMoved]:
        """Events for knob settings whose largest known batch changed since it was last announced.

        Args:
            boundaries: search for the largest batch of each knob setting.
            known: outcome of each configuration; of several, the one that counts.
        """
        news = []
        for knobs, boundary in boundaries.items():
            found = self._found(knobs, boundary, known)
            if found is not None and found != self._told.get(knobs):
                self._told[knobs] = found
                news.append(found)
        return news

    def _found(
        self, knobs: Knobs, boundary: Boundary, known: Mapping[Configuration, TrialOutcome]
    ) -> BoundaryMoved | None:
        """Event for a knob setting's largest batch as it is known now; None if nothing is known."""
        largest, failing = boundary.largest_fitting, boundary.first_failing
        if largest is not None:
            fits = known[knobs, largest]
            return BoundaryMoved(
                study=self._study,
                knobs=knobs,
                largest_batch=largest,
                peaks=fits.peaks,
                peak_bytes=fits.budgeted_bytes,
                evidence=fits.evidence,
            )
        if failing is None or not boundary.is_settled:
            return None
        return BoundaryMoved(
            study=self._study,
            knobs=knobs,
            largest_batch=None,
            peaks=Peaks(),
            peak_bytes=None,
            evidence=known[knobs, failing].evidence,
        )


def comparison(
    study: str, trial: int, outcome: TrialOutcome, predicted_bytes: int | None
) -> PredictionCompared | None:
    """Event that compares a trial's predicted and measured peak; None unless it fits and has both.

    Args:
        trial: number of the trial, a run of one configuration.
        predicted_bytes: likely predicted peak; None if it was not predicted.
    """
    measured_bytes = outcome.budgeted_bytes
    if outcome.verdict is not Verdict.FITS or predicted_bytes is None or not measured_bytes:
        return None
    return PredictionCompared(
        study=study, trial=trial, predicted_bytes=predicted_bytes, measured_bytes=measured_bytes
    )
