"""The Python interface: `tune`, `estimate`, `check`, `peak_curve`.

This is where the parts are put together: settings, target, predictor, study, dispatcher, tuner.
Nothing of the caller's process is changed: workloads run in child processes.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import workers
from autofit import gpus, plan_sources
from autofit.budget import DEFAULT_ARCHITECTURE, assumed_context
from autofit.checking import check_settings, run_check
from autofit.confidence import Risk, shipped_residuals
from autofit.curve_set import CurveSet
from autofit.dispatch.base import Devices, Dispatcher
from autofit.errors import (
    AutofitError,
    UnknownModelError,
    UsageError,
    WorkloadFailedError,
    did_you_mean,
)
from autofit.host_prediction import HostCurve, HostProcess, baseline_spec
from autofit.prediction import UNPREDICTABLE, Card, PredictedCurve, Predictor
from autofit.report.cards import card_answers
from autofit.report.check import CheckResult
from autofit.report.estimate import Estimate
from autofit.report.result import Best, CardAnswer, TuneResult
from autofit.report.risks import with_risks
from autofit.search.boundary import largest_fitting_batch
from autofit.self_test import checked, told_version
from autofit.service.events import EventSink, TuneFinished, TuneStarted, ignore
from autofit.settings import TuneSettings, resolve_settings
from autofit.target import Target, resolve_target
from autofit.tuner import Tuner
from workers.knobs import conv
from workers.protocol import CONV_ALGOS, Knobs, Probe, TrialOutcome, TrialSpec, WorkloadRef
from workers.run import start_predictor
from workers.workload import UnknownWorkloadError, Workload, WorkloadError, parse_reference

if TYPE_CHECKING:
    from autofit.search.space import SearchSpace
    from autofit.search.study import TuningStudy


def _ray(address: str) -> Dispatcher:
    from autofit.dispatch.ray import RayDispatcher

    return RayDispatcher(address)


class KnobOptions(TypedDict, total=False):
    """The fields of `Knobs`, as keyword arguments of `estimate` and `peak_curve`."""

    conv_algo: str
    precision: str
    memory_format: str
    optimizer: str | None
    optimizer_impl: str
    set_to_none: bool


def tune(workload: Workload | str, *, on_event: EventSink | None = None, **options: Any) -> TuneResult:
    """Finds the largest batch that fits, for every convolution algorithm asked for.

    Args:
        workload: a `Workload`, or what `Workload.load` takes.
        on_event: receives the events of `autofit.service.events` while the search runs.
        options: those of `autofit tune`, with `_` for `-`: `gpu_mem="16G"` or `gpu="rtx-3090"`,
            `device`, `probe`, `conv_algo`, `precision`, `memory_format`, `optimizer`, `optimizer_impl`,
            `set_to_none`, `mode`, `max_batch`, `risk`, …

    Raises:
        UsageError: an option is wrong, or neither a card nor its memory is known.
        WorkloadFailedError: the workload fails, whatever the batch.
        InfrastructureError: storage, cluster or driver fail.
    """
    if misplaced := options.keys() & {"model", "metrics_port", "metrics_host"}:
        raise UsageError(
            f"tune() takes no {', '.join(sorted(misplaced))}: the workload is its first argument, and "
            "metrics are an event sink, on_event=autofit.service.metrics.Metrics(registry)"
        )
    model = workload if isinstance(workload, str) else workload.name or "workload"
    settings = resolve_settings({**options, "model": model}, {}, None)
    reference = _referred(workload, settings.input_shape, settings.num_classes)
    return run(settings, reference, emit=on_event or ignore)


def estimate(
    workload: Workload | str,
    *,
    batch_size: int,
    gpu: str | None = None,
    mode: str | None = None,
    **knobs: Unpack[KnobOptions],
) -> Estimate:
    """Predicts the peak memory of one configuration, from one trace at that size.

    Args:
        gpu: a card of the catalogue; without it an sm_80 card is assumed.
        mode: `train` or `infer`, instead of the workload's own.
        knobs: the fields of `Knobs`: `conv_algo`, `precision`, `memory_format`, `optimizer`,
            `optimizer_impl`, `set_to_none`.

    Raises:
        UsageError: a card, a knob or such a batch size does not exist.
        WorkloadFailedError: the workload fails, or cannot be predicted.
    """
    setting = _knobs(knobs)
    predictor = local_predictor(_referred(workload), mode=mode)
    return predictor.estimate(setting, card_named(gpu), batch_size)


def check(workload: Workload | str, *, batch_size: int, **options: Any) -> CheckResult:
    """Says whether one configuration fits: surely, surely not, or neither; from one trace.

    Args:
        workload: a `Workload`, or what `Workload.load` takes.
        options: those of `autofit check`, with `_` for `-`: `gpu_mem="16G"` or `gpu="rtx-3090"`, else
            the local card; `conv_algo`, `precision`, `optimizer`, `mode`, `margin`, `reserve`, …

    Raises:
        UsageError: an option is wrong, or neither a card nor its memory is known.
        WorkloadFailedError: the workload fails, or cannot be predicted.
    """
    model = workload if isinstance(workload, str) else workload.name or "workload"
    settings = check_settings({**options, "model": model})
    reference = _referred(workload, settings.input_shape, settings.num_classes)
    return run_check(settings, local_predictor(reference, mode=settings.mode), batch_size)


def peak_curve(
    workload: Workload | str,
    *,
    gpu: str | None = None,
    mode: str | None = None,
    **knobs: Unpack[KnobOptions],
) -> PredictedCurve:
    """Predicts peak memory as a function of the batch size: `curve(batch_size)` is an `Estimate`.

    The curve costs three traces; after that a batch size costs milliseconds. Arguments and errors
    are those of `estimate`.
    """
    setting = _knobs(knobs)
    predictor = local_predictor(_referred(workload), mode=mode)
    return predictor.curve(setting, card_named(gpu))


def run(
    settings: TuneSettings,
    workload: WorkloadRef,
    *,
    emit: EventSink,
    connect: Callable[[str], Dispatcher] = _ray,
) -> TuneResult:
    """Runs a search with resolved settings; `tune` and the command line end here.

    Args:
        emit: takes the events.
        connect: makes the dispatcher of measured trials from an address, once there are any.
    """
    started = time.monotonic()
    with _Measuring(lambda: connect(settings.address or "local")) as measuring:
        target = resolve_target(settings, local_gpus=gpus.local_gpus, reachable=measuring.devices)
        algos = _conv_algos(settings, target)
        with suppress(OSError):  # the first prediction says it in words
            start_predictor(for_host=target.probe is Probe.CPU)
        if target.probe is Probe.CPU:
            baseline = measuring.start(
                baseline_spec(
                    num_threads=_num_threads(settings, target), deadline_seconds=settings.deadline_seconds
                )
            )
            predictor = Predictor(
                workload,
                workers.run,
                mode=settings.mode,
                emit=emit,
                for_host=True,
                num_threads=_num_threads(settings, target),
            )
            space = _search_space(settings, algos, predictor)
            curves, notes = _predict_for_host(predictor, baseline, space, settings.risk)
        else:
            plan_sources.prepare()
            predictor = local_predictor(workload, mode=settings.mode, emit=emit)
            space = _search_space(settings, algos, predictor)
            curves, notes = _predict(predictor, target, space, settings.risk)
        with _open_study(settings, workload, target, space, curves) as study:
            emit(
                TuneStarted(workload=workload.name, budget_bytes=target.budget.usable_bytes, study=study.name)
            )
            frontier = Tuner(
                spec=_common_spec(settings, workload, target),
                study=study,
                curves=curves,
                measure=None if target.probe is None else measuring.run,
                emit=emit,
            ).run()
            best = frontier.best()
            trials = tuple(record.outcome for record in study.outcomes())
            result = TuneResult(
                workload=workload.name,
                budget=target.budget,
                device=target.device if target.probe is None else trials[-1].device,
                best=best,
                frontier=with_risks(
                    frontier.entries(),
                    curves.by_knobs,
                    budget_bytes=target.budget.usable_bytes,
                    min_batch=space.min_batch,
                    max_batch=space.max_batch,
                    emit=emit,
                ),
                trials=trials,
                wall_seconds=time.monotonic() - started,
                study=study.name,
                fingerprint=study.fingerprint,
                versions=versions(),
                estimate=_estimate(curves, space, best),
                cards=_cards(settings, space, curves, best, emit),
                notes=notes,
                risk=settings.risk,
            )
    emit(
        TuneFinished(
            workload=workload.name,
            best_batch=None if best is None else best.batch_size,
            best_knobs=None if best is None else best.knobs,
            num_trials=len(trials),
            wall_seconds=result.wall_seconds,
        )
    )
    return result


def local_predictor(workload: WorkloadRef, *, mode: str | None = None, emit: EventSink = ignore) -> Predictor:
    """A predictor that traces on this machine, once the PyTorch here is known to be understood."""
    return Predictor(workload, checked(workers.run), mode=mode, emit=emit)


def versions() -> dict[str, str]:
    """What the answer was made with."""
    distributions = ("autofit", "ray", "optuna")
    return {
        "python": platform.python_version(),
        "torch": told_version(importlib.metadata.version("torch")),
        **{name: importlib.metadata.version(name) for name in distributions},
    }


def refer(
    text: str, *, input_shape: tuple[int, ...] | None = None, num_classes: int | None = None
) -> WorkloadRef:
    """What `--model`, `--input` and `--classes` refer to; nothing of it is imported.

    Raises:
        UnknownModelError: no such model; near matches are named.
        UsageError: the reference is malformed, or its file is missing.
    """
    try:
        return parse_reference(text, input_shape=input_shape, num_classes=num_classes, cwd=Path.cwd())
    except UnknownWorkloadError as error:
        raise UnknownModelError(str(error)) from error
    except WorkloadError as error:
        raise UsageError(str(error)) from error


class _Measuring:
    """The dispatcher of a search, connected once something asks for it."""

    def __init__(self, connect: Callable[[], Dispatcher]) -> None:
        self._connect = connect
        self._dispatcher: Dispatcher | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._dispatcher is not None:
            self._dispatcher.close()

    def devices(self) -> Devices:
        return self._connected().devices()

    def start(self, spec: TrialSpec) -> Future[TrialOutcome]:
        return self._connected().submit(spec)

    def run(self, spec: TrialSpec) -> TrialOutcome:
        return self._connected().submit(spec).result()

    def _connected(self) -> Dispatcher:
        if self._dispatcher is None:
            self._dispatcher = self._connect()
        return self._dispatcher


def _conv_algos(settings: TuneSettings, target: Target) -> tuple[str, ...]:
    """The algorithms to search: all that mean something on the device, unless some were named."""
    applicable = conv.applicable(target.device.kind)
    algos = tuple(name for name in settings.conv_algos if name in applicable)
    if settings.conv_algos not in (CONV_ALGOS, algos):
        misplaced = ", ".join(name for name in settings.conv_algos if name not in applicable)
        raise UsageError(
            f"--conv-algo {misplaced} does not apply to {target.device.kind}: "
            f"leave it out, or choose from {', '.join(applicable)}"
        )
    return algos


def _search_space(settings: TuneSettings, algos: tuple[str, ...], predictor: Predictor) -> SearchSpace:
    from autofit.search.space import SearchSpace

    fixed = settings.knobs()
    return SearchSpace(
        choices={"conv_algo": algos},
        fixed=fixed,
        min_batch=_smallest_batch(predictor, fixed, settings.max_batch),
        max_batch=settings.max_batch,
    )


def _smallest_batch(predictor: Predictor, knobs: Knobs, max_batch: int) -> int:
    """1, or 2 where the step cannot do with one sample: a contrastive loss, some batch norms."""
    try:
        predictor.trace(knobs, 1)
    except AutofitError as error:
        if error.kind in UNPREDICTABLE:
            return 1
        if not isinstance(error, WorkloadFailedError) or max_batch == 1:
            raise
        return 2
    return 1


def _open_study(
    settings: TuneSettings, workload: WorkloadRef, target: Target, space: SearchSpace, curves: CurveSet
) -> TuningStudy:
    from autofit.search.study import TuningStudy

    return TuningStudy.open(
        space,
        budget_bytes=target.budget.usable_bytes,
        settings=_identity(settings, workload, target, curves),
        label=f"{workload.name}-{target.device.name}",
        name=settings.study,
        storage=settings.storage,
        fresh=settings.fresh,
        curves=curves.prior,
        seed=0,
    )


def _identity(
    settings: TuneSettings, workload: WorkloadRef, target: Target, curves: CurveSet
) -> dict[str, Any]:
    """What beside space and budget decides the outcomes of a study.

    The trace stands for the code that the workload's own file imports.
    """
    return {
        "workload": dataclasses.asdict(dataclasses.replace(workload, payload_base64=None)),
        "trace_sha256": curves.trace_digest,
        "mode": settings.mode,
        "risk": settings.risk,
        "residuals_sha256": shipped_residuals().digest,
        "probe": Probe.PREDICT if target.probe is None else target.probe,
        "card": target.card.name,
        "architecture": target.card.architecture,
        "num_threads": _num_threads(settings, target),
        "versions": versions(),
    }


def _num_threads(settings: TuneSettings, target: Target) -> int | None:
    """Threads of a CPU trial: they move its memory, so the number is fixed for all trials of a study."""
    if target.probe is not Probe.CPU:
        return None
    return settings.num_threads or len(os.sched_getaffinity(0))


def _common_spec(settings: TuneSettings, workload: WorkloadRef, target: Target) -> TrialSpec:
    return TrialSpec(
        workload=workload,
        batch_size=1,
        probe=target.probe or Probe.PREDICT,
        mode=settings.mode,
        budget_bytes=target.budget.usable_bytes,
        architecture=target.card.architecture,
        num_threads=_num_threads(settings, target),
        deadline_seconds=settings.deadline_seconds,
    )


def _predict(
    predictor: Predictor, target: Target, space: SearchSpace, risk: Risk
) -> tuple[CurveSet, tuple[str, ...]]:
    """The curve of every setting, as far as there are any, and what should be known of them."""
    curves = CurveSet()
    try:
        for knobs in space.settings:
            curves.add(knobs, predictor.curve(knobs, target.card, risk=risk))
    except AutofitError as error:
        if target.probe is None or error.kind not in UNPREDICTABLE:
            raise
        return curves, (f"no prediction guided the search: {error.message}",)
    if target.probe is None:
        _confirm(predictor, target, space, curves, risk)
    if not curves.needs_traces:
        return curves, ()
    differs = "the step allocates differently at every batch size"
    if target.probe is not None:
        return curves, (f"no prediction guided the search: {differs}",)
    return curves, (
        f"{differs}, so each size tried was traced; sizes beyond the first that fails were not looked at",
    )


def _predict_for_host(
    predictor: Predictor, baseline: Future[TrialOutcome], space: SearchSpace, risk: Risk
) -> tuple[CurveSet, tuple[str, ...]]:
    """Where the search of every setting begins on the CPU; what cannot be predicted is measured."""
    curves = CurveSet()
    try:
        blocks = {knobs: predictor.host_blocks(knobs) for knobs in space.settings}
    except AutofitError as error:
        return curves, (f"no prediction guided the search: {error.message}",)
    process = HostProcess.of(baseline.result())
    for knobs, found in blocks.items():
        if found is not None:
            curves.add_host(knobs, HostCurve(found, process, risk=risk), trace_digest=found.digest)
    if None in blocks.values():
        return curves, (
            "no prediction guided the search: the step allocates differently at every batch size",
        )
    return curves, ()


def _confirm(predictor: Predictor, target: Target, space: SearchSpace, curves: CurveSet, risk: Risk) -> None:
    """Traces the sizes that the curves answer with; where one differs, traces replace the curves."""
    answers: dict[int, Knobs] = {}
    for knobs in space.settings:
        prior = curves.prior(knobs)
        if prior is not None:
            scan = largest_fitting_batch(
                prior, target.budget.usable_bytes, min_batch=space.min_batch, max_batch=space.max_batch
            )
            answers.setdefault(scan.largest_batch or space.min_batch, knobs)
    if not all(predictor.confirm(knobs, batch_size) for batch_size, knobs in answers.items()):
        for knobs in space.settings:
            curves.add(knobs, predictor.curve(knobs, target.card, risk=risk))


def _estimate(curves: CurveSet, space: SearchSpace, best: Best | None) -> Estimate | None:
    """The prediction of the answer, or of the smallest size where nothing fits."""
    knobs, batch_size = (
        (space.settings[0], space.min_batch) if best is None else (best.knobs, best.batch_size)
    )
    curve = curves.by_knobs.get(knobs)
    return None if curve is None else curve(batch_size)


def _cards(
    settings: TuneSettings, space: SearchSpace, curves: CurveSet, best: Best | None, emit: EventSink
) -> tuple[CardAnswer, ...]:
    """The best setting's batch on the cards that `--gpu-mem` may mean."""
    curve = None if best is None else curves.by_knobs.get(best.knobs)
    if settings.gpu_mem_bytes is None or curve is None or curve.needs_traces:
        return ()
    return card_answers(
        curve,
        gpus.gpus_sold_as(settings.gpu_mem_bytes),
        margin=settings.margin,
        reserve_bytes=settings.reserve_bytes,
        min_batch=space.min_batch,
        max_batch=space.max_batch,
        emit=emit,
    )


