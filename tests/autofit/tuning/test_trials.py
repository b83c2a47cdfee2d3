"""Settings that are beyond the budget by any prediction are not run; their predictions answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autofit.dispatch.inline import InlineDispatcher
from autofit.events import Event, Noted
from autofit.predict.host_curve import HostCurve, HostProcess
from autofit.predict.predictor import Predictor
from autofit.settings.workloads import refer
from autofit.tuning.curves import CurveSet
from autofit.tuning.frontier import Frontier
from autofit.tuning.trials import Measuring, TrialsInReach
from autofit.tuning.tuner import Limits, Tuner
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence, Probe, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.setup import Setup
from autofit_workers.trials import door

MIB, GIB = 1024**2, 1024**3
BUDGET_BYTES = 512 * MIB
CUDNN, NATIVE = Knobs(conv_algo="cudnn"), Knobs(conv_algo="native")
SPEC = TrialSpec(
    workload=WorkloadRef(kind="builtin", target="step"),
    batch_size=1,
    probe=Probe.CUDA,
    budget_bytes=BUDGET_BYTES,
)


@pytest.fixture
def make_curves(make_curve: Any) -> Callable[..., CurveSet]:
    """Predictions by algorithm from what a sample takes, beside the 100 MiB of the step."""

    def make(**mib_per_sample: int) -> CurveSet:
        curves = CurveSet()
        for name, mib in mib_per_sample.items():
            knobs = Knobs(conv_algo=name)
            curves.add(knobs, make_curve(knobs, mib_per_sample=mib))
        return curves

    return make


def tune(study: Any, curves: CurveSet, card: Any, **options: Any) -> Frontier:
    trials = TrialsInReach(card, curves, settings=(CUDNN, NATIVE), min_batch=1, budget_bytes=BUDGET_BYTES)
    return Tuner(
        spec=SPEC, study=study, curves=curves, trials=trials, emit=lambda _event: None, **options
    ).run()


class Several:
    """A card that pretends to be several."""

    def __init__(self, card: Any) -> None:
        self.submit = card.submit

    def capacity(self, _trial: Any) -> int:
        return 4


@pytest.mark.parametrize("num_workers", [1, 4])
def test_what_cannot_fit_is_predicted_not_tried(
    open_study: Any, make_curves: Any, make_card: Any, num_workers: int
) -> None:
    card, curves = make_card(), make_curves(cudnn=20, native=700)
    frontier = tune(open_study(curves=curves.prior), curves, card if num_workers == 1 else Several(card))
    assert {spec.knobs for spec in card.specs} == {CUDNN}
    entries = {entry.knobs: entry for entry in frontier.entries()}
    assert entries[CUDNN].largest_batch == 20
    refused = entries[NATIVE]
    assert (refused.largest_batch, refused.first_failing_batch) == (None, 1)
    assert (refused.evidence, refused.is_settled) == (Evidence.PREDICTED, True)
    assert (
        refused.reason == "batch 1 is predicted to need 800.00 MiB, over the budget of 512.00 MiB: not tried"
    )


def test_a_prediction_that_may_be_wrong_is_tried(open_study: Any, make_curves: Any, make_card: Any) -> None:
    card, curves = make_card(), make_curves(cudnn=20, native=450)
    tune(open_study(curves=curves.prior), curves, card)
    assert {spec.knobs for spec in card.specs} == {CUDNN, NATIVE}


def test_where_all_are_out_of_reach_the_least_needy_is_tried(
    open_study: Any, make_curves: Any, make_card: Any
) -> None:
    card, curves = make_card({"native": 30}), make_curves(cudnn=900, native=700)
    frontier = tune(open_study(curves=curves.prior), curves, card)
    assert {spec.knobs for spec in card.specs} == {NATIVE}
    best = frontier.best()
    assert best is not None
    assert (best.knobs, best.batch_size) == (NATIVE, 13)


def test_without_predictions_everything_is_tried(open_study: Any, make_card: Any) -> None:
    card = make_card(900)
    tune(open_study(), CurveSet(), card)
    assert {spec.knobs for spec in card.specs} == {CUDNN, NATIVE}


def test_what_is_not_tried_counts_for_no_limit_on_trials(
    open_study: Any, make_curves: Any, make_card: Any
) -> None:
    card, curves = make_card(), make_curves(cudnn=700, native=20)
    study = open_study(curves=curves.prior)
    tune(study, curves, card, limits=Limits(num_trials=2))
    assert len(card.specs) == study.num_measured == 2
    assert study.num_trials == 3


def test_what_is_to_be_known_of_a_dispatcher_is_told_once_when_it_is_needed() -> None:
    events: list[Event] = []
    with Measuring(lambda: InlineDispatcher(notes=("alone here",)), emit=events.append) as measuring:
        measuring.begin_to_connect()
        assert (measuring.notes, events) == ((), [])
        assert measuring.capacity(Probe.CPU) == 1
        assert measuring.capacity(Probe.PREDICT) == 1
    assert measuring.notes == ("alone here",)
    assert events == [Noted(text="alone here")]


def test_the_reason_says_what_takes_the_memory() -> None:
    """The question of 2017: columns of a 135×135 filter, one frame of 200."""
    knobs = Knobs(conv_algo="im2col")
    workload = refer("big-filter:135")
    steps = Predictor(workload, door.run, setup=Setup(mode="infer"), for_host=True).host_steps(knobs)
    curves = CurveSet()
    process = HostProcess(resident_bytes=300 * MIB, private_bytes=300 * MIB)
    curves.add_host(knobs, HostCurve(steps, lambda: process))
    need = curves.need(knobs, 200)
    assert need.workspace_bytes == 4 * 200 * 135 * 135 * 187 * 347 == 946_081_620_000
    trials = TrialsInReach(None, curves, settings=(knobs, CUDNN), min_batch=1, budget_bytes=int(3.88 * GIB))
    spec = TrialSpec(workload=workload, batch_size=1, probe=Probe.CPU, knobs=knobs)
    outcome = trials.submit(spec).result()
    assert (outcome.verdict, outcome.evidence) == (Verdict.OOM, Evidence.PREDICTED)
    assert outcome.environment["not_tried"] == "4.41 GiB of it for columns, N·C·filter·output"
