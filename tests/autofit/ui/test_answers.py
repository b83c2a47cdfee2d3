"""Moves answered from a worker's traces: equal to estimate, check and cards, from one curve; tabs apart."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest

from autofit.errors import AutofitError, InternalError
from autofit.events import EventSink
from autofit.hardware.gpus import catalogue
from autofit.predict.predictor import Predictor
from autofit.questions.cards import CardsQuestion, which_cards
from autofit.questions.check import run_check
from autofit.settings.tune_settings import TuneSettings
from autofit.ui.answers import Answers, Part
from autofit.ui.live import PROVED_BATCH
from autofit.ui.move import Move
from autofit.ui.threads import Threads
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.protocol import TrialError, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from tests.autofit.conftest import step_trace

Worker = Callable[[TrialSpec], TrialOutcome]


def internal(error: BaseException) -> AutofitError:
    return InternalError(f"unexpected: {error!r}")


def make_answers(worker: Worker, exact: Any, *, tracing: int = 2) -> Answers:
    def predictor_of(_settings: TuneSettings, workload: WorkloadRef, emit: EventSink) -> Predictor:
        return Predictor(workload, worker, residuals=exact, plans=FormulaPlans, emit=emit)

    stop = threading.Event()
    return Answers(Threads(tracing, stop), Threads(4, stop), internal, predictor_of)


def move(batch_size: int, number: int = 1, tab: str = "a", **options: str) -> Move:
    return Move(tab=tab, number=number, batch_size=batch_size, options={"model": "gpt2", **options})


async def all_parts(answers: Answers, asked: Move) -> list[Part]:
    return [part async for part in answers.parts(asked)]


def without_digest(document: dict[str, Any]) -> dict[str, Any]:
    """All but the digest of the trace: estimate's is of a trace at that very batch size."""
    return {name: value for name, value in plain(document).items() if name != "trace_digest"}


def of(parts: list[Part], name: str) -> Any:
    (found,) = [part[name] for part in parts if name in part]
    return found


def plain(document: Any) -> Any:
    return json.loads(json.dumps(document))


def test_fifty_moves_of_the_batch_equal_estimate_and_check_from_the_traces_of_one_curve(
    worker: Any, exact: Any, make_worker: Callable[[], Any]
):
    random = Random(53)
    sizes = [random.randint(2, 1024) for _ in range(50)]
    answers = make_answers(worker, exact)

    async def moves() -> list[list[Part]]:
        return [
            await all_parts(answers, move(size, number, gpu="t4"))
            for number, size in enumerate(sizes, start=1)
        ]

    answered = asyncio.run(moves())
    assert worker.traced == [4, 6, 10, PROVED_BATCH]  # the curve's, and what proves it: whatever was asked
    other = Predictor(
        WorkloadRef(kind="builtin", target="gpt2"), make_worker(), residuals=exact, plans=FormulaPlans
    )
    settings = move(1, gpu="t4").settings
    for size, parts in zip(sizes, answered, strict=True):
        estimate = other.estimate(settings.configuration("a test"), settings.card, size)
        answer = of(parts, "answer")
        assert without_digest(answer["estimate"]) == without_digest(estimate.to_dict())
        checked = run_check(settings, other, size).to_dict()
        assert plain({**answer["check"], "advice": None}) == plain({**checked, "advice": None})


@pytest.fixture
def make_worker(worker: Any) -> Callable[[], Any]:
    return type(worker)


def test_the_cards_are_those_of_autofit_cards_but_for_times_and_advice(worker: Any, exact: Any):
    parts = asyncio.run(all_parts(make_answers(worker, exact), move(300)))
    predictor = Predictor(
        WorkloadRef(kind="builtin", target="gpt2"), type(worker)(), residuals=exact, plans=FormulaPlans
    )
    question = CardsQuestion(gpus=tuple(catalogue().values()), batch_size=300)
    expected = plain(json.loads(which_cards(predictor, move(300).settings, question).to_json()))
    later = {"lever", "advice", "step_seconds", "samples_per_second", "relative_step_time"}

    def kept(document: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {name: value for name, value in card.items() if name not in later} for card in document["cards"]
        ]

    found = of(parts, "cards")
    assert kept(found) == kept(expected)
    beside = {"cards", "num_levers_untried"}
    assert {name: found[name] for name in found.keys() - beside} == {
        name: expected[name] for name in expected.keys() - beside
    }


def test_the_curve_goes_beyond_the_largest_batch_and_to_the_asked_one(worker: Any, exact: Any):
    answers = make_answers(worker, exact)
    parts = asyncio.run(all_parts(answers, move(8, gpu="t4")))
    drawn = of(parts, "curve")
    (largest,) = [card["largest_batch"] for card in of(parts, "cards")["cards"] if card["gpu"] == "t4"]
    likely = drawn["figure"]["data"][0]
    assert likely["x"][0] == 2
    assert likely["x"][-1] > largest
    at = likely["x"].index(largest)
    again = asyncio.run(all_parts(make_answers(type(worker)(), exact), move(largest, gpu="t4")))
    peak = of(again, "answer")["estimate"]["interval"]["likely_bytes"] / drawn["unit_bytes"]
    assert likely["y"][at] == pytest.approx(peak, abs=1e-3)


def test_a_batch_of_one_and_one_beyond_the_slider_have_traces_of_their_own(worker: Any, exact: Any):
    answers = make_answers(worker, exact)

    async def ask() -> None:
        for number, size in enumerate((1, 8, 5000, 4000), start=1):
            assert "answer" in (await all_parts(answers, move(size, number)))[-3]

    asyncio.run(ask())
    assert worker.traced == [4, 6, 10, 1, PROVED_BATCH, 5001]


