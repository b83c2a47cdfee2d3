"""Peak curves that guide a search: the peak at any batch size, computed once for each size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from autofit_workers.spec.pythons import Self


class Curve(Protocol):
    """Predicted peak memory over the batch size (a peak curve), for one knob setting."""

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
        """Reserved peak in bytes at a batch size: the value of the prediction that has to fit the budget.

        With `stop_above_bytes`, the evaluation may end as soon as the peak is known to exceed it,
        and return any value above it that the peak reaches.

        Whether this is the likely value, the high end or the worst case depends on the risk that the user
        chose.
        """
        ...

    def lower_bound_bytes(self, batch_size: int) -> int:
        """Lower bound of the reserved peak in bytes, from live blocks alone; never falls as batches grow."""
        ...


class KnownPeaks:
    """Cache of predicted peaks by batch size; of evaluations that stopped early it keeps a lower bound."""

    def __init__(self) -> None:
        self._peaks: dict[int, int] = {}
        self._reached: dict[int, int] = {}

    def least_bytes(self, batch_size: int) -> int:
        """Lower bound of a batch size's peak in bytes, from earlier evaluations; 0 if there were none."""
        return self._peaks.get(batch_size, self._reached.get(batch_size, 0))

    def peak(self, batch_size: int, stop_above_bytes: int | None, work_out: Callable[[], int]) -> int:
        """Reserved peak in bytes at a batch size, from the cache, or else computed by `work_out`.

        Args:
            stop_above_bytes: if the peak exceeds this limit, any value above the limit may be returned that
                the peak reaches; None for the exact peak.
        """
        if batch_size in self._peaks:
            return self._peaks[batch_size]
        if stop_above_bytes is not None and self._reached.get(batch_size, 0) > stop_above_bytes:
            return self._reached[batch_size]
        value = work_out()
        exact = stop_above_bytes is None or value <= stop_above_bytes
        (self._peaks if exact else self._reached)[batch_size] = value
        return value


class CachedCurve:
    """Peak curve made of two functions, each of which is called only once for a batch size.

    Instead of a batch size the argument may also be another number, such as a sample size.

    Args:
        peak_bytes: returns the reserved peak in bytes, from a batch size and a limit; it may stop once the
            peak is known to exceed the limit, and return any such value.
        lower_bound_bytes: returns a lower bound of the peak in bytes, which never falls with the batch size.
    """

    def __init__(
        self, peak_bytes: Callable[[int, int | None], int], lower_bound_bytes: Callable[[int], int]
    ) -> None:
        self._peak_bytes = peak_bytes
        self._lower_bound_bytes = lower_bound_bytes
        self._peaks = KnownPeaks()
        self._lower_bounds: dict[int, int] = {}

    @classmethod
    def of(cls, curve: Curve) -> Self:
        """Peak curve that evaluates each batch size of another curve only once."""
        return cls(
            lambda size, stop: curve.peak_reserved_bytes(size, stop_above_bytes=stop),
            curve.lower_bound_bytes,
        )

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
        return self._peaks.peak(
            batch_size, stop_above_bytes, lambda: self._peak_bytes(batch_size, stop_above_bytes)
        )

    def lower_bound_bytes(self, batch_size: int) -> int:
        if batch_size not in self._lower_bounds:
            self._lower_bounds[batch_size] = self._lower_bound_bytes(batch_size)
        return self._lower_bounds[batch_size]


def line_through(curve: Curve, low: int, high: int) -> CachedCurve:
    """Straight line that approximates a curve, for curves that cost a trace for every size.

    It goes through the reserved peak at batch size `high`, and has the slope of the live bytes from `low` to
    `high`, as the allocator's rounding would disturb that of reserved bytes.

    Raises:
        ValueError: the curve does not rise between the two sizes.
    """
    rise = curve.lower_bound_bytes(high) - curve.lower_bound_bytes(low)
    if rise <= 0:
        raise ValueError(f"no line rises through batch {low} and {high}")
    bytes_per_sample, peak_bytes = rise / (high - low), curve.peak_reserved_bytes(high)

    def bytes_at(batch_size: int, _stop_above_bytes: int | None = None) -> int:
        return max(0, round(peak_bytes + (batch_size - high) * bytes_per_sample))

    return CachedCurve(bytes_at, bytes_at)
