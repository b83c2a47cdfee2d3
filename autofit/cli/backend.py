"""Functions that the commands call, and the class `Backend`, by which tests replace them.

Each function imports what it needs when it is called, so that a command that asks another one starts faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from autofit.events import EventSink
    from autofit.explain.profile import Profile
    from autofit.explain.snapshots.run import Run
    from autofit.hardware.card import Card
    from autofit.hardware.gpus import LocalGpu
    from autofit.locks.configurations import Configuration
    from autofit.locks.lock_file import LockedConfiguration
    from autofit.predict.estimate import Estimate
    from autofit.predict.predictor import Predictor
    from autofit.questions.cards import CardsAnswer, CardsQuestion
    from autofit.questions.check import CheckResult
    from autofit.questions.compare import Comparison
    from autofit.questions.conv_layers import ConvLayers
    from autofit.questions.doctor import Check
    from autofit.questions.failures.explained import ExplainedError
    from autofit.questions.kv import KvCache, KvQuestion
    from autofit.questions.real_runs.observe import ObservedPeak, RealPeak
    from autofit.questions.real_runs.snapshot import ObservedSnapshot
    from autofit.questions.summary import SummarizedEstimate
    from autofit.questions.what_if import WhatIf
    from autofit.report.html.page import Page
    from autofit.settings.tune_settings import TuneSettings
    from autofit.tuning.result import CardResults, TuneResult
    from autofit_workers.spec.knobs import Knobs
    from autofit_workers.spec.protocol import WorkloadRef
    from autofit_workers.spec.setup import Setup


def tune(settings: TuneSettings, workload: WorkloadRef, emit: EventSink) -> TuneResult:
    """Searches for the largest batch that fits in memory; see `autofit.tuning.session.run`."""
    from autofit.tuning import session

    return session.run(settings, workload, emit=emit)


def tune_each(on_cards: Sequence[TuneSettings], workload: WorkloadRef, emit: EventSink) -> CardResults:
    """Searches for the largest batch on each of several GPU models; see `autofit.tuning.session.run_each`.

    Args:
        on_cards: settings of each search, which differ in the card.
        workload: model or script that all searches are for.
        emit: function that is called with each event.
    """
    from autofit.tuning import session

    return session.run_each(on_cards, workload, emit=emit)


def estimate(
    settings: TuneSettings, workload: WorkloadRef, batch_size: int | None, emit: EventSink
) -> Estimate:
    """Predicts the peak memory of one configuration.

    Args:
        settings: card, knob values (precision, …), and how the workload is run.
        workload: model or script to predict.
        batch_size: samples a batch; None for a script's own batch size.
        emit: function to which progress is reported.
    """
    predictor = _predictor(settings, workload, emit)
    return predictor.estimate(*_configuration(settings), batch_size)


def summarize(
    settings: TuneSettings, workload: WorkloadRef, batch_size: int, emit: EventSink
) -> SummarizedEstimate:
    """Sums a model's layers as torchsummary does, and predicts the peak of a real step for comparison."""
    from autofit.questions.summary import summarize_workload

    predictor = _predictor(settings, workload, emit, with_tensors=True)
    return summarize_workload(predictor, *_configuration(settings), batch_size)


def what_if(settings: TuneSettings, workload: WorkloadRef, batch_size: int, emit: EventSink) -> WhatIf:
    """Predicts one configuration, and the memory that each single change of an option would save."""
    from autofit.questions.what_if import what_if as try_levers

    predictor = _predictor(settings, workload, emit)
    return try_levers(
        predictor,
        *_configuration(settings),
        batch_size,
        limit_bytes=None if settings.gpu is None else settings.budget_on(settings.gpu).usable_bytes,
        fixed=settings.fixed_knobs,
        given=settings.given_knobs,
        emit=emit,
    )


def report_on_search(
    settings: TuneSettings, workload: WorkloadRef, result: TuneResult, emit: EventSink
) -> Page:
    """HTML report of a search for the largest batch, as data that is still to be rendered."""
    from autofit.report import gather

    predictor = _predictor(settings, workload, emit, fresh=False)  # the answer's traces are new enough
    return gather.report_on_search(result, settings, predictor, emit=emit)


