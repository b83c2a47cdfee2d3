"""Advice where nothing fits: changes tried alone, and together, within a time."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from autofit.cli.commands.tune import tune
from autofit.cli.text.commands import as_typed
from autofit.hardware.card import Card
from autofit.predict.confidence import Residuals
from autofit.predict.predictor import Predictor
from autofit.questions.advice import Advice, advise
from autofit.settings.goals import Risk
from workers.knobs import Knobs
from workers.protocol import TrialOutcome, TrialSpec

MIB = 1024**2
SAVED_MIB = {
    ("optimizer_impl", "fused"): 100,
    ("checkpointing", "blocks"): 60,
    ("precision", "amp-bf16"): 200,
}
STEP_MIB = 400

Advised = Callable[..., Advice]


@pytest.fixture
def advised(workload: Any, worker: Any, card: Card, exact: Residuals, make_trace: Any) -> Advised:
    """Advice on a step of 400 MiB beside its parameters, from which the changes above take their part."""

    def traced(spec: TrialSpec) -> TrialOutcome:
        saved = sum(mib for (knob, value), mib in SAVED_MIB.items() if getattr(spec.knobs, knob) == value)
        worker.trace_at = lambda batch_size: make_trace(batch_size, mib_per_sample=STEP_MIB - saved)
        answered: TrialOutcome = worker(spec)
        return answered

    def ask(to_save_mib: int, **options: Any) -> Advice:
        predictor = Predictor(workload, traced, residuals=exact)
        asked = {"risk": Risk.SAFE, "clock": lambda: 0.0, **options}
        base = predictor.curve_at(Knobs(), card, 1).peak_reserved_bytes(1)
        return advise(predictor, Knobs(), card, 1, limit_bytes=base - to_save_mib * MIB, **asked)

    return ask


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
    assert advice.combination is not None
    assert set(advice.combination.options) == options
    assert advice.combination.peak_reserved_bytes <= advice.peak_reserved_bytes - to_save_mib * MIB


def test_where_nothing_helps_no_combination_is_told(advised: Advised) -> None:
    advice = advised(380)
    assert advice.combination is None
    assert advice.is_complete


def test_a_knob_that_is_searched_anyway_is_left_as_it_is(advised: Advised) -> None:
    advice = advised(100, fixed=("optimizer_impl",))
    assert not [lever for lever in advice.levers if lever.name == "optimizer_impl"]
    assert advice.combination is not None
    assert advice.combination.options == ("--precision amp-bf16",)


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
