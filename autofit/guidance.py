"""The curves that a search begins with, and what should be known of them."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from autofit.curve_set import CurveSet
from autofit.errors import AutofitError
from autofit.predict.host_curve import HostCurve, HostProcess, baseline_spec
from autofit.predict.predictor import UNPREDICTABLE, Predictor
from autofit.search.boundary import largest_fitting_batch
from autofit.settings.goals import Risk
from autofit.settings.target import Target
from workers.predict.host_blocks import HostBlocks
from workers.protocol import Knobs, Probe, TrialOutcome, TrialSpec

if TYPE_CHECKING:
    from autofit.search.space import SearchSpace

Submit = Callable[[TrialSpec], Future[TrialOutcome]]

_DIFFERS = "the step allocates differently at every batch size"
_UNGUIDED_STEP = f"no prediction guided the search: {_DIFFERS}"


def curves_of(
    space: SearchSpace, target: Target, predictor: Predictor, spec: TrialSpec, submit: Submit, *, risk: Risk
) -> tuple[CurveSet, tuple[str, ...]]:
    """The curve of every setting, as far as there are any, and what should be known of them.

    Args:
        spec: what all trials of the search have in common.
        submit: runs the trial that shows what a process costs on the CPU, if one is needed.

    Raises:
        AutofitError: the workload fails; or nothing measures it, and it cannot be predicted.
    """
    if target.probe is Probe.CPU:
        return _on_the_cpu(predictor, submit, spec, space, risk)
    return _on_a_card(predictor, target, space, risk)


def _on_a_card(
    predictor: Predictor, target: Target, space: SearchSpace, risk: Risk
) -> tuple[CurveSet, tuple[str, ...]]:
    curves, failures = CurveSet(), []
    for knobs in space.settings:
        try:
            curves.add(knobs, predictor.curve(knobs, target.card, risk=risk))
        except AutofitError as error:
            if target.probe is None or error.kind not in UNPREDICTABLE:
                raise
            failures.append(error)
    notes = _on_unguided(failures, space)
    if target.probe is None:
        _confirm(predictor, target, space, curves, risk)
    if not curves.needs_traces:
        return curves, notes
    if target.probe is not None:
        return curves, (*notes, _UNGUIDED_STEP)
    return curves, (
        f"{_DIFFERS}, so each size tried was traced; sizes beyond the first that fails were not looked at",
    )


def _on_the_cpu(
    predictor: Predictor, submit: Submit, spec: TrialSpec, space: SearchSpace, risk: Risk
) -> tuple[CurveSet, tuple[str, ...]]:
    """Where the search of every setting begins on the CPU; what cannot be predicted is measured."""
    curves, failures = CurveSet(), []
    blocks: dict[Knobs, HostBlocks] = {}
    for knobs in space.settings:
        try:
            blocks[knobs] = predictor.host_blocks(knobs)
        except AutofitError as error:
            failures.append(error)
    notes = _on_unguided(failures, space)

    @functools.cache  # measured once, and not at all where no trial is left to choose
    def process() -> HostProcess:
        baseline = baseline_spec(num_threads=spec.num_threads, deadline_seconds=spec.deadline_seconds)
        return HostProcess.of(submit(baseline).result())

    for knobs, found in blocks.items():
        curves.add_host(knobs, HostCurve(found, process, risk=risk), trace_digest=found.digest)
    if any(found.needs_traces for found in blocks.values()):
        return curves, (*notes, _UNGUIDED_STEP)
    return curves, notes


def _on_unguided(failures: Sequence[AutofitError], space: SearchSpace) -> tuple[str, ...]:
    """Why settings have no prediction to begin at, a sentence for each reason."""
    total = len(space.settings)
    return tuple(
        f"no prediction guided {'the search' if count == total else f'{count} of {total} settings'}: {why}"
        for why, count in collections.Counter(error.message for error in failures).items()
    )


def _confirm(predictor: Predictor, target: Target, space: SearchSpace, curves: CurveSet, risk: Risk) -> None:
    """Traces the sizes that the curves answer with; where one differs, traces replace the curves."""
    answers: dict[int, Knobs] = {}
    for knobs in space.settings:
        prior = curves.prior(knobs)
        if prior is not None:
            scan = largest_fitting_batch(prior, target.budget.usable_bytes, sizes=space.sizes(knobs))
            answers.setdefault(scan.largest_batch or space.min_batch, knobs)
    if not all(predictor.confirm(knobs, batch_size) for batch_size, knobs in answers.items()):
        for knobs in space.settings:
            curves.add(knobs, predictor.curve(knobs, target.card, risk=risk))
