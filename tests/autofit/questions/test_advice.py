"""Advice where nothing fits: changes tried alone, and together, within a time."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from autofit.answers.words.commands import as_typed
from autofit.cli.commands.tune import tune
from autofit.hardware.card import Card
from autofit.predict.confidence import Residuals
from autofit.predict.predictor import Predictor
from autofit.questions.advice import Advice, Adviser
from autofit.settings.goals import Risk
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.knobs import KNOBS, Knobs
from autofit_workers.spec.protocol import TrialOutcome, TrialSpec

MIB = 1024**2
SAVED_MIB = {
    "--optimizer-impl fused": 100,
    "--checkpointing blocks": 60,
    "--precision amp-bf16": 200,
}
STEP_MIB, EXTRA_MIB = 800, 32

Advised = Callable[..., Advice]
Saved = Callable[[set[str]], int]


def sum_of_each(options: set[str]) -> int:
    return sum(mib for option, mib in SAVED_MIB.items() if option in options)


@pytest.fixture
def advised(workload: Any, worker: Any, card: Card, exact: Residuals, make_trace: Any) -> Advised:
    """Advice on a step of 800 MiB beside its parameters, from which changes take their part."""

    def ask(
        to_save_mib: int,
        saved: Saved = sum_of_each,
        *,
        convolves: bool = False,
        then_to_save_mib: int | None = None,
        **options: Any,
    ) -> Advice:
        def traced(spec: TrialSpec) -> TrialOutcome:
            changed = {
                f"--{knob.option} {getattr(spec.knobs, knob.name)}"
                for knob in KNOBS.values()
                if getattr(spec.knobs, knob.name) != knob.default
            }
            worker.trace_at = lambda batch_size: make_trace(
                batch_size,
                mib_per_sample=STEP_MIB - saved(changed) - EXTRA_MIB * len(changed),
                num_extra=len(changed),  # so that no trace is another's
                num_channels=1 if convolves else None,
            )
            answered: TrialOutcome = worker(spec)
            return answered

        predictor = Predictor(workload, traced, residuals=exact, plans=FormulaPlans)
        asked = {"risk": Risk.SAFE, "clock": lambda: 0.0, **options}
        base_bytes = predictor.curve_at(Knobs(), card, 1).peak_reserved_bytes(1)
        adviser = Adviser(predictor, Knobs(), 1, **asked)
        advice = adviser.on(card, base_bytes - to_save_mib * MIB)
        return advice if then_to_save_mib is None else adviser.on(card, base_bytes - then_to_save_mib * MIB)

    return ask


def chosen(advice: Advice) -> set[str]:
    assert advice.combination is not None
    return set(advice.combination.options)


def test_levers_are_listed_by_what_they_save_and_say_which_are_enough(advised: Advised) -> None:
    tried = {lever.how: (lever.saved_bytes, lever.fits) for lever in advised(100).levers[:3]}
    assert tried == {
        "--precision amp-bf16": (200 * MIB, True),
        "--optimizer-impl fused": (100 * MIB, True),
        "--checkpointing blocks": (60 * MIB, False),
    }


@pytest.mark.parametrize(
    ("to_save_mib", "options"),
    [
        (100, {"--optimizer-impl fused"}),
        (60, {"--optimizer-impl fused"}),
        (160, {"--optimizer-impl fused", "--checkpointing blocks"}),
        (200, {"--precision amp-bf16"}),
        (360, {"--optimizer-impl fused", "--checkpointing blocks", "--precision amp-bf16"}),
    ],
    ids=["one", "the one that saves most", "two", "one that rounds, alone", "all"],
)
def test_what_changes_no_numbers_is_combined_first_and_nothing_needless_is_kept(
    advised: Advised, to_save_mib: int, options: set[str]
) -> None:
    advice = advised(to_save_mib)
    assert chosen(advice) == options
    assert advice.combination is not None
    assert advice.combination.peak_reserved_bytes <= advice.peak_reserved_bytes - to_save_mib * MIB


def test_of_what_is_as_gentle_the_pair_that_saves_most_is_told(advised: Advised) -> None:
    """`loop` saves more beside `every:2` than beside `blocks`, which saves more alone."""
    saved = {
        frozenset({"--checkpointing blocks"}): 60,
        frozenset({"--checkpointing every:2"}): 50,
        frozenset({"--optimizer-impl loop"}): 10,
        frozenset({"--checkpointing blocks", "--optimizer-impl loop"}): 70,
        frozenset({"--checkpointing every:2", "--optimizer-impl loop"}): 95,
    }
    advice = advised(65, lambda options: saved.get(frozenset(options), 0))
    assert chosen(advice) == {"--checkpointing every:2", "--optimizer-impl loop"}


def test_changes_that_save_only_together_are_found(advised: Advised) -> None:
    """As where the optimizer's step and the backward pass are as high as each other."""
    together = {"--optimizer-impl fused", "--checkpointing blocks"}
    advice = advised(80, lambda options: 100 if together <= options else 0)
    assert chosen(advice) == together
    assert not [lever for lever in advice.levers if lever.saved_bytes]


