"""On how many GPUs of each card a batch fits."""

from __future__ import annotations

from typing import Any

import pytest

from autofit.errors import UsageError, WorkloadFailedError
from autofit.hardware.gpus import catalogue
from autofit.predict.predictor import Predictor
from autofit.questions.card_counts import on_how_many
from autofit.questions.cards import CardsAnswer, CardsQuestion, which_cards
from autofit.questions.check import Answer
from autofit.settings.parallels import parallels_by_number
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.setup import Setup
from tests.autofit.conftest import FakeWorker, step_trace

# 100 MiB, and what so many GPUs share of 960 MiB for each sample.
MIB_PER_SAMPLE = 960
STEP = TuneSettings(model="step")


@pytest.fixture
def ask(workload: WorkloadRef, exact: Any) -> Any:
    def predictor_of(setup: Setup) -> Predictor:
        if setup.num_ranks == 8:
            raise WorkloadFailedError("its layers cannot be spread over 8 GPUs")
        worker = FakeWorker(
            lambda batch_size: step_trace(batch_size, mib_per_sample=MIB_PER_SAMPLE // setup.num_ranks)
        )
        return Predictor(workload, worker, setup=setup, residuals=exact, plans=FormulaPlans)

    def ask(*numbers: int, kind: str = "fsdp") -> CardsAnswer:
        gpus = tuple(catalogue()[key] for key in ("t4", "gtx-1650"))
        question = CardsQuestion(
            gpus=gpus, batch_size=8, parallels=parallels_by_number(kind, numbers), prices={"t4": 0.5}
        )
        return on_how_many(predictor_of, STEP, question)

    ask.predictor_of = predictor_of  # type: ignore[attr-defined]
    return ask


def test_the_fewest_of_each_card_are_told_and_a_row_stands_for_each_number(ask: Any) -> None:
    answer = ask(1, 2, 4)
    rows = [(row.gpu, row.num_gpus, row.parallel, row.verdict is Answer.FITS) for row in answer.cards]
    assert rows == [
        ("gtx-1650", 1, "", False),
        ("gtx-1650", 2, "fsdp:2", False),
        ("gtx-1650", 4, "fsdp:4", False),
        ("t4", 1, "", True),
        ("t4", 2, "fsdp:2", True),
        ("t4", 4, "fsdp:4", True),
    ]
    assert answer.fewest_gpus == {"gtx-1650": None, "t4": 1}
    assert [row.samples_per_step for row in answer.cards[:3]] == [8, 16, 32]
    assert (answer.num_ranks, answer.parallel, answer.batch_size) == (1, "", 8)


def test_each_row_is_what_so_many_gpus_are_told_alone(ask: Any) -> None:
    of_four = STEP.with_parallel(parallels_by_number("fsdp", (4,))[0])
    question = CardsQuestion(gpus=(catalogue()["t4"],), batch_size=8, prices={"t4": 0.5})
    (alone,) = which_cards(ask.predictor_of(of_four.setup), of_four, question).cards
    among = next(row for row in ask(1, 4).cards if (row.gpu, row.num_gpus) == ("t4", 4))
    assert among == alone
    assert alone.usable_bytes < ask(1).cards[1].usable_bytes  # NCCL


def test_a_number_that_the_model_cannot_be_spread_over_is_a_row_with_the_reason(ask: Any) -> None:
    answer = ask(2, 8)
    refused = [row for row in answer.cards if row.reason]
    assert [(row.num_gpus, row.verdict, row.likely_verdict) for row in refused] == [
        (8, Answer.UNSURE, None),
        (8, Answer.UNSURE, None),
    ]
    assert answer.fewest_gpus == {"gtx-1650": None, "t4": 2}
    with pytest.raises(WorkloadFailedError, match="cannot be spread over 8 GPUs"):
        ask(8)


def test_a_card_has_its_price_whatever_is_predicted_of_it(ask: Any) -> None:
    assert {row.price for row in ask(4, 8).cards if row.gpu == "t4"} == {0.5}


def test_replicas_of_shards_have_a_row_for_every_split(ask: Any) -> None:
    assert [row.parallel for row in ask(4, kind="hsdp").cards] == ["hsdp:2x2"] * 2


def test_a_step_of_a_pipeline_has_all_its_microbatches(ask: Any) -> None:
    assert [row.samples_per_step for row in ask(1, 2, 4, kind="pp").cards[:3]] == [8, 16, 32]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gpus", "1,two"), "'1,two' is not a list of numbers of GPUs: write it as 1,2,4,8"),
        (("--gpus", "0,1"), "is not a list of numbers of GPUs"),
        (
            ("--gpus", "1,2", "--parallel", "fsdp:2"),
            "fsdp:2 says how many GPUs, as --gpus does: give the kind",
        ),
        (("--gpus", "2,4", "--parallel", "hsdp"), "hsdp cannot be of 2 ranks"),
        (("--gpus", "2,4", "--parallel", "zero"), "'zero' is not one of ddp, fsdp"),
        (("--gpus", "2,4", "--what-if"), "--what-if changes settings and cannot be combined with --gpus"),
    ],
)
def test_bad_input_is_one_sentence(options: tuple[str, ...], said: str, capsys: Any) -> None:
    from autofit.cli import main

    assert main(["cards", "--model", "davenet", "--batch-size", "8", *options]) == UsageError.exit_code
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
