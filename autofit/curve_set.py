"""The curves of a search: what answers it, or says where it begins."""

from __future__ import annotations

import bisect
import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from autofit.predict.conv_plan import ConvPlan
from autofit.predict.curve import PredictedCurve
from autofit.predict.host_curve import HostCurve
from autofit.search.curves import CachedCurve, Curve
from workers.predict.conditions import MIXED
from workers.protocol import Knobs, Probe, TrialOutcome, TrialSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a size is predicted to need.

    Attributes:
        likely_bytes: of what is held against the budget.
        workspace_bytes: of it, what an operator takes beside its output.
    """

    likely_bytes: int
    workspace_bytes: int


class CurveSet:
    """The curves of a search, filled when its predictions are made; empty where there are none.

    Those of the CPU only say where to begin: there every answer is measured.
    """

    def __init__(self) -> None:
        self._curves: dict[Knobs, PredictedCurve] = {}
        self._host_curves: dict[Knobs, HostCurve] = {}
        self._priors: dict[Knobs, CachedCurve] = {}
        self._host_trace_digest: str | None = None

    def add(self, knobs: Knobs, curve: PredictedCurve) -> None:
        self._curves[knobs] = curve

    def add_host(self, knobs: Knobs, curve: HostCurve, *, trace_digest: str) -> None:
        self._host_curves[knobs] = curve
        self._host_trace_digest = self._host_trace_digest or trace_digest

    def of(self, knobs: Knobs) -> PredictedCurve:
        return self._curves[knobs]

    @property
    def by_knobs(self) -> dict[Knobs, PredictedCurve]:
        """The curves that predict what the trials measure."""
        return self._curves

    @property
    def needs_traces(self) -> bool:
        """Whether each size of some setting costs a trace, which leaves the search without a prior."""
        return any(curve.needs_traces for curve in self._curves.values())

    @property
    def trace_digest(self) -> str | None:
        """Names the step that the curves predict; None where there are none."""
        return next((curve.trace_digest for curve in self._curves.values()), self._host_trace_digest)

    def guide(self, knobs: Knobs) -> PredictedCurve | HostCurve | None:
        """What is predicted of a setting, though a size may cost a trace; None for nothing."""
        return self._curves.get(knobs) or self._host_curves.get(knobs)

    def prior(self, knobs: Knobs) -> Curve | None:
        """Where the search of a setting begins; None for no idea."""
        guide = self.guide(knobs)
        if guide is None or guide.needs_traces:
            return None  # a scan over all sizes would cost a trace each
        if knobs not in self._priors:
            self._priors[knobs] = CachedCurve(guide)
        return self._priors[knobs]

    def conv_plan(self, knobs: Knobs, batch_size: int, budget_bytes: int) -> ConvPlan | None:
        """The plan of a size, for the setting that has one for every layer."""
        curve = self._curves.get(knobs)
        if curve is None or knobs.conv_algo != MIXED:
            return None
        return curve.conv_plan(batch_size, budget_bytes)

    def need(self, knobs: Knobs, batch_size: int) -> Need:
        """What a size of a setting that has a curve likely needs."""
        host = self._host_curves.get(knobs)
        if host is not None:
            return Need(
                likely_bytes=host(batch_size).likely_bytes, workspace_bytes=host.workspace_bytes(batch_size)
            )
        estimate = self._curves[knobs](batch_size)
        return Need(likely_bytes=estimate.interval.likely_bytes, workspace_bytes=estimate.breakdown.workspace)

    def cannot_run(self, knobs: Knobs, batch_size: int, budget_bytes: int) -> bool:
        """Whether even the low end of a prediction is beyond a budget; not so where there is no curve."""
        guide = self.guide(knobs)
        if guide is None or guide.needs_traces:
            return False
        return guide.cannot_run(batch_size, budget_bytes)

    def at_most(self, knobs: Knobs, budget_bytes: int, sizes: Sequence[int]) -> int | None:
        """The largest of some sizes that a setting could fit at best, 0 for none; None for no idea.

        The low end of the prediction says so: `cannot_run` is taken to be rising in the batch.
        """
        if self.prior(knobs) is None:
            return None
        num_possible = bisect.bisect_left(
            sizes, True, key=lambda size: self.cannot_run(knobs, size, budget_bytes)
        )
        return sizes[num_possible - 1] if num_possible else 0


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