def test_a_gentler_value_of_a_knob_gives_way_where_it_is_not_enough(advised: Advised) -> None:
    saved = {"--precision amp-bf16": 100, "--precision bf16": 150, "--optimizer-impl fused": 50}
    advice = advised(190, lambda options: sum(saved.get(option, 0) for option in options))
    assert chosen(advice) == {"--precision bf16", "--optimizer-impl fused"}


def test_two_changes_that_cost_nothing_come_before_one_that_takes_time(advised: Advised) -> None:
    saved = {"--optimizer-impl fused": 50, "--memory-format channels_last": 40, "--checkpointing blocks": 300}
    options = {"fixed": ("conv_algo",), "convolves": True}
    advice = advised(80, lambda options: sum(saved.get(option, 0) for option in options), **options)
    assert chosen(advice) == {"--optimizer-impl fused", "--memory-format channels_last"}


def test_what_fits_already_needs_no_combination(advised: Advised) -> None:
    advice = advised(0)
    assert advice.combination is None
    assert all(lever.fits for lever in advice.levers if lever.saved_bytes >= 0)


def test_where_nothing_helps_no_combination_is_told(advised: Advised) -> None:
    advice = advised(380)
    assert advice.combination is None
    assert advice.is_complete


def test_a_knob_that_is_searched_anyway_is_left_as_it_is(advised: Advised) -> None:
    advice = advised(100, fixed=("optimizer_impl",))
    assert not [lever for lever in advice.levers if lever.name == "optimizer_impl"]
    assert chosen(advice) == {"--precision amp-bf16"}


def test_no_trace_is_begun_that_would_take_longer_than_there_is_time(advised: Advised) -> None:
    """Each takes four of the ten seconds; what costs no trace is tried all the same."""
    seconds = [0.0]

    def saved(options: set[str]) -> int:
        seconds[0] += 4.0
        return sum_of_each(options)

    advice = advised(380, saved, clock=lambda: seconds[0])
    assert not advice.is_complete
    assert [lever.name for lever in advice.levers if lever.name == "allocator"]
    assert len([lever for lever in advice.levers if lever.name != "allocator"]) == 2
    assert seconds[0] == 12.0  # the base's and two others'


def test_once_something_fits_the_rest_takes_no_longer_than_finding_it_did(advised: Advised) -> None:
    """Each trace takes ten seconds; the first changes that are tried leave a step's numbers as they are."""
    tried: list[set[str]] = []

    def saved(options: set[str]) -> int:
        tried.append(options)
        return 400 if "--optimizer-impl fused" in options else 0

    advice = advised(380, saved, clock=lambda: 10.0 * len(tried), seconds=1000.0)
    assert chosen(advice) == {"--optimizer-impl fused"}
    assert not advice.is_complete
    assert len(tried) <= 20


def test_what_soon_fits_one_card_takes_no_time_from_the_next(advised: Advised) -> None:
    tried: list[set[str]] = []

    def saved(options: set[str]) -> int:
        tried.append(options)
        return 400 * ("--optimizer-impl fused" in options) + 300 * ("--precision amp-bf16" in options)

    times = {"clock": lambda: 10.0 * len(tried), "seconds": 1000.0}
    assert advised(600, saved, **times).combination is not None
    tried.clear()
    advice = advised(380, saved, then_to_save_mib=600, **times)
    assert advice.combination is not None


def test_changes_that_cost_a_trace_may_be_left_out(advised: Advised) -> None:
    advice = advised(100, with_traces=False)
    assert [lever.name for lever in advice.levers] == ["allocator"]


def test_when_the_time_is_over_nothing_further_is_tried(advised: Advised) -> None:
    seconds = itertools.count()
    advice = advised(380, clock=lambda: float(next(seconds)), seconds=3.0)
    assert len(advice.levers) < len(advised(380).levers)
    assert not advice.is_complete


def test_a_command_to_copy_is_read_as_it_was_typed() -> None:
    typed = {"model": "my file.py:net", "gpu_mem": "2G", "search": "precision=fp32;allocator=default"}
    words = shlex.split(as_typed("tune", {**typed, "quiet": True, "gpu": None}))
    assert words[:2] == ["autofit", "tune"]
    read = tune.make_context("tune", words[2:]).params
    assert {name: read[name] for name in (*typed, "quiet", "gpu")} == {**typed, "quiet": True, "gpu": None}


def test_a_command_to_copy_uses_the_traces_that_were_made_anew() -> None:
    assert as_typed("check", {"model": "lstm", "fresh": True}) == "autofit check --model lstm"


def test_where_the_tensors_alone_are_too_much_no_time_goes_to_what_leaves_them_as_they_are(
    advised: Advised, worker: Any
) -> None:
    """A trace takes a second; layouts and algorithms around the tensors would cost all that there is."""

    def saved(options: set[str]) -> int:
        return 700 if "--checkpointing blocks" in options else 0

    advice = advised(600, saved, convolves=True, clock=lambda: float(len(worker.traced)), seconds=3.0)
    assert chosen(advice) == {"--checkpointing blocks"}
    assert not advice.is_complete
