"""Fakes of the worker that predicts and the card that measures; neither needs torch.

The step that they run holds 100 MiB of parameters and, unless a test says otherwise, 20 MiB a sample:
under a budget of 512 MiB, 20 samples fit and 21 do not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from autofit.hardware.card import Card
from autofit.predict.confidence import Residuals
from autofit.predict.curve import PredictedCurve
from autofit.predict.plan_sources import PlanSources
from autofit.predict.predictor import Predictor
from autofit.search.space import SearchSpace
from autofit.settings.goals import Risk
from autofit.study.study import TuningStudy
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    Device,
    Evidence,
    Peaks,
    Probe,
    TrialError,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from autofit_workers.spec.trace import Allocation, Category, SampleSize, Trace
from autofit_workers.spec.work import Convolution, ConvPass

MIB = 1024**2
BUDGET_BYTES = 512 * MIB
PARAMETER_MIB = 100
# Predictions that are never off, so that tests can say to the byte what fits.
EXACT = Residuals(measured={}, factor=1.0, extra_share=0.0)


def step_trace(
    batch_size: int,
    *,
    mib_per_sample: int = 20,
    scratch_mib_per_sample: int = 0,
    num_extra: int = 0,
    num_channels: int | None = None,
    operator: str = "aten.empty",
) -> Trace:
    """Trace of the step, every tensor in a segment of its own.

    Args:
        scratch_mib_per_sample: scratch that is freed before the samples' tensor is allocated.
        num_extra: the number of further tensors of 32 MiB, which make the events differ.
        num_channels: in place of the scratch, the workspace of a 5×5 convolution of 112×112 maps.
        operator: the operator that allocates the tensors.
    """
    sizes = [(PARAMETER_MIB, Category.PARAMETER, "")]
    sizes += [(scratch_mib_per_sample * batch_size, Category.OTHER, "scratch")]
    sizes += [(32, Category.ACTIVATION, "extra")] * num_extra
    sizes += [(mib_per_sample * batch_size, Category.ACTIVATION, "layer")]
    allocations = [
        Allocation(
            num_bytes=mib * MIB,
            category=category,
            module=module,
            operator=operator,
            source="step.py:1:loss",
            dtype="uint8",
            shape=(mib, MIB),
        )
        for mib, category, module in sizes
    ]
    if num_channels is not None:
        maps = (batch_size, num_channels, 112, 112)
        allocations[1] = Allocation(
            num_bytes=0,
            category=Category.WORKSPACE,
            convolution=Convolution(
                conv_pass=ConvPass.FPROP,
                input_shape=maps,
                weight_shape=(num_channels, num_channels, 5, 5),
                output_shape=maps,
                stride=(1, 1),
                padding=(2, 2),
                dilation=(1, 1),
                groups=1,
                dtype="float32",
                element_bytes=4,
            ),
        )
    return Trace(
        workload="step",
        batch_size=batch_size,
        mode="train",
        optimizer="sgd",
        knobs=Knobs(),
        allocations=tuple(allocations),
        events=(0, 1, ~1, *range(2, len(sizes)), ~(len(sizes) - 1)),
        versions={"torch": "2.13.0"},
    )


class FakeWorker:
    """A worker that answers predict trials from given traces.

    Attributes:
        trace_at: returns the trace at a batch size.
        failure: the verdict and the error that it answers with instead, if any.
        specs: the trials that it was asked for.
    """

    def __init__(self, trace_at: Callable[[int], Trace] = step_trace) -> None:
        self.trace_at = trace_at
        self.failure: tuple[Verdict, TrialError] | None = None
        self.specs: list[TrialSpec] = []

    def __call__(self, spec: TrialSpec) -> TrialOutcome:
        self.specs.append(spec)
        verdict, error = self.failure or (Verdict.FITS, None)
        trace = dataclasses.replace(self.trace_at(spec.batch_size), knobs=spec.knobs)
        return TrialOutcome(
            verdict=verdict,
            evidence=Evidence.PREDICTED,
            device=Device(kind="cuda", name=spec.architecture),
            batch_size=spec.batch_size,
            knobs=spec.knobs,
            error=error,
            trace_json=None if error else trace.to_json(),
        )

    @property
    def traced(self) -> list[int]:
        return [spec.batch_size for spec in self.specs]


class SizedWorker(FakeWorker):
    """A worker whose step has activations that grow with the size of a sample, such as its tokens.

    Attributes:
        shape_of: the activations' shape from batch size and size of a sample; an element is a byte.
        longest: the largest size of a sample that the model was made for.
        fails_above: the size of a sample beyond which it fails.
    """

    def __init__(self, *, longest: int | None = None, own_size: int = 512) -> None:
        super().__init__()
        self.longest = longest
        self.own_size = own_size
        self.fails_above: int | None = None
        self.shape_of: Callable[[int, int], tuple[int, ...]] = lambda batch, size: (batch, size, 4096)

    def __call__(self, spec: TrialSpec) -> TrialOutcome:
        size = spec.knobs.seq_len or self.own_size
        sample = SampleSize(size=size, multiple=64, longest=self.longest)

        def trace_at(batch_size: int) -> Trace:
            trace = step_trace(batch_size)
            shape = self.shape_of(batch_size, size)
            last = dataclasses.replace(trace.allocations[-1], num_bytes=math.prod(shape), shape=shape)
            return dataclasses.replace(trace, allocations=(*trace.allocations[:-1], last), sample=sample)

        self.trace_at = trace_at
        fails = self.fails_above is not None and size > self.fails_above
        error = TrialError(kind="user", message="ValueError: too long", traceback="line 1")
        self.failure = (Verdict.FAILED, error) if fails else None
        return super().__call__(spec)

    @property
    def points(self) -> list[tuple[int, int | None]]:
        """Batch sizes and sizes of a sample that were traced."""
        return [(spec.batch_size, spec.knobs.seq_len) for spec in self.specs]


class FakeCard:
    """A card that measures the step.

    Attributes:
        mib_per_sample: the memory of a sample in MiB, by convolution algorithm or for all.
        soak_mib: the memory in MiB that a trial of more than three steps takes beside.
        surprises: by batch size, the ends of its next trials in place of measurements: a verdict, with
            a traceback where it is the user's, or an exception.
        samples_per_second: its speed at a batch size.
        specs: the trials that it ran.
    """

    def __init__(self, mib_per_sample: int | dict[str, int] = 20) -> None:
        self.mib_per_sample = mib_per_sample
        self.surprises: dict[int, list[Verdict | type[BaseException]]] = {}
        self.samples_per_second: Callable[[int], float] = lambda batch_size: 2.0 * batch_size
        self.soak_mib = 0
        self.specs: list[TrialSpec] = []

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        future: Future[TrialOutcome] = Future()
        future.set_result(self.measure(spec))
        return future

    def capacity(self, trial: Probe | TrialSpec) -> int:
        return 1

    def measure(self, spec: TrialSpec) -> TrialOutcome:
        self.specs.append(spec)
        per_sample = self.mib_per_sample
        mib = per_sample if isinstance(per_sample, int) else per_sample[spec.knobs.conv_algo]
        peak_bytes = (PARAMETER_MIB + mib * spec.batch_size) * MIB
        if spec.num_steps > 3:
            peak_bytes += self.soak_mib * MIB
        assert spec.budget_bytes is not None
        verdict = Verdict.FITS if peak_bytes <= spec.budget_bytes else Verdict.OOM
        error = None
        if self.surprises.get(spec.batch_size):
            surprise = self.surprises[spec.batch_size].pop(0)
            if not isinstance(surprise, Verdict):
                raise surprise
            verdict, error = surprise, TrialError(kind="user", message="it broke", traceback="line 1")
        fits = verdict is Verdict.FITS
        return TrialOutcome(
            verdict=verdict,
            evidence=Evidence.MEASURED,
            device=Device(kind="cuda", name="real card", driver="570.1"),
            batch_size=spec.batch_size,
            knobs=spec.knobs,
            steady=Peaks(peak_bytes // 2, peak_bytes, peak_bytes + 400 * MIB) if fits else Peaks(),
            num_steps_done=spec.num_steps if fits else 0,
            step_seconds=spec.batch_size / self.samples_per_second(spec.batch_size) if fits else None,
            wall_seconds=7.0,
            error=error,
        )

    @property
    def tried(self) -> list[int]:
        return [spec.batch_size for spec in self.specs]


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def make_sized_worker() -> type[SizedWorker]:
    return SizedWorker


@pytest.fixture
def make_trace() -> Callable[..., Trace]:
    return step_trace


@pytest.fixture
def make_card() -> type[FakeCard]:
    return FakeCard


@pytest.fixture
def card() -> Card:
    return Card(name="a-card", architecture="sm_80", context_bytes=400 * MIB)


@pytest.fixture
def exact() -> Residuals:
    return EXACT


@pytest.fixture
def workload() -> WorkloadRef:
    return WorkloadRef(kind="builtin", target="step")


@pytest.fixture
def make_curve(card: Card, workload: WorkloadRef) -> Callable[..., PredictedCurve]:
    """Makes the curve of a step; further arguments are those of `step_trace`."""

    def make(
        knobs: Knobs = Knobs(),  # noqa: B008 - frozen
        *,
        residuals: Residuals = EXACT,
        risk: Risk = Risk.SAFE,
        plans: PlanSources = FormulaPlans,
        **step: Any,
    ) -> PredictedCurve:
        worker = FakeWorker(lambda batch_size: step_trace(batch_size, **step))
        predictor = Predictor(workload, worker, residuals=residuals, plans=plans)
        return predictor.curve(knobs, card, risk=risk)

    return make


@pytest.fixture
def open_study() -> Iterator[Callable[..., TuningStudy]]:
    """Opens a study of two algorithms; all are closed at the end of the test."""
    opened = []

    def open_one(algos: tuple[str, ...] = ("cudnn", "native"), **options: Any) -> TuningStudy:
        space = SearchSpace(
            choices={"conv_algo": algos},
            min_batch=options.pop("min_batch", 1),
            max_batch=options.pop("max_batch", 300),
        )
        usual = {"budget_bytes": BUDGET_BYTES, "settings": {}, "name": "mine", "seed": 0}
        study = TuningStudy.open(space, **{**usual, **options})
        opened.append(study)
        return study

    yield open_one
    for study in opened:
        study.close()
