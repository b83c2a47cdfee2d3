"""What the project predicts for the rows of a table, and each step of the ablation."""

from __future__ import annotations

import dataclasses
import os
import statistics
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, parent_process
from pathlib import Path

from autofit.hardware.gpus import find_gpu
from autofit.predict.confidence import Calibration, classify, shipped_residuals
from autofit_workers.replay.allocator import replay
from autofit_workers.replay.curve.conditions import Conditions, Level
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.curve.sized_step import SizedStep
from autofit_workers.replay.curve.step_on_card import StepOnCard
from autofit_workers.spec.trace import Trace
from autofit_workers.spec.versions import parse_release
from tests.bench.ladder import runs_in_turn, steps_down
from tests.bench.plan_sources import sources_of
from tests.bench.tables.rows import Row
from tests.bench.tables.setting import Setting
from tests.bench.tracer import NotTracedError
from tests.bench.traces import Traced, Traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is predicted of a row.

    Attributes:
        low_bytes, likely_bytes, high_bytes: of the reserved peak, on the card that the row names.
        or_else: the same three of what may have run instead, where the row does not say which of both did.
        safe_bytes: the high end with what real runs left over, which `--risk safe` goes by.
        worst_bytes: the same with the largest workspace of every convolution.
        allocated_bytes: the likely allocated peak, of the likely source of plans.
        workspace_low_bytes, workspace_likely_bytes, workspace_high_bytes: the largest workspace of any one
            convolution.
        before_bytes: what is reserved when the row's measurement begins, which it leaves out.
        model_class: of `autofit.predict.confidence.classify`.
        cudnn: for what cuDNN is used: `convolution`, `batch norm`.
        runs: by level, whether the row's batch size runs under its limit, thrashing or not; at the likely
            one alone where a process tried larger sizes before.
        next_runs: the same of the next size, which did not run.
        safe_batch_size: of a bracket, the largest size up to the one that failed whose high end is
            within the limit.
        seconds: of one estimate: one trace, one replay of each kind.
        ablation_bytes: the likely peak after each step of the ablation, where it was asked for.
        failure: why there is no prediction.
    """

    low_bytes: int = 0
    likely_bytes: int = 0
    high_bytes: int = 0
    or_else: tuple[int, int, int] | None = None
    safe_bytes: int = 0
    worst_bytes: int = 0
    allocated_bytes: int = 0
    workspace_low_bytes: int = 0
    workspace_likely_bytes: int = 0
    workspace_high_bytes: int = 0
    before_bytes: int = 0
    model_class: str = ""
    cudnn: tuple[str, ...] = ()
    runs: dict[str, bool] = field(default_factory=dict)
    next_runs: dict[str, bool] = field(default_factory=dict)
    safe_batch_size: int | None = None
    seconds: float = 0.0
    ablation_bytes: dict[str, int] = field(default_factory=dict)
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """All rows that share a trace."""

    setting: Setting
    rows: tuple[tuple[int, Row], ...]
    ablate: bool
    only_trace: bool


def conditions_of(row: Row) -> Conditions:
    """The conditions of a row's replay."""
    assert _process is not None
    return Conditions(
        conv_algo=row.conv_algo,
        architecture=row.architecture,
        plans=sources_of(row, _process.plans, _process.cache),
        torch_release=parse_release(row.torch_release) if row.torch_release else None,
        multiprocessors=find_gpu(row.gpu).num_sms,
    )


def _live_bytes(step: SizedStep, _row: Row) -> int:
    return step.lower_bound_bytes


def _without_workspaces_bytes(step: SizedStep, row: Row) -> int:
    sizes = StepOnCard(step, _without_corrections(row)).by_first_source.sizes(Level.LOW)
    for index, allocation in enumerate(step.trace.allocations):
        if allocation.convolution is not None:
            sizes[index] = 0
    return replay(step.trace.events, sizes).peak_reserved_bytes


def _with_workspaces_bytes(step: SizedStep, row: Row) -> int:
    return on_the_card(step, row, _without_corrections(row))


def _with_everything_bytes(step: SizedStep, row: Row) -> int:
    return on_the_card(step, row, conditions_of(row))


def on_the_card(step: SizedStep, row: Row, conditions: Conditions) -> int:
    """The likely peak, the lower median of the sources'.

    No run reserves more than its card has: near the end the plans come down.
    """
    peaks = [
        _with_one_source(StepOnCard(step, dataclasses.replace(conditions, plans=(source,))), row)
        for source in conditions.sources
    ]
    return statistics.median_low(peaks)


