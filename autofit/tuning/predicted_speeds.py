"""Predicted step times of a search's knob settings, the fastest configuration, and the throughput knee."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autofit.predict.curve import PredictedCurve
from autofit.predict.times.step_times import StepTime
from autofit.search.boundary import Boundary
from autofit.search.choice import EQUALLY_FAST_RATE, NEAR_THE_BEST_RATE, Configuration, Knee
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Verdict

_NUM_PREDICTED_HALVES = 7  # more halvings of a batch than are measured, as a prediction takes milliseconds
_WORTH_A_LOOK = 0.7  # share of the best rate; slower settings are not considered at smaller batches


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSize:
    """Configuration that fits, with its predicted step time."""

    knobs: Knobs
    batch_size: int
    time: StepTime

    @property
    def rate(self) -> float:
        """Predicted samples a second of the configuration."""
        return self.time.samples_per_second


class PredictedSpeeds:
    """Predicted step times of the configurations of a search that fit.

    Args:
        curves: predicted curve of each knob setting; settings without a curve have no times.
        boundaries: largest fitting and smallest failing batch of each setting.
        budget_bytes: bytes that PyTorch's allocator may reserve.
    """

    def __init__(
        self,
        curves: Mapping[Knobs, PredictedCurve],
        boundaries: Mapping[Knobs, Boundary],
        *,
        budget_bytes: int,
    ) -> None:
        self._curves = curves
        self._boundaries = boundaries
        self._budget_bytes = budget_bytes
        self._smaller: dict[Knobs, tuple[TimedSize, ...]] = {}

    def at(self, configuration: Configuration) -> StepTime | None:
        """Predicted step time of a configuration; None if it is not predicted."""
        knobs, batch_size = configuration
        curve = self._curves.get(knobs)
        return None if curve is None else curve.step_time(batch_size, self._budget_bytes)

    @property
    def any_known(self) -> bool:
        """Whether a step time is predicted for any knob setting."""
        return bool(self._largest)

    def relative(self, knobs: Knobs) -> float | None:
        """Predicted time of a sample at a setting's largest batch, divided by that of the fastest setting.

        Returns:
            The ratio, 1 for the fastest; None if no time is predicted for the knob setting.
        """
        mine = next((each for each in self._largest if each.knobs == knobs), None)
        return None if mine is None else max(each.rate for each in self._largest) / mine.rate

    def fastest(self, *, only_stated: bool) -> TimedSize | None:
        """Configuration that fits with the most predicted samples a second; None if no time is predicted.

        Among about equally fast ones it is the one with the largest batch.

        Args:
            only_stated: whether to consider only configurations whose seconds are certain enough to be
                stated.
        """
        sizes = self._sizes(only_stated=only_stated)
        best = self._of_best_rate(sizes)
        if best is None:
            return None
        equal = (each for each in sizes if each.rate >= EQUALLY_FAST_RATE * best.rate)
        by_size = sorted(equal, key=lambda each: (-each.batch_size, -each.rate))
        return next(filter(self._fits, by_size))

    def knee(self) -> Knee | None:
        """Throughput knee: the smallest batch whose predicted samples a second are near the best.

        Returns:
            The knee; None if no step time is certain enough to be shown.
        """
        sizes = self._sizes(only_stated=True)
        best = self._of_best_rate(sizes)
        if best is None:
            return None
        near = (each for each in sizes if each.rate >= NEAR_THE_BEST_RATE * best.rate)
        by_size = sorted(near, key=lambda each: (each.batch_size, -each.rate))
        knee = next(filter(self._fits, by_size), best)
        return Knee(
            batch_size=knee.batch_size,
            knobs=knee.knobs,
            samples_per_second=knee.rate,
            best_samples_per_second=best.rate,
            is_predicted=True,
        )

    def _of_best_rate(self, sizes: Iterable[TimedSize]) -> TimedSize | None:
        return next(filter(self._fits, sorted(sizes, key=lambda each: -each.rate)), None)

    def _fits(self, size: TimedSize) -> bool:
        """Whether a configuration is predicted to fit.

        Some batches below the largest do not fit, as the allocator places their blocks differently.
        """
        if size in self._largest:
            return True
        return self._curves[size.knobs].verdict(size.batch_size, self._budget_bytes) is Verdict.FITS

    @functools.cached_property
    def _largest(self) -> tuple[TimedSize, ...]:
        """Largest batch of each knob setting, with its step time, if a time is predicted."""
        return tuple(
            TimedSize(knobs=knobs, batch_size=size, time=time)
            for knobs, boundary in self._boundaries.items()
            if (size := boundary.largest_fitting) is not None and (time := self.at((knobs, size))) is not None
        )

    def _sizes(self, *, only_stated: bool) -> tuple[TimedSize, ...]:
        """Configurations among which the fastest is sought: each largest batch, and its repeated halves.

        Halves are considered only of batches whose rate is not far below the best.

        Args:
            only_stated: whether to consider only sizes whose step time is certain enough to be shown; smaller
                batches of a knob setting are left out if its largest is not.
        """
        best_rate = max((each.rate for each in self._largest), default=0.0)
        found = []
        for largest in self._largest:
            if only_stated and not largest.time.confidence.is_stated:
                continue
            found.append(largest)
            if largest.rate >= _WORTH_A_LOOK * best_rate and not self._curves[largest.knobs].needs_traces:
                found += self._halves(largest)
        return tuple(each for each in found if each.time.confidence.is_stated or not only_stated)

    def _halves(self, largest: TimedSize) -> tuple[TimedSize, ...]:
        """Halves of a largest batch with their times, halved again until the rate clearly falls."""
        knobs, boundary = largest.knobs, self._boundaries[largest.knobs]
        if knobs in self._smaller:
            return self._smaller[knobs]
        size, best_rate = largest.batch_size, largest.rate
        found: list[TimedSize] = []
        for _ in range(_NUM_PREDICTED_HALVES):
            size = boundary.at_most(size // 2)
            time = None if size < 1 else self.at((knobs, size))
            if time is None:
                break
            found.append(TimedSize(knobs=knobs, batch_size=size, time=time))
            if found[-1].rate < NEAR_THE_BEST_RATE * best_rate:
                break
            best_rate = max(best_rate, found[-1].rate)
        self._smaller[knobs] = tuple(found)
        return self._smaller[knobs]