def _referred(
    workload: Workload | str, input_shape: tuple[int, ...] | None = None, num_classes: int | None = None
) -> WorkloadRef:
    if isinstance(workload, str):
        return refer(workload, input_shape=input_shape, num_classes=num_classes)
    if input_shape is not None or num_classes is not None:
        raise UsageError("a Workload makes its own batches: leave out input and classes")
    try:
        return workload.reference()
    except WorkloadError as error:
        raise UsageError(str(error)) from error


def _knobs(given: KnobOptions) -> Knobs:
    names = [knob.name for knob in dataclasses.fields(Knobs)]
    if unknown := sorted(given.keys() - names):
        raise UsageError(f"unknown option {unknown[0]!r}.{did_you_mean(unknown[0], names)}")
    try:
        return Knobs(**given)
    except ValueError as error:
        raise UsageError(str(error)) from error


def card_named(name: str | None) -> Card:
    """The card that a prediction assumes: one of the catalogue, or any of `DEFAULT_ARCHITECTURE`."""
    if name is None:
        context, _ = assumed_context(None)
        return Card(
            name=DEFAULT_ARCHITECTURE, architecture=DEFAULT_ARCHITECTURE, context_bytes=context.high_bytes
        )
    gpu = gpus.find_gpu(name)
    context, _ = assumed_context(gpu.architecture, gpu.key)
    return Card(name=gpu.key, architecture=gpu.architecture, context_bytes=context.high_bytes)
