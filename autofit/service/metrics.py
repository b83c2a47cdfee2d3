"""Prometheus metrics of a search, made of its events.

Only the coordinator exports: a worker's own series would be one per trial and would stay for ever.
Names and units follow https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from autofit.errors import InfrastructureError
from autofit.service.events import Event, SettingSettled, TrialFinished, TuneStarted
from workers.protocol import Knobs, Peaks, Probe, Verdict

OTHER_WORKLOAD = "other"

# A prediction takes tenths of a second, a measured trial seconds to the usual deadline of 600.
_DURATION_BUCKETS_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """An event sink that keeps the series of a registry up to date.

    Args:
        registry: where the series are registered; one `Metrics` per registry.
        max_workloads: so many distinct workloads get a label of their own, those that come later
            share `other`: a label's values must stay few, whatever users name their files.
    """

    def __init__(self, registry: CollectorRegistry, *, max_workloads: int = 50) -> None:
        self._max_workloads = max_workloads
        self._settled: dict[str, dict[Knobs, SettingSettled]] = {}
        self._trials = Counter(
            "autofit_trials",
            "Finished trials, by probe and verdict.",
            ["probe", "verdict"],
            registry=registry,
        )
        self._duration = Histogram(
            "autofit_trial_duration_seconds",
            "Wall time of a finished trial, from the start of its process to its outcome.",
            ["probe"],
            buckets=_DURATION_BUCKETS_SECONDS,
            registry=registry,
        )
        self._best_batch = Gauge(
            "autofit_best_batch_size",
            "Largest batch found to fit with this convolution algorithm; 0 when none fits.",
            ["workload", "conv_algo"],
            registry=registry,
        )
        self._peak = Gauge(
            "autofit_peak_memory_bytes",
            "Peak memory of the largest batch found to fit, as allocated, reserved and device peak.",
            ["workload", "kind", "evidence"],
            registry=registry,
        )
        self._budget = Gauge(
            "autofit_budget_bytes",
            "What the allocator may reserve (on the CPU: what the process may use).",
            registry=registry,
        )
        # A counter that appears with its first increment hides that increment from rate().
        for probe in Probe:
            self._duration.labels(probe)
            for verdict in Verdict:
                self._trials.labels(probe, verdict)

    def __call__(self, event: Event) -> None:
        match event:
            case TuneStarted():
                self._forget(self._label(event.workload))
                self._budget.set(event.budget_bytes)
            case TrialFinished(spec=spec, outcome=outcome):
                self._trials.labels(spec.probe, outcome.verdict).inc()
                self._duration.labels(spec.probe).observe(outcome.wall_seconds)
            case SettingSettled():
                self._settle(self._label(event.workload), event)

    def _label(self, workload: str) -> str:
        if workload not in self._settled and len(self._settled) >= self._max_workloads:
            workload = OTHER_WORKLOAD
        self._settled.setdefault(workload, {})
        return workload

    def _forget(self, workload: str) -> None:
        """Drops what an earlier search of the same workload found, under a budget of its own."""
        for gauge in (self._best_batch, self._peak):
            gauge.remove_by_labels({"workload": workload})
        self._settled[workload].clear()

    def _settle(self, workload: str, event: SettingSettled) -> None:
        settled = self._settled[workload]
        settled[event.knobs] = event
        same_algo = (s for knobs, s in settled.items() if knobs.conv_algo == event.knobs.conv_algo)
        self._best_batch.labels(workload, event.knobs.conv_algo).set(max(map(_batch, same_algo)))
        best = max((s for s in settled.values() if s.evidence == event.evidence), key=_batch)
        if best.largest_batch is None:
            return
        for peak in fields(Peaks):
            num_bytes = getattr(best.peaks, peak.name)
            if num_bytes is not None:
                kind = peak.name.removesuffix("_bytes")
                self._peak.labels(workload, kind, best.evidence).set(num_bytes)


def _batch(settled: SettingSettled) -> int:
    return settled.largest_batch or 0


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """A running `/metrics` endpoint.

    Attributes:
        port: the port it listens on; the system's choice when 0 was asked for.
    """

    port: int
    _server: WSGIServer
    _thread: threading.Thread

    def close(self) -> None:
        """Stops listening and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(registry: CollectorRegistry, port: int, host: str = "127.0.0.1") -> MetricsServer:
    """Serves `registry` over HTTP until the returned server is closed.

    Raises:
        InfrastructureError: when the address cannot be listened on, such as a port in use.
    """
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise InfrastructureError(
            f"metrics cannot be served on {host}:{port} ({error.strerror}): choose a free port, or 0 for any"
        ) from error
    return MetricsServer(server.server_port, server, thread)
