"""Several ways of training together: which of them is the answer, and what becomes of the others."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import autofit
from autofit.errors import DispatchError, StudyMismatchError, UsageError, WorkloadFailedError
from autofit.events import Event, Noted
from autofit.hardware.budget import make_budget
from autofit.settings.goals import Objective
from autofit.settings.resolve import resolve_settings
from autofit.settings.tune_settings import TuneSettings
from autofit.tuning.found import Best
from autofit.tuning.parallels import compare_parallels
from autofit.tuning.result import TuneResult
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, TrialOutcome, Verdict

TINY = f"{Path(__file__).parents[1] / 'tiny_workloads.py'}:linear"
CARD = Device(kind="cuda", name="t4")


def settings(parallels: str = "ddp:4,fsdp:4,fsdp:2+tp:2", **options: object) -> TuneSettings:
    given = {"model": "davenet", "gpu": "t4", "search": f"parallel={parallels}", **options}
    return resolve_settings(given, {}, None)


def answer(asked: TuneSettings, batch_size: int | None, *, rate: float | None = None) -> TuneResult:
    """Of a search that measured one trial."""
    parallel = asked.setup.parallel
    best = None
    if batch_size is not None:
        best = Best(
            batch_size=batch_size,
            knobs=Knobs(),
            peak_allocated_bytes=1,
            peak_reserved_bytes=1,
            device_peak_bytes=1,
            evidence=Evidence.PREDICTED,
            samples_per_second=rate,
            parallel=str(parallel),
            samples_per_step=batch_size * parallel.num_replicas,
        )
    trial = TrialOutcome(
        verdict=Verdict.FITS, evidence=Evidence.MEASURED, device=CARD, batch_size=1, knobs=Knobs()
    )
    return TuneResult(
        workload="step",
        budget=make_budget(16 * 1024**3),
        device=CARD,
        best=best,
        frontier=(),
        trials=(trial,),
        wall_seconds=1.0,
        study=asked.study or f"study-{parallel}",
        fingerprint="",
        num_ranks=parallel.num_ranks,
        parallel=str(parallel) if parallel else "",
    )


def answering(**batches: int | None):  # type: ignore[no-untyped-def]
    """Answers with these batches of a rank, by kind."""

    def ask(asked: TuneSettings) -> TuneResult:
        return answer(asked, batches[asked.setup.parallel.degrees[-1][0]])

    return ask


def test_the_largest_global_batch_wins_and_not_the_largest_of_a_rank() -> None:
    result = compare_parallels(settings(), answering(ddp=10, fsdp=16, tp=30))
    assert (result.parallel, result.samples_per_step) == ("fsdp:4", 64)  # tp: 2 replicas of 30
    assert [one.best and one.best.samples_per_step for one in result.parallels] == [40, 64, 60]
    assert TuneResult.from_dict(json.loads(result.to_json())) == result


def test_of_equals_the_first_wins_and_where_nothing_fits_nothing_does() -> None:
    assert compare_parallels(settings(), answering(ddp=16, fsdp=16, tp=32)).parallel == "ddp:4"
    assert compare_parallels(settings(), answering(ddp=None, fsdp=None, tp=1)).parallel == "fsdp:2,tp:2"
    nothing = compare_parallels(settings(), answering(ddp=None, fsdp=None, tp=None))
    assert (nothing.best, len(nothing.parallels)) == (None, 3)


def test_by_throughput_the_fastest_wins() -> None:
    rates = {"ddp:4": 90.0, "fsdp:4": 70.0, "fsdp:2,tp:2": 80.0}
    fast = settings(probe="measure", objective="throughput")
    assert fast.objective is Objective.THROUGHPUT
    result = compare_parallels(fast, lambda one: answer(one, 4, rate=rates[str(one.setup.parallel)]))
    assert result.parallel == "ddp:4"


@pytest.mark.parametrize(("of_tp", "wins"), [(80.0, "ddp:4"), (None, "fsdp:4")])
def test_predicted_rates_decide_where_all_of_them_are_said(of_tp: float | None, wins: str) -> None:
    rates = {"ddp:4": 90.0, "fsdp:4": 70.0, "fsdp:2,tp:2": of_tp}

    def ask(asked: TuneSettings) -> TuneResult:
        parallel = str(asked.setup.parallel)
        found = answer(asked, 5 if parallel == "fsdp:4" else 4)
        assert found.best is not None
        best = dataclasses.replace(found.best, predicted_samples_per_second=rates[parallel])
        return dataclasses.replace(found, best=best)

    result = compare_parallels(settings(objective="throughput"), ask)
    assert result.parallel == wins
    notes = [note for note in result.notes if "compared by their global batches" in note]
    assert [note.split(":")[0] for note in notes] == ([] if of_tp else ["fsdp"])


def test_what_cannot_train_so_is_refused_with_its_reason_and_the_others_go_on() -> None:
    told: list[Event] = []

    def ask(asked: TuneSettings) -> TuneResult:
        if asked.setup.parallel.degree("tp") > 1:
            raise UsageError("the model has no plan")
        return answer(asked, 4)

    result = compare_parallels(settings(), ask, told.append)
    assert [one.refused for one in result.parallels] == ["", "", "the model has no plan"]
    assert [event.text for event in told if isinstance(event, Noted)][2] == "fsdp:2,tp:2, 3 of 3"


@pytest.mark.parametrize("error", [UsageError, WorkloadFailedError])
def test_where_all_are_refused_the_first_reason_is_the_error(error: type[Exception]) -> None:
    def ask(asked: TuneSettings) -> TuneResult:
        raise error(f"not {asked.setup.parallel}")

    with pytest.raises(error, match="not ddp:4"):
        compare_parallels(settings(), ask)


@pytest.mark.parametrize("error", [DispatchError, StudyMismatchError])
def test_what_says_nothing_of_a_way_ends_the_search(error: type[Exception]) -> None:
    def ask(asked: TuneSettings) -> TuneResult:
        if asked.setup.parallel.degree("ddp") == 1:
            raise error("gone")
        return answer(asked, 4)

    with pytest.raises(error, match="gone"):
        compare_parallels(settings(), ask)


def test_limits_are_of_all_together_and_what_was_not_tried_is_told() -> None:
    asked: list[TuneSettings] = []

    def ask(one: TuneSettings) -> TuneResult:
        asked.append(one)
        return answer(one, 4)

    result = compare_parallels(settings(max_trials=2), ask)
    assert [one.max_trials for one in asked] == [2, 1]
    assert result.stopped_by == "--max-trials"
    assert result.parallels[-1].refused == "not tried: --max-trials ended the search"


def test_each_has_a_study_of_its_own_that_is_named_after_it() -> None:
    result = compare_parallels(settings(study="mine"), answering(ddp=1, fsdp=2, tp=3))
    assert [one.study for one in result.parallels] == ["mine-ddp-4", "mine-fsdp-4", "mine-fsdp-2-tp-2"]


def test_an_answer_is_an_earlier_one_if_all_are() -> None:
    def ask(asked: TuneSettings) -> TuneResult:
        is_ddp = asked.setup.parallel.degree("ddp") > 1
        return dataclasses.replace(answer(asked, 4), cached=is_ddp)

    assert not compare_parallels(settings(), ask).cached
    assert compare_parallels(settings("ddp:4"), ask).cached


def test_each_is_the_answer_to_itself_alone_and_one_without_a_plan_is_refused(state_dir: Path) -> None:
    options = {"gpu_mem": "3G", "precision": "fp32", "max_batch": 40000}
    compared = autofit.tune(TINY, nproc=2, search="parallel=ddp,fsdp,tp", **options)
    ddp, fsdp, tp = compared.parallels
    assert "no plan" in tp.refused
    alone = autofit.tune(TINY, parallel="fsdp:2", **options)
    assert (fsdp.best, fsdp.frontier, fsdp.study) == (alone.best, alone.frontier, alone.study)
    assert alone.cached
    for one in (ddp, fsdp):
        assert one.best is not None
        assert (one.best.parallel, one.best.samples_per_step) == (one.parallel, 2 * one.best.batch_size)
    assert compared.parallel in ("ddp:2", "fsdp:2")
