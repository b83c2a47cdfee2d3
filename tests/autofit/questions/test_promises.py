"""Promises of changes: what they are made of, and that they decide what is tried first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from autofit.hardware.card import Card
from autofit.predict.confidence import Residuals
from autofit.predict.predictor import Predictor
from autofit.questions.advice import Adviser, TwoCards
from autofit.questions.levers import Effect, Lever, levers, shorter_samples, smaller_batches
from autofit.questions.promises import Parts, Promises, candidates, minimal, parts_of
from autofit.settings.goals import Risk
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import TrialOutcome, TrialSpec
from autofit_workers.spec.setup import Parallel, Setup
from autofit_workers.spec.trace import Allocation, Category, Mark, SampleSize, Trace

MIB = 1024**2
WEIGHTS, STATES, ACTIVATIONS = 100, 200, 400
SAMPLE = SampleSize(size=512, multiple=64)


def training(
    *,
    weights: int = WEIGHTS,
    states: int = STATES,
    activations: int = ACTIVATIONS,
    gradients: int = WEIGHTS,
    temporaries: int = WEIGHTS,
    batch_size: int = 4,
) -> Trace:
    """A step of a model of 100 MiB by AdamW: forward, backward, and an optimizer's step with temporaries."""
    parts = (
        (Category.PARAMETER, weights),
        (Category.OPTIMIZER_STATE, states),
        (Category.ACTIVATION, activations),
        (Category.GRADIENT, gradients),
        (Category.OTHER, temporaries),
    )
    positions = {2: "step 1 input", 3: "step 1 forward", 4: "step 1 backward", 6: "step 1 optimizer"}
    return Trace(
        workload="step",
        batch_size=batch_size,
        mode="train",
        optimizer="adamw",
        knobs=Knobs(),
        allocations=tuple(
            Allocation(num_bytes=mib * MIB, category=category, dtype="uint8", shape=(mib, MIB))
            for category, mib in parts
        ),
        events=(0, 1, 2, ~2, 3, 4, ~4, ~3),
        marks=tuple(Mark(position=position - 1, name=name) for position, name in positions.items()),
        versions={"torch": "2.13.0"},
        sample=SAMPLE,
    )


def lever(how: str) -> Lever:
    knobs = Knobs()
    every = (*levers(knobs), *smaller_batches(knobs, 4, "train"), *shorter_samples(knobs, SAMPLE))
    (found,) = (each for each in every if each.how == how)
    return found


@pytest.fixture
def promises() -> Promises:
    return Promises(training(), Knobs(), 4)


def test_a_step_is_its_parts_and_its_peak_the_higher_of_two_sums() -> None:
    parts = parts_of(training())
    assert parts == Parts(
        weights=100 * MIB,
        gradients=100 * MIB,
        states=200 * MIB,
        activations=400 * MIB,
        temporaries=100 * MIB,
        kept_gradients=0,
    )
    assert parts.peak_bytes == 700 * MIB
    assert parts_of(training(activations=150)).peak_bytes == 500 * MIB  # of the optimizer's step


@pytest.mark.parametrize(
    ("options", "peak_mib"),
    [
        (["--optimizer-impl fused"], 700),
        (["--checkpointing blocks"], 500),
        (["--checkpointing blocks", "--optimizer-impl fused"], 400),
        (["--checkpointing blocks", "--optimizer-in-backward"], 380),
        (["--optimizer adamw8bit", "--checkpointing blocks"], 250),
        (["--optimizer adafactor", "--optimizer-in-backward", "--checkpointing blocks"], 181),
        (["--precision bf16"], 350),
        (["--batch-size 2 --grad-accumulation 2"], 600),
        (["--seq-len 256"], 500),
    ],
)
def test_a_change_leaves_a_share_of_the_parts_that_it_is_of(
    promises: Promises, options: list[str], peak_mib: int
) -> None:
    assert round(700 * promises.share([lever(how) for how in options])) == peak_mib


def test_an_adapter_leaves_few_gradients_and_states_and_quantized_weights_come_with_one(
    promises: Promises,
) -> None:
    adapter = lever("--adapter lora:r=16,targets=all-linear")
    quantized = lever("--adapter lora:r=16,targets=all-linear --base nf4")
    assert promises.share([adapter]) < 0.75
    assert promises.share([quantized]) < promises.share([adapter])
    assert promises.names(quantized) == {"adapter", "base"}