def _with_one_source(on_card: StepOnCard, row: Row) -> int:
    likely_bytes = on_card.reserved_bytes(Level.LIKELY)
    if likely_bytes > row.limit_bytes:
        within = on_card.by_first_source.replay_within(row.limit_bytes)
        if within.completed:
            return within.peak_reserved_bytes
    return likely_bytes


def _without_corrections(row: Row) -> Conditions:
    return dataclasses.replace(conditions_of(row), corrections=frozenset())


# What each part of the model buys: every step has those before it.
ABLATION: tuple[tuple[str, Callable[[SizedStep, Row], int]], ...] = (
    ("trace only", _live_bytes),
    ("+ allocator", _without_workspaces_bytes),
    ("+ convolution workspaces", _with_workspaces_bytes),
    ("+ the rest", _with_everything_bytes),
)


def predict(
    rows: list[Row],
    *,
    cache: Path,
    digest: str,
    plans: str,
    num_jobs: int,
    ablate: bool,
    only_trace: bool,
    progress: Callable[[str], None],
) -> list[Prediction]:
    """A prediction for every row, in their order; what fails is a prediction that says why."""
    predictions = [Prediction(failure="not reached")] * len(rows)
    tasks = list(_tasks(rows, ablate=ablate, only_trace=only_trace))
    started = time.monotonic()
    # Each process has a tracer of its own.
    with ProcessPoolExecutor(num_jobs, get_context("spawn"), _start, (cache, digest, plans)) as pool:
        futures = {pool.submit(_run, task): task for task in tasks}
        for number, future in enumerate(as_completed(futures), start=1):
            task = futures[future]
            for (index, _), prediction in zip(task.rows, future.result(), strict=True):
                predictions[index] = prediction
            failure = predictions[task.rows[0][0]].failure
            said = "" if failure is None else f": {failure}"
            elapsed = time.monotonic() - started
            progress(f"[{number}/{len(tasks)} {elapsed:.0f} s] {task.rows[0][1].name}{said}")
    return predictions