def test_where_the_step_differs_between_batches_each_is_traced_and_equals_estimate(worker: Any, exact: Any):
    def trace_at(batch_size: int) -> Any:
        trace = step_trace(batch_size)
        if batch_size % 2 == 0:
            return trace
        more = dataclasses.replace(trace.allocations[-1], num_bytes=10**9)
        return dataclasses.replace(trace, allocations=(*trace.allocations[:-1], more))

    worker.trace_at = trace_at
    answers = make_answers(worker, exact)
    predictor = Predictor(
        WorkloadRef(kind="builtin", target="gpt2"), worker, residuals=exact, plans=FormulaPlans
    )
    settings = move(1).settings

    async def ask(size: int, number: int) -> Any:
        return of(await all_parts(answers, move(size, number)), "answer")

    for number, size in enumerate((21, 22, 33), start=1):
        found = asyncio.run(ask(size, number))["estimate"]
        expected = predictor.estimate(settings.configuration("a test"), settings.card, size)
        assert without_digest(found) == without_digest(expected.to_dict())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "nope"}, "there is no built-in workload 'nope'"),
        ({"model": "train.py"}, "'train.py' names a file but nothing in it"),
        ({"gpu": "zz"}, "no card named 'zz'"),
        ({"precision": "fp7"}, "'fp7' is not one of"),
        ({"seq_len": "0"}, "--seq-len"),
        ({"checkpointing": "every:0"}, "--checkpointing"),
    ],
)
def test_a_wrong_value_is_the_error_of_the_command(
    options: dict[str, str], said: str, *, worker: Any, exact: Any, tmp_path: Any, monkeypatch: Any
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (part,) = asyncio.run(all_parts(make_answers(worker, exact), move(8, **options)))
    assert (part["error"]["schema"], part["error"]["exit_code"]) == ("autofit.error/1", 2)
    assert said in part["error"]["message"]
    assert worker.traced == []


def test_a_workload_that_fails_and_a_mistake_of_ours_are_errors_too(worker: Any, exact: Any):
    worker.failure = Verdict.FAILED, TrialError(kind="user", message="ValueError: no")
    parts = asyncio.run(all_parts(make_answers(worker, exact), move(8)))
    assert (parts[-1]["error"]["exit_code"], "ValueError: no" in parts[-1]["error"]["message"]) == (4, True)

    def breaks(_spec: TrialSpec) -> TrialOutcome:
        raise KeyError("a mistake")

    parts = asyncio.run(all_parts(make_answers(breaks, exact), move(8)))
    assert parts[-1]["error"]["kind"] == InternalError.kind


class Gate:
    """Worker that waits at traces of one precision until it is opened."""

    def __init__(self, worker: Worker, precision: str) -> None:
        self._worker, self._precision = worker, precision
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, spec: TrialSpec) -> TrialOutcome:
        if spec.knobs.precision == self._precision:
            self.reached.set()
            assert self.opened.wait(60)
        return self._worker(spec)


async def until(parts: AsyncIterator[Part], name: str) -> Part:
    async for part in parts:
        if name in part:
            return part
    raise AssertionError(f"no part {name}")


def test_slow_traces_stop_no_other_tab_and_say_how_far_they_are(worker: Any, exact: Any):
    gate = Gate(worker, "bf16")

    async def ask() -> None:
        answers = make_answers(gate, exact, tracing=1)
        await all_parts(answers, move(8, tab="quick"))
        slow = answers.parts(move(8, tab="slow", precision="bf16"))
        progress = await until(slow, "progress")
        assert gate.reached.is_set()
        assert progress["progress"]["stage"] == "tracing batch 4"
        quick = await all_parts(answers, move(9, 2, tab="quick"))  # from kept traces, beside it
        assert of(quick, "answer")["estimate"]["batch_size"] == 9
        gate.opened.set()
        answer = await until(slow, "answer")
        assert answer["answer"]["estimate"]["knobs"]["precision"] == "bf16"

    asyncio.run(ask())


def test_a_later_move_of_a_tab_supersedes_the_earlier_one_and_none_of_others(worker: Any, exact: Any):
    gate = Gate(worker, "bf16")

    async def ask() -> None:
        answers = make_answers(gate, exact)
        first = asyncio.create_task(all_parts(answers, move(8, 1, precision="bf16")))
        waiting = asyncio.create_task(all_parts(answers, move(9, 2, precision="bf16")))
        other = asyncio.create_task(all_parts(answers, move(7, 1, tab="b", precision="bf16")))
        await asyncio.to_thread(gate.reached.wait)
        last = asyncio.create_task(all_parts(answers, move(10, 3)))
        assert of(await last, "answer")["estimate"]["batch_size"] == 10
        assert (await first)[-1] == {"superseded": 1}  # without waiting for its trace
        assert (await waiting)[-1] == {"superseded": 2}
        gate.opened.set()
        assert of(await other, "answer")["estimate"]["batch_size"] == 7

    asyncio.run(ask())


def test_two_tabs_at_once_get_their_own_answers(worker: Any, exact: Any):
    async def ask() -> list[list[Part]]:
        answers = make_answers(worker, exact)
        return await asyncio.gather(
            *(all_parts(answers, move(size, tab=f"tab {size}")) for size in range(2, 9))
        )

    for size, parts in enumerate(asyncio.run(ask()), start=2):
        assert of(parts, "answer")["estimate"]["batch_size"] == of(parts, "cards")["batch_size"] == size
    assert worker.traced == [4, 6, 10, PROVED_BATCH]