def test_changes_of_the_same_knob_are_no_candidate_together(promises: Promises) -> None:
    every = (*levers(Knobs()), *smaller_batches(Knobs(), 4, "train"))
    for candidate in candidates(every, promises):
        names = [name for each in candidate.changes for name in promises.names(each)]
        assert len(names) == len(set(names))


def test_what_promises_enough_alone_is_tried_with_nothing_else(promises: Promises) -> None:
    found = [set(each.changes) for each in minimal(candidates(levers(Knobs()), promises), 0.55)]
    assert {lever("--precision bf16")} in found
    assert not [changes for changes in found if len(changes) > 1 and lever("--precision bf16") in changes]


@pytest.fixture
def adviser(workload: Any, worker: Any, exact: Residuals) -> Callable[..., Adviser]:
    """Of a step that has what its knobs leave of it; each trace takes four of the ten seconds."""

    def traced(spec: TrialSpec) -> TrialOutcome:
        states = {"adamw8bit": 50, "adafactor": 2}.get(spec.knobs.optimizer or "", STATES)
        trained = (100 if spec.knobs.adapter is None else 1) // spec.setup.num_ranks
        is_at_once = spec.knobs.optimizer is None and not spec.knobs.optimizer_in_backward
        activations = 60 if spec.knobs.checkpointing == "blocks" else ACTIVATIONS
        worker.trace_at = lambda batch_size: dataclasses.replace(
            training(
                weights=WEIGHTS // spec.setup.num_ranks,
                states=states * trained // 100,
                activations=activations * batch_size // 4,
                gradients=0 if spec.knobs.optimizer_in_backward else trained,
                temporaries=trained if is_at_once else 0,
            ),
            batch_size=batch_size,
        )
        answered: TrialOutcome = worker(spec)
        return answered

    def made(**options: Any) -> Adviser:
        predictor = Predictor(workload, traced, residuals=exact, plans=FormulaPlans)
        asked = {"risk": Risk.SAFE, "clock": lambda: 4.0 * len(worker.traced), **options}
        return Adviser(predictor, Knobs(), 4, **asked)

    return made


def test_the_pair_that_fits_is_the_first_that_is_tried(
    adviser: Callable[..., Adviser], card: Card, worker: Any
) -> None:
    advice = adviser().on(card, 380 * MIB)
    assert advice.combination is not None
    assert set(advice.combination.options) == {"--checkpointing blocks", "--optimizer adamw8bit"}
    assert len(worker.traced) == 2
    assert not advice.is_complete


def test_with_time_other_kinds_of_changes_that_fit_are_told_too(
    adviser: Callable[..., Adviser], card: Card
) -> None:
    advice = adviser(clock=lambda: 0.0).on(card, 380 * MIB)
    told = {option for other in advice.others for option in other.options}
    assert "--adapter lora:r=16,targets=all-linear" in told
    assert all(other.peak_reserved_bytes <= 380 * MIB for other in advice.others)


def test_what_was_asked_for_gives_way_before_something_else_is_trained(
    adviser: Callable[..., Adviser], card: Card
) -> None:
    given = adviser(given=("optimizer",)).on(card, 380 * MIB).combination
    assert given is not None
    assert set(given.options) == {"--checkpointing blocks", "--optimizer adamw8bit"}


@pytest.mark.parametrize(
    ("limit_mib", "options"),
    [
        (460, ("--parallel fsdp:2", "--batch-size 2")),
        (300, ("--parallel fsdp:2", "--batch-size 2", "--checkpointing blocks")),
        (50, None),
    ],
)
def test_two_cards_are_a_way_with_as_many_samples_a_step(
    adviser: Callable[..., Adviser], card: Card, limit_mib: int, options: tuple[str, ...] | None
) -> None:
    setup = Setup(parallel=Parallel.parse("fsdp:2"), rank=0)
    two = TwoCards(setup=setup, card=card, limit_bytes=limit_mib * MIB)
    advice = adviser(clock=lambda: 0.0, two_cards=two).on(card, 380 * MIB)
    told = [other.options for other in advice.others if other.effect is Effect.MORE_CARDS]
    assert told == ([] if options is None else [options])


def test_two_cards_cost_a_trace_for_which_there_has_to_be_time(
    adviser: Callable[..., Adviser], card: Card, worker: Any
) -> None:
    two = TwoCards(setup=Setup(parallel=Parallel.parse("fsdp:2"), rank=0), card=card, limit_bytes=460 * MIB)
    adviser(two_cards=two).on(card, 380 * MIB)
    assert not [spec for spec in worker.specs if spec.setup.parallel]
