"""What the outcomes of a search say of its largest batches, taken in one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

from autofit.service.events import BoundaryMoved
from workers.protocol import Evidence, Knobs, Peaks, TrialOutcome, Verdict


@dataclass(frozen=True, slots=True)
class _Fit:
    peaks: Peaks
    peak_bytes: int | None
    evidence: Evidence


@dataclass(slots=True)
class _Sizes:
    """The sizes of one setting: those that fit, and those that failed, be it once."""

    fits: dict[int, _Fit] = field(default_factory=dict)
    fails: dict[int, Evidence] = field(default_factory=dict)
    told: BoundaryMoved | None = None


class Findings:
    """The largest batch known to fit of every knob setting of a search.

    Args:
        study: its name.
        min_batch: the smallest batch that the search would answer with.
    """

    def __init__(self, *, study: str, min_batch: int) -> None:
        self._study = study
        self._min_batch = min_batch
        self._settings: dict[Knobs, _Sizes] = {}

    def take(self, outcome: TrialOutcome) -> BoundaryMoved | None:
        """Takes in an outcome; what it changed, if anything.

        A size that fitted and failed in turn counts as failing.
        """
        if not outcome.verdict.is_about_memory:
            return None
        sizes = self._settings.setdefault(outcome.knobs, _Sizes())
        if outcome.verdict is not Verdict.FITS:
            sizes.fails[outcome.batch_size] = outcome.evidence
            sizes.fits.pop(outcome.batch_size, None)
        elif outcome.batch_size not in sizes.fails:
            sizes.fits[outcome.batch_size] = _Fit(outcome.peaks, outcome.budgeted_bytes, outcome.evidence)
        if sizes.told is not None and outcome.batch_size < (sizes.told.largest_batch or 0):
            return None
        found = self._found(outcome.knobs, sizes)
        if found == sizes.told:
            return None
        sizes.told = found
        return found

    def all(self) -> list[BoundaryMoved]:
        """What is known now, setting by setting."""
        return [sizes.told for sizes in self._settings.values() if sizes.told is not None]

    def _found(self, knobs: Knobs, sizes: _Sizes) -> BoundaryMoved | None:
        largest = max(sizes.fits, default=None)
        if largest is None:
            if self._min_batch not in sizes.fails:
                return None
            fit = _Fit(Peaks(), None, sizes.fails[self._min_batch])
        else:
            fit = sizes.fits[largest]
        return BoundaryMoved(
            study=self._study,
            knobs=knobs,
            largest_batch=largest,
            peaks=fit.peaks,
            peak_bytes=fit.peak_bytes,
            evidence=fit.evidence,
        )
