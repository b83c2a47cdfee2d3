"""Peak curves of a search's knob settings, which answer the search or give its first batch sizes."""

from __future__ import annotations

import bisect
import collections
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autofit.errors import AutofitError, WorkloadFailedError
from autofit.predict.convolutions.plan import ConvPlan
from autofit.predict.curve import PredictedCurve
from autofit.predict.failures import UNPREDICTABLE
from autofit.predict.host_curve import ASSUMED_PROCESS, HostCurve, HostProcess, baseline_spec
from autofit.predict.predictor import Predictor
from autofit.search.boundary import largest_fitting_batch
from autofit.search.curves import CachedCurve, Curve, line_through
from autofit.settings.goals import Risk
from autofit.settings.target import Target
from autofit_workers.replay.curve.conditions import MIXED
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES, PeakCurve
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec

if TYPE_CHECKING:
    from autofit.search.space import SearchSpace

Submit = Callable[[TrialSpec], Future[TrialOutcome]]
_DIFFERS = "the step allocates differently at every batch size"
_UNGUIDED_STEP = f"no prediction guided the search but a line through two sizes: {_DIFFERS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Predicted memory that one batch size needs.

    Attributes:
        likely_bytes: likely peak of the memory that counts against the budget: on a GPU reserved memory, on
            the CPU resident or private memory.
        workspace_bytes: part of this peak that operators take as scratch memory, besides their outputs.
    """

    likely_bytes: int
    workspace_bytes: int


class CurveSet:
    """Peak curves of a search (memory over the batch size), by knob setting; empty if nothing is predicted.

    Answers for the CPU are always measured. Curves for a step on the CPU only choose the batch sizes to try
    first.
    """

    def __init__(self) -> None:
        self._curves: dict[Knobs, PredictedCurve] = {}
        self._host_curves: dict[Knobs, HostCurve] = {}
        self._priors: dict[Knobs, CachedCurve] = {}
        self._lines: dict[Knobs, CachedCurve | None] = {}

    def add(self, knobs: Knobs, curve: PredictedCurve) -> None:
        self._curves[knobs] = curve

    def add_host(self, knobs: Knobs, curve: HostCurve) -> None:
        self._host_curves[knobs] = curve

    def of(self, knobs: Knobs) -> PredictedCurve:
        return self._curves[knobs]

    @property
    def by_knobs(self) -> dict[Knobs, PredictedCurve]:
        """Predicted curves for a card, by knob setting; curves for the CPU are not included."""
        return self._curves

    @property
    def needs_traces(self) -> bool:
        """Whether any knob setting has a curve that needs a new trace for each batch size."""
        return any(curve.needs_traces for curve in self._curves.values())

    @property
    def trace_identity(self) -> str | None:
        """Digest that identifies the traced step on which the curves rest; None if there are no curves."""
        on_card = next((curve.trace_identity for curve in self._curves.values()), None)
        return on_card or next((curve.trace_identity for curve in self._host_curves.values()), None)

    def guide(self, knobs: Knobs) -> PredictedCurve | HostCurve | None:
        """Predicted curve of a knob setting, even if each size costs a trace; None if there is no curve."""
        return self._curves.get(knobs) or self._host_curves.get(knobs)

    def guess(self, knobs: Knobs) -> Curve | None:
        """Predicted memory over the batch size, by which a search chooses the first size that it tries.

        If every size would need a trace of its own, it is a straight line through two traced sizes. None if
        nothing is predicted.
        """
        guide = self.guide(knobs)
        if guide is None or not guide.needs_traces:
            return self.prior(knobs)
        if knobs not in self._lines:
            self._lines[knobs] = None
            with suppress(ValueError, WorkloadFailedError):  # a data set may have fewer samples
                self._lines[knobs] = line_through(guide, TRACED_BATCH_SIZES[0], TRACED_BATCH_SIZES[-1])
        return self._lines[knobs]

    def prior(self, knobs: Knobs) -> Curve | None:
        """Curve of a knob setting that needs no further traces; None if there is no such curve."""
        guide = self.guide(knobs)
        if guide is None or guide.needs_traces:
            return None  # a scan over all sizes would cost a trace each
        if knobs not in self._priors:
            self._priors[knobs] = CachedCurve.of(guide)
        return self._priors[knobs]

    def conv_plan(self, knobs: Knobs, batch_size: int, budget_bytes: int) -> ConvPlan | None:
        """Convolution algorithm of each layer at a batch size; None unless the knob setting's is `mixed`."""
        curve = self._curves.get(knobs)
        if curve is None or knobs.conv_algo != MIXED:
            return None
        return curve.conv_plan(batch_size, budget_bytes)

    def need(self, knobs: Knobs, batch_size: int) -> Need:
        """Likely predicted memory of a configuration; the knob setting must have a curve."""
        host = self._host_curves.get(knobs)
        if host is not None:
            return Need(
                likely_bytes=host(batch_size).likely_bytes, workspace_bytes=host.workspace_bytes(batch_size)
            )
        estimate = self._curves[knobs].unlimited(batch_size)
        return Need(likely_bytes=estimate.interval.likely_bytes, workspace_bytes=estimate.breakdown.workspace)

    def cannot_run(self, knobs: Knobs, batch_size: int, budget_bytes: int) -> bool:
        """Whether even the low end of the predicted peak exceeds a budget; False if there is no curve."""
        guide = self.guide(knobs)
        if guide is None or guide.needs_traces:
            return False
        return guide.cannot_run(batch_size, budget_bytes)

    def at_most(self, knobs: Knobs, budget_bytes: int, sizes: Sequence[int]) -> int | None:
        """Largest of `sizes` whose low predicted peak is within the budget; 0 if none is.

        Larger batches surely do not fit, as even the low end of their predicted peak exceeds the budget. The
        result is None if the knob setting has no curve.
        """
        if self.prior(knobs) is None:
            return None
        num_possible = bisect.bisect_left(
            sizes, True, key=lambda size: self.cannot_run(knobs, size, budget_bytes)
        )
        return sizes[num_possible - 1] if num_possible else 0


