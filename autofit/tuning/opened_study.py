"""Opens the study of a search, with the inputs that decide its outcomes, and its goal."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from autofit.identity import versions
from autofit.predict.confidence import shipped_residuals
from autofit.search.agenda import Goal
from autofit.settings.target import Target, gpu_label
from autofit.settings.tune_settings import TuneSettings
from autofit.tuning.curves import CurveSet
from autofit.tuning.predictions import Predicted
from autofit.tuning.scope import pruning_of
from autofit_workers.spec.former import former_module
from autofit_workers.spec.protocol import Probe, TrialSpec, WorkloadRef
from autofit_workers.spec.setup import LIKELY_SHARE

if TYPE_CHECKING:
    from autofit.study.study import TuningStudy


# A size that fits for three steps may fail later as memory fragments; on the CPU the heap shows it sooner.
_SOAK_STEPS = {Probe.CUDA: 20, Probe.CPU: 5}


def open_study(settings: TuneSettings, predicted: Predicted) -> TuningStudy:
    """Opens the stored record (study) of a search's trials, and creates it if there is none.

    Args:
        predicted: search space, budget and predictions of the search.
    """
    from autofit.study.study import TuningStudy

    spec, target, space, curves = predicted.spec, predicted.target, predicted.space, predicted.curves
    return TuningStudy.open(
        space,
        budget_bytes=target.budget.usable_bytes,
        settings=_identity(settings, spec, target, curves, predicted.predictor.observations.digest),
        label=f"{spec.workload.name}-{target.device.name}",
        name=settings.study,
        storage=settings.storage,
        wait_seconds=settings.storage_wait_seconds,
        fresh=settings.fresh,
        curves=curves.guess,
        seed=0,
        goal=_goal(settings, spec),
        workload=spec.workload.name,
        gpu=gpu_label(settings, target.device),
        pruning=pruning_of(settings, target, space, curves),
    )


def _identity(
    settings: TuneSettings, spec: TrialSpec, target: Target, curves: CurveSet, observations: str
) -> dict[str, Any]:
    """Inputs that decide the outcomes of a search's trials, by name, besides search space and budget.

    Searches with equal inputs share their trials. The digest of the trace stands for the workload's code,
    including what its file imports.

    Args:
        observations: digest of the observed peaks that correct the predictions; empty if there are none.
    """
    share, parallel = settings.setup.nonzero_share, settings.setup.parallel
    return {
        **({"parallel": str(parallel), "rank": settings.setup.rank} if parallel.is_told else {}),
        **({} if settings.num_nodes == 1 or target.probe is None else {"num_nodes": settings.num_nodes}),
        **({} if share == LIKELY_SHARE else {"nonzero_share": share}),
        **({} if settings.setup.torch is None else {"torch": settings.setup.torch}),
        **({"observations_sha256": observations} if observations else {}),
        "workload": _kept(spec.workload),
        "trace_sha256": curves.trace_identity,
        "mode": settings.setup.mode,
        "worst_case": settings.setup.is_worst_case,
        "num_ranks": settings.setup.num_ranks,
        "risk": settings.risk,
        "residuals_sha256": shipped_residuals().digest,
        "probe": spec.probe,
        "card": target.card.name,
        "architectures": target.card.architectures,
        "num_threads": spec.num_threads,
        "versions": versions(),
    }


def _kept(workload: WorkloadRef) -> dict[str, Any]:
    """Workload reference as a dictionary that is stored with a study.

    The workload's code is left out, and modules have the names of autofit 0.2, so that older records match.
    """
    target = former_module(workload.target) if workload.kind == "import" else workload.target
    kept = dataclasses.asdict(dataclasses.replace(workload, target=target, payload_base64=None))
    return {name: value for name, value in kept.items() if name != "task" or value is not None}


def _goal(settings: TuneSettings, spec: TrialSpec) -> Goal:
    soak_steps = settings.soak_steps
    if soak_steps is None:
        soak_steps = _SOAK_STEPS.get(spec.probe, 0)
    return Goal(
        objective=settings.objective,
        num_steps=spec.num_steps,
        soak_steps=0 if spec.probe is Probe.PREDICT else soak_steps,
    )
