"""Finds the largest sample size that fits at one batch size, for `--maximize seq-len`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autofit.errors import UsageError, WorkloadFailedError
from autofit.hardware.card import Card
from autofit.predict.predictor import Predictor
from autofit.predict.sizes.surface import NEVER_FITS
from autofit.search.boundary import nearly_largest_batch
from autofit.search.curves import CachedCurve, Curve
from autofit.settings.goals import Risk
from autofit.settings.target import Target
from autofit.settings.words import in_words, setting_names, with_setting
from autofit.units import format_bytes
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import SampleSize

if TYPE_CHECKING:
    from autofit.search.space import SearchSpace

_MOST_MULTIPLES = 16384  # sizes checked for a model without a limit: up to a million tokens
_NUM_OF_A_SURFACE = 8  # fewer sample sizes than this are all traced, without a surface fitted through traces
_NUM_BEYOND = 8  # larger sizes that are checked too, as the peak may be lower at a larger size
_SAME_PEAK = 0.002  # relative difference up to which two peaks count as equal


def at_their_longest(
    space: SearchSpace,
    target: Target,
    predictor: Predictor,
    *,
    batch_size: int,
    allows_long: bool,
    risk: Risk,
) -> tuple[SearchSpace, tuple[str, ...]]:
    """Search space in which each knob setting has the largest sample size that fits at `batch_size`.

    Args:
        batch_size: samples of a batch; the smallest batch of the returned space.
        allows_long: whether samples may be longer than the model was made for.
        risk: which value of a predicted peak has to fit: the likely one, the high end, or the worst case.

    Returns:
        Two values: the search space, and a sentence for each knob setting on why no larger samples fit.

    Raises:
        UsageError: the workload makes samples of one size.
        WorkloadFailedError: the workload fails, or cannot be predicted.
    """
    found, notes, capped = dict[Knobs, Knobs](), list[str](), list[Knobs]()
    for knobs, name in setting_names(space.settings, convolves=False).items():  # names only knobs that differ
        search = _Search(predictor, knobs, target.card, batch_size, risk=risk, name=name)
        sample = _sample(predictor, knobs, batch_size)
        limit = None if allows_long else sample.longest
        longest, note = search.longest(sample.multiple, limit, target.budget.usable_bytes)
        found[knobs] = dataclasses.replace(knobs, seq_len=longest)
        notes.append(note)
        if target.probe is None and longest != limit:  # memory ends it, and larger batches take more
            capped.append(found[knobs])
    sizes_found = tuple(dict.fromkeys(knobs.seq_len for knobs in found.values()))
    widened = dataclasses.replace(
        space,
        choices={**space.choices, "seq_len": sizes_found},
        left_out=frozenset(),
        caps=dict.fromkeys(capped, batch_size),
        min_batch=batch_size,
        max_batch=max(batch_size, space.max_batch),
    )
    left_out = frozenset(widened.settings) - frozenset(found.values())
    return dataclasses.replace(widened, left_out=left_out), tuple(notes)


def _sample(predictor: Predictor, knobs: Knobs, batch_size: int) -> SampleSize:
    sample = predictor.sample(knobs, batch_size)
    if sample is None:
        raise UsageError(
            "--maximize seq-len: the workload makes samples of one size; let its make_batch take a keyword "
            "size (make_batch(batch_size, device, *, size=512))"
        )
    return sample


def _multiples(multiple: int, limit: int | None) -> tuple[int, ...]:
    """Sample sizes to consider: the multiples of `multiple` up to `limit`, ascending."""
    most = multiple * _MOST_MULTIPLES if limit is None else limit
    return tuple(range(multiple, most + 1, multiple))


def _largest(curve: Curve, budget_bytes: int, sizes: Sequence[int]) -> int | None:
    """Largest of `sizes` whose peak is within the budget; None if none is.

    Peaks need not grow with the size: the next `_NUM_BEYOND` sizes after one that fits are tried too.

    Args:
        curve: peaks over the sample size, at one batch size.
    """
    longest = nearly_largest_batch(curve, budget_bytes, sizes=sizes)
    while longest is not None:
        first = sizes.index(longest) + 1
        beyond = [
            size
            for size in sizes[first : first + _NUM_BEYOND]
            if curve.peak_reserved_bytes(size, stop_above_bytes=budget_bytes) <= budget_bytes
        ]
        if not beyond:
            break
        longest = beyond[-1]
    return longest


class _Search:
    """Finds the largest sample size of one knob setting at one batch size.

    Args:
        risk: which value of a predicted peak has to fit: the likely one, the high end, or the worst case.
        name: name of the knob setting in messages; may be empty.
    """

    def __init__(
        self, predictor: Predictor, knobs: Knobs, card: Card, batch_size: int, *, risk: Risk, name: str
    ) -> None:
        self._at = f"at batch {batch_size}{with_setting(name)}"
        self._predictor = predictor
        self._knobs = knobs
        self._card = card
        self._batch_size = batch_size
        self._risk = risk
        self._surface = predictor.surface(knobs, card, risk=risk)
        self._failures: dict[int, WorkloadFailedError] = {}  # errors of the workload, by size

    def longest(self, multiple: int, limit: int | None, budget_bytes: int) -> tuple[int, str]:
        """Largest sample size that fits, or the smallest if none fits; and a sentence on why it ends there.

        Considered are the multiples of `multiple`, and the limit itself.

        Args:
            limit: size that the model was made for, if larger samples must not be tried; else None.

        Raises:
            WorkloadFailedError: the workload fails at every size.
        """
        multiples = _multiples(multiple, limit)
        sizes = multiples if limit is None else tuple(sorted({*multiples, limit}))
        # A trace at the size found checks the surface; if its peak differs, more sizes are traced for it.
        for is_checked in (False, True) if len(multiples) >= _NUM_OF_A_SURFACE else ():
            curve = self._surface.along_sizes(self._batch_size, is_checked=is_checked)
            longest = _largest(curve, budget_bytes, multiples)
            if (
                longest == multiples[-1]
                and limit is not None
                and self._peak_or(limit, 2 * budget_bytes) <= budget_bytes
            ):
                return limit, self._said(limit, f"the model was made for {limit}")
            if self._is_so(longest or sizes[0], curve):
                break
        else:  # the surface does not predict the peaks, as when the step changes at some size
            curve = self._traced_sizes(2 * budget_bytes)
            longest = nearly_largest_batch(curve, budget_bytes, sizes=sizes)
        if longest is None:
            if (error := self._failures.get(sizes[0])) is not None:
                raise error
            return sizes[0], f"not even {in_words('seq_len', sizes[0])} fits {self._at}"
        failing = next((size for size in sizes if size > longest), None)
        if failing is None:
            why = "longer ones are not looked at" if limit is None else f"the model was made for {limit}"
        elif failing in multiples:
            why = self._why_not(failing, curve.peak_reserved_bytes(failing), budget_bytes)
        else:  # the limit, which was traced
            why = self._why_not(failing, self._peak_or(failing, NEVER_FITS), budget_bytes)
        return longest, self._said(longest, why)

    def _said(self, longest: int, why: str) -> str:
        return f"{in_words('seq_len', longest)} is the longest {self._at}: {why}"

    def _why_not(self, size: int, needed_bytes: int, budget_bytes: int) -> str:
        """Phrase on why a sample size does not fit: the workload fails, or the peak exceeds the budget."""
        if (error := self._failures.get(size)) is not None:
            return f"with {size} the workload fails: {error.message}"
        if needed_bytes == NEVER_FITS:
            return f"{size} is more than PyTorch's kernels take"
        needed, over = format_bytes(needed_bytes), format_bytes(needed_bytes - budget_bytes)
        return f"{size} is predicted to reserve {needed}, {over} over the budget"

    def _peak_or(self, size: int, beyond_bytes: int) -> int:
        """Peak in bytes traced at a sample size; `beyond_bytes` if the workload fails at the size.

        Args:
            beyond_bytes: number that exceeds the budget, returned in place of a peak.
        """
        knobs = dataclasses.replace(self._knobs, seq_len=size)
        try:
            curve = self._predictor.curve_at(knobs, self._card, self._batch_size).at_risk(self._risk)
            return curve.peak_reserved_bytes(self._batch_size)
        except WorkloadFailedError as error:
            self._failures[size] = error
            return beyond_bytes

    def _traced_sizes(self, beyond_bytes: int) -> CachedCurve:
        """Curve of peaks over the sample size, which makes a trace for each size that is evaluated.

        Args:
            beyond_bytes: peak of a size at which the workload fails; it exceeds the budget.
        """

        def peak_bytes(size: int, _stop_above_bytes: int | None = None) -> int:
            return self._peak_or(size, beyond_bytes)

        return CachedCurve(peak_bytes, peak_bytes)

    def _is_so(self, size: int, curve: Curve) -> bool:
        """Whether a trace at a sample size confirms the peak that `curve` predicts there."""
        peak_bytes = curve.peak_reserved_bytes(size)
        return math.isclose(self._peak_or(size, 2 * peak_bytes), peak_bytes, rel_tol=_SAME_PEAK)