def report_on_estimate(
    settings: TuneSettings,
    workload: WorkloadRef,
    estimate: Estimate,
    what_if: WhatIf | None,
    emit: EventSink,
) -> Page:
    """HTML report of one configuration, as data that is still to be rendered.

    Args:
        what_if: memory that single changes of options would save; None to leave them out.
    """
    from autofit.report import gather

    return gather.report_on_estimate(
        estimate,
        _predictor(settings, workload, emit, fresh=False),
        settings.card,
        gpu=settings.gpu,
        of_script=settings.script is not None,
        epoch_samples=settings.epoch_samples,
        what_if=what_if,
        emit=emit,
    )


def _predictor(settings: TuneSettings, workload: WorkloadRef, emit: EventSink, **details: bool) -> Predictor:
    """Predictor of a workload that is run as the `settings` say.

    Args:
        emit: function to which progress is reported.
        details: what traced steps record in addition, such as `with_tensors=True`; `fresh` in place of that
            of the settings.
    """
    from autofit.predict.predictor import local_predictor

    return local_predictor(workload, setup=settings.setup, emit=emit, **{"fresh": settings.fresh, **details})


def _configuration(settings: TuneSettings, what: str = "an estimate") -> tuple[Knobs, Card]:
    return settings.configuration(what), settings.card


def profile(settings: TuneSettings, workload: WorkloadRef, batch_size: int, emit: EventSink) -> Profile:
    """Predicts one configuration, with each tensor and operator call, which the views of a profile show."""
    predictor = _predictor(settings, workload, emit, with_tensors=True, with_calls=True)
    return predictor.profile(*_configuration(settings, "a profile"), batch_size)


def check(settings: TuneSettings, workload: WorkloadRef, batch_size: int, emit: EventSink) -> CheckResult:
    """Predicts whether one configuration fits the memory of its card."""
    from autofit.questions.check import run_check

    return run_check(settings, _predictor(settings, workload, emit), batch_size, emit=emit)


def cards(
    settings: TuneSettings, workload: WorkloadRef, question: CardsQuestion, emit: EventSink
) -> CardsAnswer:
    """Predicts whether one configuration fits on each of several GPU models, or on several numbers of GPUs.

    Args:
        question: GPU models, batch size, numbers of GPUs and prices.
    """
    from autofit.predict.predictor import local_predictor
    from autofit.questions.card_counts import on_how_many
    from autofit.questions.cards import which_cards

    if question.parallels:
        return on_how_many(
            lambda setup: local_predictor(workload, setup=setup, emit=emit, fresh=settings.fresh),
            settings,
            question,
            emit=emit,
        )
    return which_cards(_predictor(settings, workload, emit), settings, question, emit=emit)


def lock(wanted: Sequence[Configuration], folder: Path, emit: EventSink) -> tuple[LockedConfiguration, ...]:
    """Predicts configurations for a lock, with all holders of memory.

    Args:
        wanted: the configurations.
        folder: folder of the project.
        emit: function to which progress is reported.
    """
    from autofit.locks.locking import predict_each

    return predict_each(wanted, folder, emit=emit)


def observe(settings: TuneSettings, workload: WorkloadRef, peak: RealPeak, emit: EventSink) -> ObservedPeak:
    """Compares the peak of a real run with its prediction, and stores it for later predictions.

    Args:
        peak: measured peak, and how it was read.
    """
    from autofit.questions.real_runs.observe import run_observe

    return run_observe(settings, workload, _predictor(settings, workload, emit), peak)


def compare_snapshot(
    settings: TuneSettings, workload: WorkloadRef, run: Run, batch_size: int | None, emit: EventSink
) -> ObservedSnapshot:
    """Compares a real run's memory snapshot with its prediction, and keeps its peak if they are alike.

    Args:
        run: the snapshot, followed.
        batch_size: batch size of the run; None for a script's own.
    """
    from autofit.questions.real_runs import snapshot

    predictor = _predictor(settings, workload, emit)
    return snapshot.compare_snapshot(settings, workload, predictor, run, batch_size)


