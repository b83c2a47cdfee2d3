"""Prometheus metrics of peaks that users observed in real runs, beside what was predicted for those."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from autofit.events import RealRunsObserved

UNKNOWN = "unknown"

_LABELS = ("workload", "gpu", "kind")
_Values = dict[tuple[str, ...], int]


class RealRunMetrics:
    """Shows the newest observed peak of each workload, GPU and kind; older ones have no series.

    Batch size and knobs are no labels, as every run may have others.

    Args:
        registry: Prometheus registry that gets the metrics.
        workload_label, gpu_label: make a label's value of a name; they bound the number of values.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        workload_label: Callable[[str], str],
        gpu_label: Callable[[str], str],
    ) -> None:
        self._workload_label = workload_label
        self._gpu_label = gpu_label
        self._observed = _Shown(
            Gauge(
                "autofit_observed_peak_bytes",
                "Newest peak that `autofit observe` stored of a real run, by kind: allocated, reserved or "
                "device.",
                _LABELS,
                registry=registry,
            )
        )
        self._predicted = _Shown(
            Gauge(
                "autofit_observed_peak_predicted_bytes",
                "Likely peak of that run and kind, as it was predicted when the observed one was stored.",
                _LABELS,
                registry=registry,
            )
        )

    def show(self, runs: RealRunsObserved) -> None:
        """Shows the peaks that are stored now, and removes the series of all others."""
        observed: _Values = {}
        predicted: _Values = {}
        for peak in runs.peaks:
            labels = self._workload_label(peak.workload), self._gpu_label(peak.gpu or UNKNOWN), peak.kind
            if labels in observed:  # of a newer run
                continue
            observed[labels] = peak.observed_bytes
            if peak.predicted_bytes is not None:
                predicted[labels] = peak.predicted_bytes
        self._observed.set(observed)
        self._predicted.set(predicted)


class _Shown:
    """Gauge that has series of some labels' values, and of no others.

    A series that stays is never absent in between, when Prometheus might scrape.
    """

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._now: _Values = {}

    def set(self, values: _Values) -> None:
        for labels, value in values.items():
            self._gauge.labels(*labels).set(value)
        for labels in self._now.keys() - values.keys():
            self._gauge.remove(*labels)
        self._now = values
