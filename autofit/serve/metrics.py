"""Prometheus metrics of searches, updated from the searches' events.

Only the processes that run searches and `autofit serve` export metrics: workers would add series for each
trial, which would stay for ever. Names and units follow https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

import collections
import importlib.metadata
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from autofit.events import (
    BoundaryMoved,
    Event,
    JobsCounted,
    PredictionCompared,
    RealRunsObserved,
    RecommendationMade,
    TrialAbandoned,
    TrialFinished,
    TrialStarted,
    TuneStarted,
    UnreadableCounted,
    WorkersChanged,
)
from autofit.jobs.records import JobState
from autofit.serve.real_run_metrics import RealRunMetrics
from autofit.study.damage import Kind
from autofit_workers.installation import DISTRIBUTION
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Peaks, Probe, Verdict
from autofit_workers.spec.shown import brief

OTHER = "other"

# A prediction takes tenths of a second, a measured trial seconds to the usual deadline of 600.
_DURATION_BUCKETS_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(slots=True)
class _Search:
    """Latest search for a workload and a GPU, whose results the Prometheus gauges show.

    Attributes:
        error_trial: number of the newest trial whose predicted and measured peak were compared; -1 for none.
    """

    workload: str
    gpu: str
    budget_bytes: int
    started_seconds: float
    found: dict[Knobs, BoundaryMoved] = field(default_factory=dict)
    error_trial: int = -1


class Metrics:
    """Updates Prometheus metrics by the events of searches; call it with each event.

    Of several searches for the same workload and GPU, gauges show the one that began last.

    Args:
        registry: Prometheus registry that gets the metrics; it must not have another `Metrics`.
        max_workloads: number of distinct workloads, and of distinct GPUs, that get a label of their own;
            later ones share the label `other`, because Prometheus needs labels with few values.
    """

    def __init__(self, registry: CollectorRegistry, *, max_workloads: int = 50) -> None:
        self._series = _Series(registry)
        self._workload_label = _capped(max_workloads)
        self._gpu_label = _capped(max_workloads)
        # Labels of their own, so that many observed workloads leave those of searches alone.
        self._real_runs = RealRunMetrics(registry, _capped(max_workloads), _capped(max_workloads))
        self._searches: dict[str, _Search] = {}
        self._in_flight: dict[tuple[str, int], tuple[Probe, float]] = {}
        self._workers: dict[str, WorkersChanged] = {}
        self._unreadable: dict[str, Mapping[str, int]] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case TuneStarted():
                self._start(event)
            case TrialStarted(study=study, trial=trial):
                self._in_flight[study, trial] = event.spec.probe, event.started_seconds
                self._show_in_flight()
            case TrialAbandoned(study=study, trial=trial):
                if self._in_flight.pop((study, trial), None) is not None:
                    self._show_in_flight()
            case TrialFinished():
                self._finish(event)
            case PredictionCompared() | BoundaryMoved() | RecommendationMade():
                self._show(event)
            case WorkersChanged(study=study):
                self._workers[study] = event
                self._show_workers()
                if not event.num_busy + event.num_idle:
                    del self._workers[study]
            case JobsCounted(by_state=by_state):
                for state in JobState:
                    self._series.jobs.labels(state).set(by_state.get(state, 0))
            case RealRunsObserved():
                self._real_runs.show(event)
            case UnreadableCounted():
                self._show_unreadable(event)

    def _show_unreadable(self, event: UnreadableCounted) -> None:
        self._unreadable[event.source] = event.by_kind
        total = sum(map(collections.Counter, self._unreadable.values()), collections.Counter[str]())
        for kind in Kind:
            self._series.unreadable.labels(kind).set(total[kind])

    def _start(self, event: TuneStarted) -> None:
        """Shows a search that begins, unless the same workload and GPU has one that began later."""
        search = _Search(
            workload=self._workload_label(event.workload),
            gpu=self._gpu_label(event.gpu),
            budget_bytes=event.budget_bytes,
            started_seconds=event.started_seconds,
        )
        alike = {
            study: other
            for study, other in self._searches.items()
            if (other.workload, other.gpu) == (search.workload, search.gpu)
        }
        if any(other.started_seconds > search.started_seconds for other in alike.values()):
            return
        for study in alike:
            del self._searches[study]
        series = self._series
        shown = (
            series.best_batch,
            series.recommended_batch,
            series.utilization,
            series.prediction_error,
            series.predicted_step,
            series.step_time_error,
        )
        for gauge in shown:
            gauge.remove_by_labels({"workload": search.workload, "gpu": search.gpu})
        self._searches[event.study] = search
        if search is self._newest(search.workload):
            series.peak.remove_by_labels({"workload": search.workload})
        series.budget.labels(search.workload, search.gpu).set(search.budget_bytes)

    def _finish(self, event: TrialFinished) -> None:
        probe, outcome = event.spec.probe, event.outcome
        if self._in_flight.pop((event.study, event.trial), None) is not None:
            self._show_in_flight()
        self._series.trials.labels(probe, outcome.verdict).inc()
        if outcome.verdict is Verdict.OOM:
            self._series.ooms.labels(probe).inc()
        self._series.duration.labels(probe).observe(outcome.wall_seconds)

    def _show(self, event: PredictionCompared | BoundaryMoved | RecommendationMade) -> None:
        search = self._searches.get(event.study)
        if search is None:
            return
        match event:
            case BoundaryMoved():
                self._show_found(search, event)
            case RecommendationMade():
                self._show_recommended(search, event)
            case PredictionCompared():
                self._show_error(search, event)

    def _show_recommended(self, search: _Search, made: RecommendationMade) -> None:
        series = self._series
        for gauge in (series.recommended_batch, series.predicted_step, series.step_time_error):
            gauge.remove_by_labels({"workload": search.workload, "gpu": search.gpu})
        if made.knobs is None or made.batch_size is None:
            return
        labels = search.workload, search.gpu, made.knobs.conv_algo
        series.recommended_batch.labels(*labels).set(made.batch_size)
        if made.predicted_step_seconds is not None:
            series.predicted_step.labels(*labels).set(made.predicted_step_seconds)
        if made.step_time_error is not None:
            series.step_time_error.labels(search.workload, search.gpu).set(made.step_time_error)

    def _show_error(self, search: _Search, compared: PredictionCompared) -> None:
        if compared.trial >= search.error_trial:
            search.error_trial = compared.trial
            self._series.prediction_error.labels(search.workload, search.gpu).set(
                compared.predicted_bytes / compared.measured_bytes - 1
            )

    def _show_in_flight(self) -> None:
        under_way = list(self._in_flight.values())
        for probe in Probe:
            self._series.in_flight.labels(probe).set(sum(other is probe for other, _ in under_way))
        self._series.oldest_start.set(min((started for _, started in under_way), default=0))

    def _show_workers(self) -> None:
        self._series.workers.labels("busy").set(sum(w.num_busy for w in self._workers.values()))
        self._series.workers.labels("idle").set(sum(w.num_idle for w in self._workers.values()))

    def _show_found(self, search: _Search, moved: BoundaryMoved) -> None:
        """Sets the gauges of a search's best batch, of its peaks and of its use of the budget."""
        search.found[moved.knobs] = moved
        algo = moved.knobs.conv_algo
        same_algo = (found for knobs, found in search.found.items() if knobs.conv_algo == algo)
        self._series.best_batch.labels(search.workload, search.gpu, algo).set(max(map(_batch, same_algo)))
        best = max(search.found.values(), key=_batch)
        if best.largest_batch is None:
            return
        if best.peak_bytes is not None:
            self._series.utilization.labels(search.workload, search.gpu).set(
                best.peak_bytes / search.budget_bytes
            )
        if search is not self._newest(search.workload):
            return
        self._series.peak.remove_by_labels({"workload": search.workload})
        for peak in fields(Peaks):
            num_bytes = getattr(best.peaks, peak.name)
            if num_bytes is not None:
                kind = peak.name.removesuffix("_bytes")
                self._series.peak.labels(search.workload, kind, best.evidence).set(num_bytes)

    def _newest(self, workload: str) -> _Search:
        """Search that began last for a workload, whatever its GPU."""
        return max(
            (search for search in self._searches.values() if search.workload == workload),
            key=lambda search: search.started_seconds,
        )


