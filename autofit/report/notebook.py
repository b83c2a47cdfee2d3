"""Shows answers in notebooks: the report's sections and figures, small."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from autofit.answers.configuration.estimate import answer_in_words as estimate_in_words
from autofit.answers.configuration.estimate import estimate_sections
from autofit.answers.profile.plan import plan_sections
from autofit.answers.profile.rows import view_sections
from autofit.answers.section import Code, Section
from autofit.answers.tune.answer import answer_in_words
from autofit.answers.tune.frontier import frontier
from autofit.answers.tune.parallels import parallels
from autofit.explain.profile import Profile
from autofit.explain.views.filters import Filters
from autofit.explain.views.plan import PlanView
from autofit.explain.views.view import View
from autofit.predict.curve import PredictedCurve
from autofit.predict.estimate import Estimate
from autofit.report.curves import curves_around, curves_section
from autofit.report.gather import report_on_profile
from autofit.report.html.page import Page, render_small
from autofit.tuning.result import TuneResult

# Sections that repeat the sentences at the top, or say how to repeat a command.
_BESIDE = frozenset(("configuration", "verdict", "record", "apply"))
_NUM_CURVED = 64  # a curve is drawn up to twice this batch size
_MOST_ROWS = 100  # of a view


def html_of(answer: object) -> str:
    """HTML of an answer for a notebook: sentences, tables and static figures, without scripts.

    Args:
        answer: an `Estimate`, `TuneResult`, `PredictedCurve`, `Profile` or a view of one.

    Raises:
        TypeError: there is no HTML of such an object.
    """
    return render_small(_page(answer))


def _page(answer: object) -> Page:
    match answer:
        case Estimate():
            said = tuple(estimate_in_words(answer, None))
            return _small(answer.workload, said, estimate_sections(answer, None))
        case TuneResult():
            return _small(answer.workload, answer_in_words(answer), _of_search(answer))
        case PredictedCurve():
            return _of_curve(answer)
        case Profile():
            return report_on_profile(answer)
        case PlanView():
            return _small("plan", (), plan_sections(answer))
        case View():
            rows: Any = answer.top(_MOST_ROWS)
            return _small(answer.kind, (), view_sections(rows, Filters()))
    raise TypeError(f"notebooks show no {type(answer).__name__}")


def _small(title: str, said: tuple[str, ...], sections: Iterable[Section]) -> Page:
    kept = tuple(section for section in sections if section.name not in _BESIDE)
    return Page(title=title, answer=said, facts=(), sections=kept)


def _of_search(result: TuneResult) -> Iterator[Section]:
    yield from parallels(result) if result.parallels else frontier(result)
    if result.chosen is not None:
        lines = (f'result.write("{name}", …)' for name in ("transformers-json", "accelerate"))
        yield Section(name="write", title="Into a trainer's file", blocks=(Code(tuple(lines)),))


def _of_curve(curve: PredictedCurve) -> Page:
    """Page of a curve's likely and highest peaks; of one that traces each size, a sentence alone."""
    if curve.needs_traces:
        said = (f"{curve.workload}: each batch size costs a trace, which curve(batch_size) makes.",)
        return _small(curve.workload, said, ())
    likely, highest = curves_around(curve, _NUM_CURVED)
    low, high = likely.batch_sizes[0], likely.batch_sizes[-1]
    said = (f"{curve.workload} on {curve.card.name}: predicted peaks from batch {low} to {high}.",)
    return _small(curve.workload, said, curves_section((likely, highest), (), None))