def curves_of(
    space: SearchSpace,
    target: Target,
    predictor: Predictor,
    spec: TrialSpec,
    submit: Submit,
    *,
    risk: Risk,
    address: str | None,
) -> tuple[CurveSet, tuple[str, ...]]:
    """Peak curve of every knob setting that can be predicted, and sentences for the user.

    Args:
        spec: specification with the fields that all trials of the search share.
        submit: runs a trial; for a search on the CPU it is called once, to measure a process without a
            workload.
        risk: which value of a predicted peak has to fit: the likely one, the high end, or the worst case.
        address: address of the Ray cluster where trials run; None for this machine.

    Raises:
        AutofitError: the workload fails; or it cannot be predicted, and the search does not measure either.
    """
    if target.probe is Probe.CPU:
        process = functools.partial(host_process, spec, submit, address=address)
        return _on_the_cpu(predictor, process, space, risk)
    return _on_a_card(predictor, target, space, risk)


def _on_a_card(
    predictor: Predictor, target: Target, space: SearchSpace, risk: Risk
) -> tuple[CurveSet, tuple[str, ...]]:
    """Peak curves of all knob settings on a card, checked by traces at sizes found; notes for the user."""
    curves, failures = CurveSet(), []
    answers: list[tuple[Knobs, int]] = []
    for knobs in space.settings:
        only_batch = _only_batch(space, knobs)
        try:
            curves.add(knobs, predictor.curve(knobs, target.card, risk=risk, only_batch=only_batch))
        except AutofitError as error:
            if target.probe is None or error.kind not in UNPREDICTABLE:
                raise
            failures.append(error)
            continue
        if only_batch is not None:
            continue  # the curve was traced at its only batch size, so its peak needs no confirmation
        if target.probe is None and (prior := curves.prior(knobs)) is not None:
            usable_bytes, sizes = target.budget.usable_bytes, space.sizes(knobs)
            # A size that is too large by its likely peak, which takes the fewest replays, is too large at
            # every risk.
            largest_fitting_batch(curves.of(knobs).at_risk(Risk.LIKELY), usable_bytes, sizes=sizes)
            scan = largest_fitting_batch(prior, usable_bytes, sizes=sizes)
            answer = scan.largest_batch or space.min_batch
            answers.append((knobs, answer))
            predictor.expect_to_confirm(knobs, answer)
    notes = _on_unguided(failures, space)
    if target.probe is None:
        notes = (*notes, *_confirm(predictor, target, space, curves, answers, risk=risk))
    if not curves.needs_traces:
        return curves, notes
    if target.probe is not None:
        return curves, (*notes, _UNGUIDED_STEP)
    return curves, (
        f"{_DIFFERS}, so each size tried was traced; sizes beyond the first that fails were not tried",
    )


def expect_curves(predictor: Predictor, space: SearchSpace) -> None:
    """Announces all knob settings of a search to the predictor, so that it can make their traces ahead."""
    predictor.expect_curves([knobs for knobs in space.settings if _only_batch(space, knobs) is None])