def avoid_failure(
    settings: TuneSettings,
    workload: WorkloadRef,
    answer: ExplainedError,
    batch_size: int | None,
    emit: EventSink,
) -> ExplainedError:
    """Adds to an explained error the changes of its workload that would have avoided it.

    Args:
        answer: what the error's text says.
        batch_size: batch size of the run; None for a script's own.
    """
    from autofit.questions.failures.avoiding import with_changes

    return with_changes(answer, settings, _predictor(settings, workload, emit), batch_size, emit=emit)


def compare(
    settings: TuneSettings, workloads: Sequence[WorkloadRef], batch_size: int, emit: EventSink
) -> Comparison:
    """Compares the tensors, peaks and outputs of several models' forward passes."""
    from autofit.questions.compare import compare_workloads

    return compare_workloads(
        workloads,
        batch_size=batch_size,
        seq_len=settings.knobs.seq_len,
        card=settings.card,
        setup=settings.setup,
        emit=emit,
    )


def kv(workload: WorkloadRef, question: KvQuestion, emit: EventSink) -> KvCache:
    """Predicts the size of a language model server's KV cache."""
    from autofit.events import Progress
    from autofit.questions.kv import kv_cache

    emit(Progress(stage="building the model without memory"))
    return kv_cache(workload, question)


def conv_layers(
    workload: WorkloadRef, batch_size: int, card: Card | None, setup: Setup, emit: EventSink
) -> ConvLayers:
    """Predicts the workspace (scratch memory) of every convolution algorithm for each layer of a model.

    Args:
        card: GPU to predict for; None for the CPU.
        setup: how the model is run, such as in training.
    """
    from autofit.questions.conv_layers import find_conv_layers

    return find_conv_layers(workload, batch_size=batch_size, card=card, setup=setup, emit=emit)


def examine() -> tuple[Check, ...]:
    """Results of the checks of `autofit doctor` on this machine."""
    from autofit.questions import doctor

    return doctor.examine()


def local_gpus() -> tuple[LocalGpu, ...]:
    """Cards of this machine; see `autofit.hardware.gpus.local_gpus`."""
    from autofit.hardware import gpus

    return gpus.local_gpus()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Functions that the commands call to compute their answers; tests replace them by fakes."""

    tune: Callable[[TuneSettings, WorkloadRef, EventSink], TuneResult] = tune
    tune_each: Callable[[Sequence[TuneSettings], WorkloadRef, EventSink], CardResults] = tune_each
    estimate: Callable[[TuneSettings, WorkloadRef, int | None, EventSink], Estimate] = estimate
    summarize: Callable[[TuneSettings, WorkloadRef, int, EventSink], SummarizedEstimate] = summarize
    what_if: Callable[[TuneSettings, WorkloadRef, int, EventSink], WhatIf] = what_if
    profile: Callable[[TuneSettings, WorkloadRef, int, EventSink], Profile] = profile
    check: Callable[[TuneSettings, WorkloadRef, int, EventSink], CheckResult] = check
    cards: Callable[[TuneSettings, WorkloadRef, CardsQuestion, EventSink], CardsAnswer] = cards
    lock: Callable[[Sequence[Configuration], Path, EventSink], tuple[LockedConfiguration, ...]] = lock
    observe: Callable[[TuneSettings, WorkloadRef, RealPeak, EventSink], ObservedPeak] = observe
    compare_snapshot: Callable[[TuneSettings, WorkloadRef, Run, int | None, EventSink], ObservedSnapshot] = (
        compare_snapshot
    )
    avoid_failure: Callable[
        [TuneSettings, WorkloadRef, ExplainedError, int | None, EventSink], ExplainedError
    ] = avoid_failure
    compare: Callable[[TuneSettings, Sequence[WorkloadRef], int, EventSink], Comparison] = compare
    conv_layers: Callable[[WorkloadRef, int, Card | None, Setup, EventSink], ConvLayers] = conv_layers
    kv: Callable[[WorkloadRef, KvQuestion, EventSink], KvCache] = kv
    report_on_search: Callable[[TuneSettings, WorkloadRef, TuneResult, EventSink], Page] = report_on_search
    report_on_estimate: Callable[[TuneSettings, WorkloadRef, Estimate, WhatIf | None, EventSink], Page] = (
        report_on_estimate
    )
    local_gpus: Callable[[], tuple[LocalGpu, ...]] = local_gpus
    examine: Callable[[], tuple[Check, ...]] = examine
