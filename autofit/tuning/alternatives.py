"""Predicts the largest batch of a search also for the other kind of batches, other risks and other cards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from autofit.errors import AutofitError, BudgetError
from autofit.events import EventSink, Progress
from autofit.hardware.budget import budget_of
from autofit.hardware.card import card_named
from autofit.hardware.gpus import Gpu
from autofit.predict.curve import PredictedCurve
from autofit.search.boundary import Boundary, largest_fitting_batch
from autofit.search.curves import Curve
from autofit.settings.goals import Risk
from autofit.tuning.compared import BatchKinds, CardAnswer, KindAnswer
from autofit.tuning.curves import CurveSet
from autofit.tuning.found import FrontierEntry
from autofit.tuning.frontier import Frontier
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence
from autofit_workers.spec.setup import TYPICAL, WORST

if TYPE_CHECKING:
    from autofit.search.space import SearchSpace


def compare_kinds(
    frontier: Frontier,
    curves: CurveSet,
    predict_other: Callable[[Knobs], CurveSet],
    *,
    space: SearchSpace,
    tuned_kind: str,
    budget_bytes: int,
) -> tuple[BatchKinds | None, tuple[str, ...]]:
    """Largest batches for typical and for worst-case batches: one kind was searched, the other is predicted.

    Args:
        frontier: result of the search: the largest batch of each knob setting (precision, optimizer, …).
        curves: peak curves that the search used: memory over the batch size, by knob setting.
        predict_other: returns the peak curves of a knob setting for the kind of batches that was not
            searched.
        space: batch sizes that were searched.
        tuned_kind: kind of batches that was searched, `typical` or `worst`.
        budget_bytes: bytes that PyTorch's allocator may reserve.

    Returns:
        Two values: the answers for both kinds, or None if they cannot be compared; and sentences on why they
        cannot.
    """
    best, other_name = frontier.best(), TYPICAL if tuned_kind == WORST else WORST
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
            return None, (f"the largest {other_name} batch is unknown: it was not predicted",)
        largest = _largest(others.prior(knobs), other, space.sizes(knobs), budget_bytes)
        answers = [
            _answer(own, batch_size, entry.largest_batch, entry.evidence),
            _answer(other, batch_size, largest, Evidence.PREDICTED),
        ]
    except AutofitError as error:
        return None, (f"the largest {other_name} batch is unknown: {error.message}",)
    typical, worst = reversed(answers) if tuned_kind == WORST else answers
    return BatchKinds(tuned=tuned_kind, batch_size=batch_size, typical=typical, worst=worst), ()


def _largest(prior: Curve | None, curve: Curve, sizes: Sequence[int], budget_bytes: int) -> int | None:
    """Largest of `sizes` whose peak is within the budget; None if none is.

    Args:
        prior: peak curve that is fast to evaluate; None if there is none, and each size of `curve` costs a
            trace, so that as few as possible are tried.
    """
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


def with_risks(
    entries: Iterable[FrontierEntry],
    curves: Mapping[Knobs, PredictedCurve],
    *,
    budget_bytes: int,
    sizes: Callable[[Knobs], Sequence[int]],
    emit: EventSink,
) -> tuple[FrontierEntry, ...]:
    """Copies of the search's results, with the largest batch at each risk (`largest_by_risk`) added.

    A risk says which value of a predicted peak has to fit: the likely one, the high end, or the worst case.
    Measured results, and those whose batch sizes each cost a trace, stay unchanged.

    Args:
        entries: results of the search, one for each knob setting.
        curves: peak curve of each knob setting, at the risk that the search used.
        budget_bytes: bytes that PyTorch's allocator may reserve.
        sizes: returns the batch sizes that a knob setting can be run with, ascending.
        emit: called with a progress event for each setting.
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


def card_answers(
    curve: PredictedCurve,
    cards: Sequence[Gpu],
    *,
    margin: Decimal,
    reserve_bytes: int,
    sizes: Sequence[int],
    emit: EventSink,
    mesh: Sequence[int] = (),
) -> tuple[CardAnswer, ...]:
    """Largest batch of one knob setting on each of `cards`, without cards that cannot run or predict it.

    The largest batch is None on a card that has no memory left for the smallest batch.

    Args:
        curve: peak curve of the knob setting (memory over the batch size), on any card.
        cards: cards, the smallest first.
        margin: share of a card's memory that is kept free.
        reserve_bytes: bytes of a card that are left to other processes.
        mesh: number of ranks in each dimension of the processes that train together; empty for one process.
        sizes: batch sizes to choose from, ascending.
        emit: called with a progress event for each card.
    """
    by_architecture: dict[str, PredictedCurve] = {}
    answers = []
    for number, gpu in enumerate(reversed(cards)):  # a size over a larger budget is over a smaller one
        emit(Progress(stage="cards of this class", done=number, total=len(cards)))
        named = card_named(gpu.key, mesh)
        if curve.why_unpredictable_on(named, sizes[0]) is not None:
            continue
        on_card = by_architecture.setdefault(gpu.architecture, curve.on(named))
        if on_card.why_refused(sizes[0]) is not None:  # the card cannot run its kernels
            continue
        try:
            budget = budget_of(gpu, margin=margin, reserve_bytes=reserve_bytes, mesh=mesh)
        except BudgetError:  # the reserve may leave memory only on larger cards
            largest = None
        else:
            largest = largest_fitting_batch(on_card, budget.usable_bytes, sizes=sizes).largest_batch
        answers.append(CardAnswer(gpu=gpu.key, total_bytes=gpu.total_bytes, largest_batch=largest))
    return tuple(reversed(answers))