def _only_batch(space: SearchSpace, knobs: Knobs) -> int | None:
    """Batch size of a knob setting that is limited to a single size; None if several sizes are possible."""
    return space.min_batch if space.caps.get(knobs) == space.min_batch else None


_host_processes: dict[tuple[str | None, int | None, str | None], HostProcess] = {}


def host_process(spec: TrialSpec, submit: Submit, *, address: str | None) -> HostProcess:
    """Memory of a CPU trial's process without a workload; measured once in this process.

    The memory depends on the machine, the number of threads, and the libraries that the workload imports.
    Those are only imported for a pickled workload, as of a trainer; others are taken to import little besides
    PyTorch. If the memory cannot be measured, a typical value is assumed, and the next search measures again.

    Args:
        spec: specification with the fields that all trials of the search share.
        submit: runs the trial that measures the process.
        address: address of the Ray cluster where trials run; None for this machine.
    """
    pickled = spec.workload if spec.workload.kind == "pickle" else None
    for libraries_of in (pickled, None) if pickled else (None,):
        digest = None if libraries_of is None else libraries_of.source_sha256
        place = address, spec.num_threads, digest
        if place not in _host_processes:
            baseline = baseline_spec(
                num_threads=spec.num_threads,
                deadline_seconds=spec.deadline_seconds,
                libraries_of=libraries_of,
            )
            measured = HostProcess.of(submit(baseline).result())
            if measured is ASSUMED_PROCESS:  # a model that cannot be built without memory, or a lost trial
                continue
            _host_processes[place] = measured
        return _host_processes[place]
    return ASSUMED_PROCESS


def _on_the_cpu(
    predictor: Predictor, process: Callable[[], HostProcess], space: SearchSpace, risk: Risk
) -> tuple[CurveSet, tuple[str, ...]]:
    """Peak curves of all knob settings on the CPU, to choose first sizes; and sentences on missing curves.

    Args:
        process: returns the memory of a process without a workload; first called when a curve is evaluated,
            so that a search that is already complete does not measure it.
    """
    curves, failures = CurveSet(), []
    steps: dict[Knobs, PeakCurve] = {}
    for knobs in space.settings:
        try:
            steps[knobs] = predictor.host_steps(knobs)
        except AutofitError as error:
            failures.append(error)
    notes = _on_unguided(failures, space)

    process = functools.cache(process)  # also if it has to be assumed
    for knobs, found in steps.items():
        curves.add_host(knobs, HostCurve(found, process, risk=risk))
    if any(found.needs_traces for found in steps.values()):
        return curves, (*notes, _UNGUIDED_STEP)
    return curves, notes


def _on_unguided(failures: Sequence[AutofitError], space: SearchSpace) -> tuple[str, ...]:
    """Sentences on why some knob settings have no predicted curve, one for each distinct reason."""
    total = len(space.settings)
    return tuple(
        f"no prediction guided {'the search' if count == total else f'{count} of {total} settings'}: {why}"
        for why, count in collections.Counter(error.message for error in failures).items()
    )


def _confirm(
    predictor: Predictor,
    target: Target,
    space: SearchSpace,
    curves: CurveSet,
    answers: Sequence[tuple[Knobs, int]],
    *,
    risk: Risk,
) -> tuple[str, ...]:
    """Checks the largest sizes that were found on curves, by a trace each; replaces all curves if one fails.

    A check fails if a trace at the size itself has another peak than the curve, which is computed from traces
    at a few small sizes. The curves that replace it are made anew, and trace every size if needed.

    Args:
        answers: knob settings, each with the largest batch size that fits by its curve.

    Returns:
        Sentences on sizes at which the user's script itself fails, for example because its evaluation needs
        more data.
    """
    # After a first difference the other sizes are still checked, as each check may replace its own curve.
    agreed, failures = [], {}
    for knobs, batch_size in answers:
        try:
            agreed.append(predictor.confirm(knobs, target.card, batch_size))
        except WorkloadFailedError as error:
            if predictor.traces.follows_script and error.kind == WorkloadFailedError.kind:
                failures[batch_size] = error.message
                continue
            raise
    if not all(agreed):
        for knobs in space.settings:
            only_batch = _only_batch(space, knobs)
            curves.add(knobs, predictor.curve(knobs, target.card, risk=risk, only_batch=only_batch))
    return tuple(
        f"at batch size {batch_size} the script fails, and not for want of memory: {message}"
        for batch_size, message in failures.items()
    )
