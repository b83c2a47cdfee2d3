"""Predictions that a search makes before any trial: its target, search space and peak curves."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autofit.errors import UntimedCardError
from autofit.events import EventSink
from autofit.hardware import gpus
from autofit.predict import plan_sources
from autofit.predict.predictor import Predictor, local_predictor
from autofit.predict.times.step_times import why_untimed
from autofit.settings.goals import Maximized, Objective
from autofit.settings.target import Target, among_ranks_of_script, resolve_target
from autofit.settings.tune_settings import TuneSettings
from autofit.tuning.curves import CurveSet, curves_of, expect_curves
from autofit.tuning.frontier import Cap
from autofit.tuning.longest import at_their_longest
from autofit.tuning.scope import as_the_workload_has_it, capped, conv_algos, search_space
from autofit.tuning.trials import Measuring
from autofit_workers.process.operating_system import num_processors
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialSpec, WorkloadRef
from autofit_workers.spec.setup import Setup
from autofit_workers.trials import door
from autofit_workers.trials.door import start_predictor

if TYPE_CHECKING:
    from autofit.search.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Inputs and predictions of a search, before its first trial.

    Attributes:
        started: time when the search began, by the monotonic clock.
        target: card or CPU that is searched for, its memory budget, and how trials measure.
        spec: specification with the fields that all trials share.
        space: knob settings and batch sizes to search.
        curves: predicted peak curve of each knob setting.
        caps: for knob settings whose search ends at a smaller batch than that of others, the reason.
        notes: sentences for the user, on settings that are left out and on the predictions.
    """

    started: float
    target: Target
    spec: TrialSpec
    predictor: Predictor
    space: SearchSpace
    curves: CurveSet
    caps: dict[Knobs, Cap]
    notes: tuple[str, ...]


def predict(
    settings: TuneSettings,
    workload: WorkloadRef,
    measuring: Measuring,
    emit: EventSink,
    predictor_of: Callable[[Setup], Predictor] | None,
) -> Predicted:
    """Prepares a search: finds its card and budget, its search space, and the peak curves of its settings.

    Args:
        measuring: runs trials; used only if something has to be measured.
        predictor_of: returns an existing predictor of the workload for a setup (mode, ranks, kind of
            batches), used if nothing is measured; None to make one.

    Raises:
        AutofitError: a requested device or model does not exist, or the workload fails.
    """
    started = time.monotonic()
    target = resolve_target(settings, local_gpus=gpus.local_gpus, reachable=measuring.devices)
    _require_times(settings, target)
    of_script = workload.script is not None
    algos = conv_algos(settings, target, of_script=of_script)
    if target.probe is not None:
        measuring.begin_to_connect()
    spec = common_spec(settings, workload, target)
    predictor = (
        predictor_for(spec, target, emit, fresh=settings.fresh)
        if predictor_of is None
        else predictor_of(spec.setup)
    )
    with predictor.traces.tracing_ahead():
        space, left_out = search_space(settings, algos, predictor)
        space, notes_on_samples = as_the_workload_has_it(space, predictor)
        if predictor.traces.any is not None:
            target = among_ranks_of_script(target, predictor.traces.any)
            spec = common_spec(settings, workload, target)
        if settings.maximize is Maximized.SEQ_LEN:
            space, on_sizes = at_their_longest(
                space,
                target,
                predictor,
                batch_size=settings.batch_size or 1,
                allows_long=settings.setup.allows_long,
                risk=settings.risk,
            )
            left_out = (*on_sizes, *left_out)
        expect_curves(predictor, space)
        if target.probe is not Probe.CPU:
            predictor.prepare(space.settings[0], target.card, space.min_batch)
        curves, notes = curves_of(
            space, target, predictor, spec, measuring.submit, risk=settings.risk, address=settings.address
        )
    space, caps = capped(space, curves)
    return Predicted(
        started=started,
        target=target,
        spec=spec,
        predictor=predictor,
        space=space,
        curves=curves,
        caps=caps,
        notes=(*left_out, *notes_on_samples, *notes),
    )


def predictor_for(spec: TrialSpec, target: Target, emit: EventSink, *, fresh: bool) -> Predictor:
    """Makes the predictor of a workload's memory on a card or, if trials run on the CPU, on the host.

    For a card, the installed PyTorch must pass a self-test. For the CPU it need not, as predictions only
    choose the sizes that are measured first.

    Args:
        fresh: whether to make traces even where equal ones are kept from earlier questions.
    """
    if target.probe is Probe.CPU:
        if spec.workload.script is None:  # a script gets processes of its own
            with suppress(OSError):  # the first prediction reports it
                start_predictor(for_host=True)
        return Predictor(
            spec.workload,
            door.run,
            setup=spec.setup,
            emit=emit,
            for_host=True,
            num_threads=spec.num_threads,
        )
    plan_sources.prepare(target.card.architecture, spec.setup.torch)
    return local_predictor(spec.workload, setup=spec.setup, emit=emit, several=True, fresh=fresh)


def _require_times(settings: TuneSettings, target: Target) -> None:
    """Raises `UsageError` if throughput is to be maximized and can be neither measured nor predicted."""
    if settings.objective is not Objective.THROUGHPUT or target.probe is not None:
        return
    if (why := why_untimed(target.card, settings.setup.parallel)) is not None:
        raise UntimedCardError(
            f"--objective throughput needs step times, but {why}; otherwise drop --objective, or measure the "
            "CPU with --device cpu"
        )


def _num_threads(settings: TuneSettings, target: Target) -> int | None:
    """Number of threads of a CPU trial; None unless trials run on the CPU.

    The number of threads affects memory, so it is fixed for all trials of a study. Ranks on one machine share
    its cores.
    """
    if target.probe is not Probe.CPU:
        return None
    num_here = settings.setup.num_ranks // settings.num_nodes_of_trials
    return settings.num_threads or max(1, num_processors() // num_here)


def common_spec(settings: TuneSettings, workload: WorkloadRef, target: Target) -> TrialSpec:
    """Specification of a trial with the fields that are equal in all trials of a search."""
    return TrialSpec(
        workload=workload,
        batch_size=1,
        probe=target.probe or Probe.PREDICT,
        setup=settings.setup,
        budget_bytes=target.budget.usable_bytes,
        architecture=target.card.architecture,
        num_threads=_num_threads(settings, target),
        num_nodes=settings.num_nodes_of_trials,
        deadline_seconds=settings.deadline_seconds,
        is_own_budget=target.is_own_budget,
    )
