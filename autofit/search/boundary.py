"""Finds the largest batch that fits, for one knob setting.

There are two ways. `largest_fitting_batch` proves it from a peak curve, which evaluates any size
in milliseconds. `Boundary` finds it in few trials if every size costs one.

Reserved memory is not monotone in the batch: a larger batch may need fewer segments. Live bytes
are monotone and bound it from below, so beyond the size whose live bytes alone exceed the budget
nothing fits:

    bytes               ┌───┐      ┌────── reserved
                     ┌──┘   │      │    /
    budget ──────────┼──────┼──────┼──/─────────
                 ┌───┘      └──────┘/
             ┌───┘               /
          ───┘              /  live
    ──────────────────────────────┼───┼───────── batch
                                  │   from here on nothing fits
                                  the largest that fits
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autofit.search.curves import Curve
from autofit.search.sizes import Ranks

MIN_BATCH = 1
MAX_BATCH = 65536

_NUM_PROVED = 1000  # sizes evaluated one by one, downwards from the lower bound's limit; then it skips some
_STRIDES = 500  # sizes are skipped in strides of a size divided by this number
_GROWTH = 8  # without guidance, the next size is at most this many times the largest that fitted
_NUM_GUIDED_TRIALS = 8  # trials whose size follows an estimate; later ones bisect the bracket
_PRIOR_BACKOFF = 0.85  # share of the budget to aim at when the predicted boundary failed
_NUM_NEIGHBOURS = 1  # sizes larger than a failing one that are tried, or found to fit
_SPREAD = 0.25  # with several workers: relative distance of sizes from an estimate that is only predicted
_SPREAD_CORRECTED = 0.08  # relative distance from an estimate that measured peaks have corrected
_FAR_ENOUGH = 0.95  # two measured peaks give a slope if one was predicted below this share of the other


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """Largest batch that fits a budget on a peak curve, with the next larger one that does not.

    Attributes:
        largest_batch: largest batch that fits; None if none does.
        first_failing_batch: next larger batch, which does not fit; None if the largest size that was
            considered fits.
        num_evaluations: number of times that the curve was evaluated, for a reserved peak or for a lower
            bound.
    """

    largest_batch: int | None
    first_failing_batch: int | None
    num_evaluations: int


def largest_fitting_batch(
    curve: Curve,
    budget_bytes: int,
    *,
    min_batch: int = MIN_BATCH,
    max_batch: int = MAX_BATCH,
    sizes: Sequence[int] | None = None,
) -> ScanResult:
    """Largest batch whose predicted reserved peak is within the budget; no larger size fits.

    A peak may fall as the batch grows, so bisection on peaks could miss larger sizes that fit. First the
    largest size is found whose lower bound of the peak, which never falls, is within the budget: larger sizes
    cannot fit. From there the scan goes down, size by size, to the first one whose peak fits. If 1,000 sizes
    in a row do not fit, it goes on in strides of 1/500 of a size; then it is proved only for those sizes and
    for the size after the answer that they do not fit.

    Args:
        curve: predicted peak over the batch size, evaluated as seldom as possible.
        budget_bytes: bytes that the allocator may reserve.
        min_batch: smallest batch size to consider.
        max_batch: largest batch size to consider.
        sizes: batch sizes to consider, ascending; None for all from `min_batch` to `max_batch`.
    """
    num_evaluations = 0
    ranks = Ranks(range(min_batch, max_batch + 1) if sizes is None else sizes)

    def lower_bound(rank: int) -> int:
        nonlocal num_evaluations
        num_evaluations += 1
        return curve.lower_bound_bytes(ranks.size(rank))

    def fits(rank: int) -> bool:
        nonlocal num_evaluations
        num_evaluations += 1
        size = ranks.size(rank)
        return curve.peak_reserved_bytes(size, stop_above_bytes=budget_bytes) <= budget_bytes

    limit = _last_within(lower_bound, budget_bytes, ranks.first, ranks.last)
    candidate = _last_that_fits(fits, ranks.first, limit)
    return ScanResult(
        largest_batch=ranks.size(candidate) if candidate >= ranks.first else None,
        first_failing_batch=ranks.size(candidate + 1) if candidate < ranks.last else None,
        num_evaluations=num_evaluations,
    )


def nearly_largest_batch(curve: Curve, budget_bytes: int, *, sizes: Sequence[int]) -> int | None:
    """Batch size that fits while the next larger one does not, found in a few evaluations of the curve.

    The peak of reserved memory grows almost linearly with the batch, but falls here and there. So a somewhat
    larger size may fit too; `largest_fitting_batch` would find it with more evaluations.

    Args:
        curve: predicted peak over the batch size.
        budget_bytes: bytes that the allocator may reserve.
        sizes: batch sizes to consider, ascending.

    Returns:
        The batch size; None if not even the first fits.
    """
    ranks = Ranks(sizes)

    def peak_bytes(rank: int) -> int:
        return curve.peak_reserved_bytes(ranks.size(rank))

    rank = _last_within(peak_bytes, budget_bytes, ranks.first, ranks.last)
    return ranks.size(rank) if rank >= ranks.first else None


def _last_that_fits(fits: Callable[[int], bool], first: int, last: int) -> int:
    """Largest rank from `first` to `last` whose batch size fits; `first - 1` if none does.

    It scans from `last` downwards, as `largest_fitting_batch` says.

    Args:
        fits: returns whether the batch size of a rank fits.
    """
    failing = last + 1
    while failing > first:
        skipped = 0 if last + 1 - failing < _NUM_PROVED else failing // _STRIDES
        rank = max(failing - 1 - skipped, first)
        if fits(rank):
            return next((above for above in range(failing - 1, rank, -1) if fits(above)), rank)
        failing = rank
    return first - 1


def _last_within(value_at: Callable[[int], int], limit: int, first: int, last: int) -> int:
    """Largest argument at which a non-decreasing function is at most `limit`; `first - 1` if none is.

    It interpolates, since memory grows almost linearly with the batch. Every third step bisects, so that the
    function is evaluated at most about three times as often as by bisection, whatever its form.

    Args:
        value_at: the function.
        first, last: bounds of the arguments, both included.
    """
    low, low_value = first, value_at(first)
    if low_value > limit:
        return first - 1
    high, high_value = last, value_at(last)
    if high_value <= limit:
        return last
    num_steps = 0
    while high - low > 1:
        num_steps += 1
        share = 0.5 if num_steps % 3 == 0 else (limit - low_value) / (high_value - low_value)
        middle = min(max(low + int(share * (high - low)), low + 1), high - 1)
        value = value_at(middle)
        if value <= limit:
            low, low_value = middle, value
        else:
            high, high_value = middle, value
    return low


class Boundary:
    """Finds the largest fitting batch of one knob setting, with as few measured trials as possible.

    A trial runs one batch size. The boundary is the pair of neighbouring sizes of which the smaller fits and
    the larger does not. The search is over (settled) when both are known, when the largest size fits, or when
    the smallest does not.

    The search starts at the predicted largest size and the size after it. Each measured peak corrects the
    prediction, by a straight line from predicted to measured peaks, so that a wrong prediction costs a trial
    or two. Without a prediction the search grows from the smallest size and extrapolates measured peaks.
    After a few such trials it bisects, so that it ends in O(log max_batch) trials in any case. If several
    trials run at the same time, they get the estimate, the size after it, and sizes spread around both.

    A larger batch may fit although a smaller one fails. So if the corrected prediction says that some size
    above the smallest failing one takes less memory than that one and fits, it is tried too; without a
    prediction, the size after the smallest failing one is. If not even the smallest size fits, nothing more
    is tried.

    Args:
        budget_bytes: bytes that measured peaks are compared with.
        prior: predicted peak over the batch size, which guides the search; None if nothing is predicted. It
            should be a `CachedCurve` if several searches share it.
        sizes: batch sizes to consider, ascending; None for all from the minimum to the maximum.
    """

    # In this class every size is its rank among the sizes to consider; in a range, ranks equal the sizes.

    def __init__(
        self,
        *,
        budget_bytes: int,
        min_batch: int = MIN_BATCH,
        max_batch: int = MAX_BATCH,
        prior: Curve | None = None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        self._sizes = range(min_batch, max_batch + 1) if sizes is None else sizes
        self._ranks = Ranks(self._sizes)
        self._budget_bytes = budget_bytes
        self._min_batch = self._ranks.first
        self._max_batch = self._ranks.last
        self._prior = prior
        self._fits: dict[int, bool] = {}
        self._peaks: dict[int, int] = {}
        self._in_flight: set[int] = set()

    @property
    def largest_fitting(self) -> int | None:
        """Largest batch size that was seen to fit; None if none was."""
        rank = self._largest_fitting
        return None if rank is None else self._ranks.size(rank)

    @property
    def first_failing(self) -> int | None:
        """Smallest batch size beyond `largest_fitting` that was seen to fail; None if none was."""
        rank = min(self._failing(), default=None)
        return None if rank is None else self._ranks.size(rank)

    @property
    def is_settled(self) -> bool:
        return self._is_closed and self._neighbour() is None

    @property
    def has_proposal(self) -> bool:
        """Whether a batch size is left to try that has no outcome and is not running now."""
        if self._is_closed:
            return self._neighbour() not in (None, *self._in_flight)
        low, high = self._bracket()
        return high - low - 1 > sum(low < size < high for size in self._in_flight)

    def at_most(self, batch_size: int) -> int:
        """Largest batch size, among those to consider, that is at most `batch_size`; 0 if there is none."""
        return self._ranks.at_most(batch_size)

    def may_be_last(self, batch_size: int) -> bool:
        """Whether a batch size would likely be the largest that fits, if its trial fits.

        It would be if the next size is known to fail, or is not expected to fit by measured peaks.
        """
        rank = self._ranks.of(batch_size)
        if rank + 1 == self._bracket()[1]:
            return True
        estimate = self._estimate() if self._peaks else None
        return estimate is not None and rank >= estimate

    def doubtful_size_beyond(self, batch_size: int) -> int | None:
        """Size after `batch_size`, if it is worth a trial since it probably does not fit; else None.

        It is None if the size has an outcome, is running now, or is expected to fit.
        """
        low, high = self._bracket()
        rank = self._ranks.of(batch_size) + 1
        estimate = self._estimate()
        is_open = low < rank < high and rank not in self._in_flight
        return self._ranks.size(rank) if is_open and (estimate is None or estimate < rank) else None

    def fails_just_beyond(self, batch_size: int) -> int | None:
        """Smallest size known to fail, if it is at most the size after `batch_size`; else None."""
        failing = min(self._failing(), default=None)
        is_next = failing is not None and failing <= self._ranks.of(batch_size) + 1
        return self.first_failing if is_next else None

    def expect(self, batch_size: int) -> None:
        """Marks a batch size as running now, so that it is not proposed again."""
        self._in_flight.add(self._ranks.of(batch_size))

    def withdraw(self, batch_size: int) -> None:
        """Marks a batch size as not running, so that it may be proposed again."""
        self._in_flight.discard(self._ranks.of(batch_size))

    def observe(self, batch_size: int, *, fits: bool, peak_bytes: int | None = None) -> None:
        """Records the outcome of a trial at a batch size.

        A size that fitted in one trial and failed in another counts as failing. The peak of a failed trial is
        used only if it exceeds the budget; a lower one only shows how far the trial came.

        Args:
            peak_bytes: measured peak; None if there is none.
        """
        rank = self._ranks.of(batch_size)
        self._in_flight.discard(rank)
        self._fits[rank] = fits and self._fits.get(rank, True)
        if peak_bytes is not None and fits == (peak_bytes <= self._budget_bytes):
            self._peaks[rank] = peak_bytes

    def propose(self) -> int | None:
        """Returns the batch size to try next and marks it as running; None if there is none to try now."""
        if not self.has_proposal:
            return None
        size = self._neighbour() if self._is_closed else self._choose()
        assert size is not None
        self._in_flight.add(size)
        return self._ranks.size(size)

    @property
    def _largest_fitting(self) -> int | None:
        return max((size for size, fits in self._fits.items() if fits), default=None)

    @property
    def _is_closed(self) -> bool:
        low, high = self._bracket()
        return high - low == 1

    def _bracket(self) -> tuple[int, int]:
        """Largest size known to fit, and smallest larger one known to fail; sizes between them are open.

        Sizes are given by their ranks among the sizes to consider. If none is known, the value is one beyond
        the range.
        """
        low, high = self._largest_fitting, min(self._failing(), default=None)
        return (self._min_batch - 1 if low is None else low, self._max_batch + 1 if high is None else high)

    def _failing(self) -> list[int]:
        """Ranks of the sizes above the largest fitting one that are known to fail."""
        floor = self._largest_fitting or 0
        return [size for size, fits in self._fits.items() if not fits and size > floor]

    def _neighbour(self) -> int | None:
        """Size above the smallest failing one that may fit nevertheless; None if none is to be tried.

        Sizes are given by their ranks among the sizes to consider.
        """
        failing = self._failing()
        if self._largest_fitting is None or not failing or self._num_surprises() >= _NUM_NEIGHBOURS:
            return None
        first = min(failing)
        if self._prior is None:
            beside = first + 1
            return beside if beside <= self._max_batch and beside not in self._fits else None
        needs = {size: self._model(size) for size in failing}
        target = self._target()
        if target is None or sum(need < needs[first] for need in needs.values()) >= _NUM_NEIGHBOURS:
            return None
        size = self._last_predicted_within(min(target, min(needs.values()) - 1))
        return size if size > first else None

    def _num_surprises(self) -> int:
        """Number of tried sizes that fitted although the next smaller tried size did not."""
        pairs = itertools.pairwise(sorted(self._fits))
        return sum(self._fits[size] and not self._fits[smaller] for smaller, size in pairs)

    def _choose(self) -> int:
        """Size to try next: the estimate, its neighbour, or one away from the sizes that run now."""
        low, high = self._bracket()
        estimate = self._estimate() if len(self._fits) < _NUM_GUIDED_TRIALS else None
        taken = sorted(size for size in self._in_flight if low < size < high)
        if not taken:
            return self._guess(low, high, estimate)
        if estimate is None:
            further = taken[-1] * _GROWTH
            return (
                further if high > self._max_batch and further < high else _middle_of_widest(low, taken, high)
            )
        estimate = min(max(estimate, low), high - 1)
        for size in (estimate, estimate + 1):
            if low < size < high and size not in taken:
                return size
        reach = max(2, int(estimate * (_SPREAD_CORRECTED if self._peaks else _SPREAD)))
        near, far = max(low, estimate - reach), min(high, estimate + 1 + reach)
        if all(size in taken for size in range(near + 1, far)):
            near, far = low, high
        return _middle_of_widest(near, [size for size in taken if near < size < far], far)

    def _guess(self, low: int, high: int, estimate: int | None) -> int:
        """Single size to try next between `low` and `high`, both exclusive.

        It is the estimate, or near the bound that the estimate lies beyond. Without an estimate the search
        doubles, or bisects once some size has failed.
        """
        bounded = high <= self._max_batch
        if estimate is not None:
            size = estimate
        elif bounded:
            return _middle(low, high)
        else:
            size = low * _GROWTH if low >= self._min_batch else self._min_batch
        margin = max(1, (high - low) // 16) if bounded else 1
        if size <= low:
            return low + margin
        return size if size < high else high - margin

    def _estimate(self) -> int | None:
        """Largest size expected to fit, by predicted and measured peaks; None if there are neither."""
        target = self._target()
        if target is None:
            return None
        if self._prior is None:
            low, high = self._bracket()
            return min(target, max(low, 1) * _GROWTH) if high > self._max_batch else target
        return self._last_predicted_within(target)

    def _last_predicted_within(self, limit_bytes: int) -> int:
        """Rank of the largest size whose predicted peak is within a limit; below the minimum if none is."""
        assert self._prior is not None
        largest = largest_fitting_batch(self._prior, limit_bytes, sizes=self._sizes).largest_batch
        return self._min_batch - 1 if largest is None else self._ranks.of(largest)

    def _target(self) -> int | None:
        """Predicted peak, in bytes, that corresponds to a measured peak equal to the budget; None if unknown.

        Measured peaks are assumed to be a linear function of predicted ones. With one measured peak, the line
        goes through the origin; with several, through the peak nearest the budget and another one far enough
        from it. Without any predictions, the batch size takes the place of the predicted peak, and a batch
        size is returned.
        """
        model = {size: self._model(size) for size in self._peaks}
        if not model:
            if self._prior is None:
                return None
            num_failed = sum(not fits for fits in self._fits.values())
            return int(self._budget_bytes * _PRIOR_BACKOFF ** (2**num_failed - 1))
        anchor = min(model, key=lambda size: abs(self._budget_bytes - self._peaks[size]))
        headroom = self._budget_bytes - self._peaks[anchor]
        below = [size for size in model if model[size] <= _FAR_ENOUGH * model[anchor]]
        above = [size for size in model if model[anchor] <= _FAR_ENOUGH * model[size]]
        if below or above:
            other = max(below, key=lambda size: model[size]) if below else min(above, key=lambda s: model[s])
            rise = (self._peaks[anchor] - self._peaks[other]) / (model[anchor] - model[other])
            if rise > 0:
                return int(model[anchor] + headroom / rise)
        if self._prior is None:
            return None
        return int(model[anchor] * self._budget_bytes / self._peaks[anchor])

    def _model(self, rank: int) -> int:
        return rank if self._prior is None else self._prior.peak_reserved_bytes(self._ranks.size(rank))


def _middle_of_widest(low: int, taken: list[int], high: int) -> int:
    """Middle of the widest gap between `low`, the sizes that are running now (`taken`), and `high`."""
    low, high = max(itertools.pairwise([low, *taken, high]), key=lambda gap: gap[1] - gap[0])
    return _middle(low, high)


def _middle(low: int, high: int) -> int:
    """Middle between two batch sizes; the geometric mean if they are far apart."""
    return math.isqrt(max(low, 1) * high) if high > 4 * max(low, 1) else (low + high) // 2