def _tasks(rows: list[Row], *, ablate: bool, only_trace: bool) -> Iterator[_Task]:
    by_setting: defaultdict[Setting, list[tuple[int, Row]]] = defaultdict(list)
    for index, row in enumerate(rows):
        by_setting[row.setting].append((index, row))
    for setting, numbered in by_setting.items():
        yield _Task(setting=setting, rows=tuple(numbered), ablate=ablate, only_trace=only_trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    """What a process of the pool keeps for all of its tasks."""

    traces: Traces
    plans: str
    cache: Path


_process: _Process | None = None


def _start(cache: Path, digest: str, plans: str) -> None:
    global _process  # noqa: PLW0603 - made when the process of the pool starts
    _process = _Process(traces=Traces(cache, digest), plans=plans, cache=cache)
    threading.Thread(target=_end_with_the_bench, daemon=True).start()


def _end_with_the_bench() -> None:
    """A pool's process else waits for ever for tasks of a bench that was killed."""
    bench = parent_process()
    assert bench is not None
    connection.wait([bench.sentinel])
    os._exit(1)


def _run(task: _Task) -> list[Prediction]:
    assert _process is not None
    started = time.perf_counter()
    try:
        if task.only_trace:
            _process.traces.usual(task.setting)
            return [Prediction(failure="only traced")] * len(task.rows)
        traced = _process.traces.traced(task.setting)
        return [_of_both(_predict(traced, row, ablate=task.ablate), row) for _, row in task.rows]
    except NotTracedError as error:
        failure = str(error)
    except Exception as error:  # noqa: BLE001 - one model must not end the bench; the report names it
        failure = "".join(traceback.format_exception(error)[-2:]).strip()
    seconds = time.perf_counter() - started
    return [Prediction(failure=failure, seconds=seconds)] * len(task.rows)


def _of_both(prediction: Prediction, row: Row) -> Prediction:
    """The prediction of a row, with that of what may have run instead."""
    if row.or_else is None:
        return prediction
    assert _process is not None
    other = _predict(_process.traces.traced(row.or_else), row, ablate=False)
    return dataclasses.replace(prediction, or_else=(other.low_bytes, other.likely_bytes, other.high_bytes))


def _predict(traced: Traced, row: Row, *, ablate: bool) -> Prediction:
    any_size = traced.curve
    step = any_size.at(row.batch_size)
    started = time.perf_counter()
    conditions = conditions_of(row)
    on_card = StepOnCard(step, conditions)
    estimate = on_card.estimate()
    likely_bytes, high_bytes = on_the_card(step, row, conditions), estimate.high_bytes
    if likely_bytes <= row.limit_bytes:
        high_bytes = max(likely_bytes, min(high_bytes, row.limit_bytes))
    seconds = traced.seconds + time.perf_counter() - started
    calibration = _calibration(step, row)
    runs = _runs(any_size, row)
    return Prediction(
        model_class=calibration.model_class.value,
        cudnn=used_of_cudnn(step.trace),
        low_bytes=min(estimate.low_bytes, likely_bytes),
        likely_bytes=likely_bytes,
        high_bytes=high_bytes,
        safe_bytes=calibration.high_end(
            (high_bytes if calibration.spans else likely_bytes)
            + calibration.on_top(on_card.largest_plan_bytes(_end_level(calibration)))
        ),
        worst_bytes=on_card.reserved_bytes(Level.WORST),
        allocated_bytes=estimate.allocated_bytes,
        workspace_low_bytes=estimate.workspace_low_bytes,
        workspace_likely_bytes=estimate.workspace_likely_bytes,
        workspace_high_bytes=estimate.workspace_high_bytes,
        before_bytes=before_bytes(step, row, conditions),
        runs=runs.get(row.batch_size, {}),
        next_runs=runs.get(row.failed_batch_size or 0, {}),
        seconds=seconds,
        safe_batch_size=None if row.failed_batch_size is None else _safe_batch_size(any_size, row),
        ablation_bytes={name: part(step, row) for name, part in ABLATION} if ablate else {},
    )


def before_bytes(step: SizedStep, row: Row, conditions: Conditions) -> int:
    """What the allocator holds where the row's measurement begins."""
    if not row.measured_from:
        return 0
    (position,) = (mark.position for mark in step.trace.marks if mark.name == row.measured_from)
    sizes = StepOnCard(step, conditions).by_first_source.sizes(Level.LIKELY)
    return replay(step.trace.events[:position], sizes).peak_reserved_bytes


def used_of_cudnn(trace: Trace) -> tuple[str, ...]:
    """For what a step asks cuDNN, whose kernels for each are loaded when the first is needed.

    By its operators: a depthwise convolution or a batch norm of rows, which PyTorch computes itself,
    counts too.
    """
    does = {
        "convolution": any(each.convolution is not None for each in trace.allocations),
        "batch norm": any("batch_norm" in each.operator for each in trace.allocations),
    }
    return tuple(what for what, is_done in does.items() if is_done)


def _calibration(step: SizedStep, row: Row) -> Calibration:
    return shipped_residuals().of(classify(step.trace), row.architecture)


def _end_level(calibration: Calibration) -> Level:
    """The level of the workspaces at the high end, as of `autofit.predict.curve.PredictedCurve`."""
    return Level.HIGH if calibration.spans else Level.LIKELY


def _runs(any_size: PeakCurve, row: Row) -> dict[int, dict[str, bool]]:
    """For the sizes of which the row says whether they ran: by level, whether they run under its limit."""
    if row.ran is None:
        return {}
    conditions, limit_bytes = conditions_of(row), row.limit_bytes
    if row.first_tried is not None:
        ladder = steps_down(row.first_tried, row.batch_size)
        assert ladder[-2:] == (row.failed_batch_size, row.batch_size), row.name
        runs = runs_in_turn(any_size.at, ladder, conditions, limit_bytes)
        return {batch_size: {Level.LIKELY.value: each} for batch_size, each in runs.items()}
    return {
        batch_size: {
            level.value: any_size.on_card(batch_size, conditions).runs_within(limit_bytes, level)
            for level in Level
        }
        for batch_size in (row.batch_size, row.failed_batch_size)
        if batch_size is not None
    }


def _safe_batch_size(any_size: PeakCurve, row: Row) -> int:
    """Found by halving, as if a larger batch always needed more, which is nearly so."""
    assert row.failed_batch_size is not None
    conditions = conditions_of(row)
    fits, fails = 0, row.failed_batch_size + 1
    while fails - fits > 1:
        batch_size = row.batch_size if fits < row.batch_size < fails else (fits + fails) // 2
        if _fits_safely(any_size.on_card(batch_size, conditions), row):
            fits = batch_size
        else:
            fails = batch_size
    return fits


def _fits_safely(on_card: StepOnCard, row: Row) -> bool:
    if on_card.refusal() is not None:
        return False
    calibration = _calibration(on_card.step, row)
    within_bytes = calibration.within_high_end(row.limit_bytes)
    level = _end_level(calibration)
    within_bytes -= calibration.on_top(on_card.largest_plan_bytes(level))
    return on_card.reserved_bytes(level, stop_above_bytes=within_bytes) <= within_bytes
