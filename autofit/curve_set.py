"""The curves of a search: what answers it, or says where it begins."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import Future

from autofit.prediction import PredictedCurve
from autofit.search.boundary import CachedCurve, Curve
from workers.protocol import Knobs, Probe, TrialOutcome, TrialSpec

# A process that has imported PyTorch and run a convolution; 250 to 350 MiB were seen.
_HOST_PROCESS_BYTES = 300 * 1024**2


class CurveSet:
    """The curves of a search, filled when its predictions are made; empty where there are none.

    Args:
        on_host: the trials measure the CPU, where curves only say where to begin.
    """

    def __init__(self, *, on_host: bool = False) -> None:
        self._on_host = on_host
        self._curves: dict[Knobs, PredictedCurve] = {}
        self._priors: dict[Knobs, CachedCurve] = {}

    def add(self, knobs: Knobs, curve: PredictedCurve) -> None:
        self._curves[knobs] = curve

    def of(self, knobs: Knobs) -> PredictedCurve:
        return self._curves[knobs]

    @property
    def by_knobs(self) -> dict[Knobs, PredictedCurve]:
        """The curves that predict what the trials measure."""
        return {} if self._on_host else self._curves

    @property
    def needs_traces(self) -> bool:
        """Whether each size of some setting costs a trace, which leaves the search without a prior."""
        return any(curve.needs_traces for curve in self._curves.values())

    @property
    def trace_digest(self) -> str | None:
        """Names the step that the curves predict; None where there are none."""
        return next((curve.trace_digest for curve in self._curves.values()), None)

    def prior(self, knobs: Knobs) -> Curve | None:
        """Where the search of a setting begins; None for no idea."""
        curve = self._curves.get(knobs)
        if curve is None or curve.needs_traces:
            return None  # a scan over all sizes would cost a trace each
        if knobs not in self._priors:
            self._priors[knobs] = CachedCurve(_HostCurve(curve) if self._on_host else curve)
        return self._priors[knobs]


class _HostCurve:
    """A rough idea of the resident set: the live bytes that a GPU would hold, and the process.

    Nothing is claimed from it: measured trials correct it from the first on.
    """

    def __init__(self, curve: PredictedCurve) -> None:
        self._curve = curve

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:  # noqa: ARG002
        return self.lower_bound_bytes(batch_size)

    def lower_bound_bytes(self, batch_size: int) -> int:
        return self._curve.live_bytes(batch_size) + _HOST_PROCESS_BYTES


class CurveTrials:
    """Answers trials from the curves, as a dispatcher would: for a search that only predicts."""

    def __init__(self, curves: CurveSet, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._curves = curves
        self._clock = clock

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        """A future that has its outcome already."""
        assert spec.budget_bytes is not None
        started = self._clock()
        outcome = self._curves.of(spec.knobs).outcome(spec.batch_size, spec.budget_bytes)
        future: Future[TrialOutcome] = Future()
        future.set_result(dataclasses.replace(outcome, wall_seconds=self._clock() - started))
        return future

    def capacity(self, trial: Probe | TrialSpec) -> int:  # noqa: ARG002
        return 1
