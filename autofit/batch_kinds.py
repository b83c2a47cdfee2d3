"""The other kind of batch beside a search's answer: what the worst need, or what the typical would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from autofit.curve_set import CurveSet
from autofit.errors import AutofitError
from autofit.report.batch_kinds import BatchKinds, KindAnswer
from autofit.report.frontier import Frontier
from autofit.search.boundary import Boundary, largest_fitting_batch
from autofit.search.curves import Curve
from workers.protocol import TYPICAL, WORST, Evidence, Knobs

if TYPE_CHECKING:
    from autofit.search.space import SearchSpace


def compare_kinds(
    frontier: Frontier,
    curves: CurveSet,
    predict_other: Callable[[Knobs], CurveSet],
    *,
    space: SearchSpace,
    worst_case: bool,
    budget_bytes: int,
) -> tuple[BatchKinds | None, tuple[str, ...]]:
    """Holds a search's answer against the same setting with batches of the other kind, predicted.

    Args:
        frontier: what the search found.
        curves: what it was predicted from, or began at.
        predict_other: the curve of a knob setting with the other kind.
        worst_case: whether the search was of the worst batches.

    Returns:
        None where there is no such curve, and what to say of that.
    """
    best, other_name = frontier.best(), TYPICAL if worst_case else WORST
    batch_size = space.min_batch if best is None else best.batch_size
    entries = (each for each in frontier.entries() if best is None or each.knobs == best.knobs)
    entry = next(entries, None)
    if entry is None:  # the search was stopped before anything was known
        return None, ()
    knobs = entry.knobs
    try:
        own, others = curves.guide(knobs), predict_other(knobs)
        other = others.guide(knobs)
        if own is None or other is None:
            return None, (f"nothing is known of the {other_name} batches: they were not predicted",)
        largest = _largest(others.prior(knobs), other, space.sizes(knobs), budget_bytes)
        answers = [
            _answer(own, batch_size, entry.largest_batch, entry.evidence),
            _answer(other, batch_size, largest, Evidence.PREDICTED),
        ]
    except AutofitError as error:
        return None, (f"nothing is known of the {other_name} batches: {error.message}",)
    typical, worst = reversed(answers) if worst_case else answers
    tuned = WORST if worst_case else TYPICAL
    return BatchKinds(tuned=tuned, batch_size=batch_size, typical=typical, worst=worst), ()


def _largest(prior: Curve | None, curve: Curve, sizes: Sequence[int], budget_bytes: int) -> int | None:
    """The largest size that fits; where each costs a trace, by a search that looks at few of them."""
    if prior is not None:
        return largest_fitting_batch(prior, budget_bytes, sizes=sizes).largest_batch
    boundary = Boundary(budget_bytes=budget_bytes, sizes=sizes)
    while (batch_size := boundary.propose()) is not None:
        peak_bytes = curve.peak_reserved_bytes(batch_size)
        boundary.observe(batch_size, fits=peak_bytes <= budget_bytes, peak_bytes=peak_bytes)
    return boundary.largest_fitting


def _answer(curve: Curve, batch_size: int, largest_batch: int | None, evidence: Evidence) -> KindAnswer:
    return KindAnswer(
        largest_batch=largest_batch,
        evidence=evidence,
        peak_bytes=curve.peak_reserved_bytes(batch_size),
    )
