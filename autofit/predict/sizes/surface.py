"""Predicted peaks of one knob setting on one card, by batch size and size of a sample."""

from __future__ import annotations

from collections.abc import Callable

from autofit.errors import UsageError
from autofit.predict.curve import PredictedCurve
from autofit.predict.estimate import Estimate
from autofit.search.curves import CachedCurve

NEVER_FITS = 1 << 62  # bytes that stand for the peak of a size that cannot run


class PredictedSurface:
    """Predicted peaks over batch size and sample size: `surface(batch_size, size)` is an `Estimate`.

    It is for one knob setting on one card; `autofit.peak_surface` makes one. Sample sizes that differ by
    multiples of a step, such as 64 tokens, need five traces together, and three more for batches of one
    sample, which may differ. After that each point takes milliseconds.

    Args:
        curve_at: returns the predicted peaks over the batch size at one sample size. Its arguments are the
            sample size, the batch size that is needed alone (None for all but 1), and whether an additional
            trace has to confirm the result.
    """

    def __init__(self, curve_at: Callable[[int, int | None, bool], PredictedCurve]) -> None:
        self._curve_at = curve_at
        self._curves: dict[tuple[int, int | None, bool], PredictedCurve] = {}

    def __call__(self, batch_size: int, size: int) -> Estimate:
        """Predicts the peak at one batch size and one sample size.

        Args:
            batch_size: 1 or more.
            size: the size of a sample, such as tokens; 1 or more.

        Raises:
            UsageError: `batch_size` or `size` is below 1.
            WorkloadFailedError: the workload fails with samples of such a size, or cannot be predicted.
        """
        if batch_size < 1:
            raise UsageError(f"the batch size must be a whole number, 1 or more; got {batch_size}")
        return self.curve(size, batch_size)(batch_size)

    def curve(self, size: int, batch_size: int) -> PredictedCurve:
        """Predicted peaks over the batch size, at the sample size `size`; they cover `batch_size`."""
        return self._curve(size, 1 if batch_size == 1 else None, is_checked=True)

    def along_sizes(self, batch_size: int, *, is_checked: bool = True) -> CachedCurve:
        """Predicted peaks over the sample size, at one batch size.

        Args:
            is_checked: whether an additional trace has to confirm the peaks; if not, the caller should
                compare them with a trace at the chosen size.
        """

        def peak_bytes(size: int, stop_above_bytes: int | None) -> int:
            curve = self._curve(size, batch_size, is_checked=is_checked)
            if curve.why_refused(batch_size) is not None:
                return NEVER_FITS
            return curve.peak_reserved_bytes(batch_size, stop_above_bytes=stop_above_bytes)

        def lower_bound_bytes(size: int) -> int:
            return self._curve(size, batch_size, is_checked=is_checked).lower_bound_bytes(batch_size)

        return CachedCurve(peak_bytes, lower_bound_bytes)

    def _curve(self, size: int, only_batch: int | None, *, is_checked: bool) -> PredictedCurve:
        if size < 1:
            raise UsageError(f"the size of a sample must be a whole number, 1 or more; got {size}")
        key = size, only_batch, is_checked
        if key not in self._curves:
            self._curves[key] = self._curve_at(*key)
        return self._curves[key]