class _Series:
    """Prometheus metrics of autofit; those whose labels are known in advance exist from the start.

    If a counter appeared only with its first increment, Prometheus' rate() would miss that increment.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.trials = Counter(
            "autofit_trials",
            "Finished trials, by probe and verdict.",
            ["probe", "verdict"],
            registry=registry,
        )
        self.ooms = Counter(
            "autofit_oom", "Finished trials that ran out of memory.", ["probe"], registry=registry
        )
        self.duration = Histogram(
            "autofit_trial_duration_seconds",
            "Wall time of a finished trial, from the start of its process to its outcome.",
            ["probe"],
            buckets=_DURATION_BUCKETS_SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge("autofit_trials_in_flight", "Running trials.", ["probe"], registry=registry)
        self.oldest_start = Gauge(
            "autofit_oldest_trial_start_timestamp_seconds",
            "When the oldest running trial was started; 0 when none is running.",
            registry=registry,
        )
        self.workers = Gauge(
            "autofit_workers",
            "Workers of the searches that have running trials: busy with one, or idle.",
            ["state"],
            registry=registry,
        )
        self.jobs = Gauge("autofit_jobs", "Submitted jobs, by state.", ["state"], registry=registry)
        self.unreadable = Gauge(
            "autofit_unreadable_records",
            "Records that are damaged, of a newer version or not signed with the storage's key, and are left "
            "aside, by kind.",
            ["kind"],
            registry=registry,
        )
        self.best_batch = Gauge(
            "autofit_best_batch_size",
            "Largest batch found to fit with this convolution algorithm; 0 when none fits.",
            ["workload", "gpu", "conv_algo"],
            registry=registry,
        )
        self.recommended_batch = Gauge(
            "autofit_recommended_batch_size",
            "Batch that the search recommends, with its convolution algorithm: the largest with PyTorch's "
            "default backend, unless another was asked for, was measured to be no slower or is predicted to "
            "be the fastest.",
            ["workload", "gpu", "conv_algo"],
            registry=registry,
        )
        self.peak = Gauge(
            "autofit_peak_memory_bytes",
            "Peak memory of the largest batch found to fit in the workload's latest search: allocated, "
            "reserved, device and (on the CPU) private; of a prediction the level that has to fit.",
            ["workload", "kind", "evidence"],
            registry=registry,
        )
        self.budget = Gauge(
            "autofit_budget_bytes",
            "Bytes that PyTorch's allocator may reserve (on the CPU: that the process may use).",
            ["workload", "gpu"],
            registry=registry,
        )
        self.utilization = Gauge(
            "autofit_budget_utilization_ratio",
            "Share of the budget that the largest batch found to fit takes.",
            ["workload", "gpu"],
            registry=registry,
        )
        self.prediction_error = Gauge(
            "autofit_prediction_error_ratio",
            "How far the predicted peak exceeds the measured one, as a share of the measured one, for the "
            "newest measured trial that fits.",
            ["workload", "gpu"],
            registry=registry,
        )
        self.predicted_step = Gauge(
            "autofit_predicted_step_seconds",
            "Predicted likely time of a step of the batch that the search recommends, where it is sure.",
            ["workload", "gpu", "conv_algo"],
            registry=registry,
        )
        self.step_time_error = Gauge(
            "autofit_step_time_error_ratio",
            "How far the predicted time of a step of that batch exceeds the measured one, as a share of the "
            "measured one, where it was measured.",
            ["workload", "gpu"],
            registry=registry,
        )
        self._begin_with_zeros()
        Gauge(
            "autofit_build_info",
            "Always 1; the labels are the versions that run.",
            ["version", "python"],
            registry=registry,
        ).labels(importlib.metadata.version(DISTRIBUTION), platform.python_version()).set(1)

    def _begin_with_zeros(self) -> None:
        """Creates the series of all labels that are known in advance."""
        for probe in Probe:
            self.duration.labels(probe)
            self.ooms.labels(probe)
            self.in_flight.labels(probe)
            for verdict in Verdict:
                self.trials.labels(probe, verdict)
        for state in ("busy", "idle"):
            self.workers.labels(state)
        for job_state in JobState:
            self.jobs.labels(job_state)
        for kind in Kind:
            self.unreadable.labels(kind)


def _batch(found: BoundaryMoved) -> int:
    return found.largest_batch or 0


def _capped(num: int) -> Callable[[str], str]:
    """Makes a function that returns the first `num` distinct names unchanged, and `other` for later ones."""
    known: set[str] = set()

    def label(name: str) -> str:
        value = brief(name)
        if value not in known and len(known) >= num:
            return OTHER
        known.add(value)
        return value

    return label
