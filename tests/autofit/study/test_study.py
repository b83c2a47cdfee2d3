from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import optuna
import pytest

from autofit.errors import StorageError, StudyMismatchError, UsageError
from autofit.search.agenda import Goal
from autofit.search.space import SearchSpace
from autofit.study.study import fingerprint
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Verdict

CUDNN, NATIVE = Knobs(conv_algo="cudnn"), Knobs(conv_algo="native")


def peak_bytes(knobs: Knobs, batch_size: int) -> int:
    return batch_size * (100 if knobs == CUDNN else 60)


def test_a_study_ends_when_every_setting_is_settled(open_study: Any, run_study: Any, storage: str) -> None:
    study = open_study(storage=storage)
    tried = run_study(study, peak_bytes)
    assert study.is_settled
    found = {k: (b.largest_fitting, b.first_failing) for k, b in study.boundaries().items()}
    assert found == {CUDNN: (100, 101), NATIVE: (166, 167)}
    assert study.num_trials == sum(map(len, tried.values()))


def test_outcomes_are_read_back_as_they_were_told(open_study: Any, outcome_of: Any, storage: str) -> None:
    study = open_study(storage=storage)
    told = []
    for verdict in (Verdict.FITS, Verdict.OOM, Verdict.FAILED):
        ask = study.ask()
        outcome = outcome_of(ask, 5, verdict=verdict, trace_json='{"trace": 1}')
        study.tell(ask.trial_number, outcome)
        told.append(dataclasses.replace(outcome, trace_json=None))
    study.close()
    records = open_study(storage=storage).outcomes()
    assert [record.outcome for record in records] == told
    assert [record.trial_number for record in records] == [0, 1, 2]
    assert {record.trace_digest for record in records} == {hashlib.sha256(b'{"trace": 1}').hexdigest()}


def test_a_reopened_study_goes_on_where_it_stopped(open_study: Any, outcome_of: Any, run_study: Any) -> None:
    first = open_study()
    for _ in range(5):
        ask = first.ask()
        first.tell(ask.trial_number, outcome_of(ask, peak_bytes(ask.knobs, ask.batch_size)))
    first.close()
    second = open_study()
    assert second.num_trials == 5
    known = {(record.outcome.knobs, record.outcome.batch_size) for record in second.outcomes()}
    tried = run_study(second, peak_bytes)
    assert not known & {(knobs, size) for knobs, sizes in tried.items() for size in sizes}
    assert second.is_settled


def test_a_settled_study_asks_for_nothing_more(open_study: Any, run_study: Any) -> None:
    study = open_study()
    run_study(study, peak_bytes)
    study.close()
    assert open_study().ask() is None


def test_optuna_sees_what_fits_and_constraints(open_study: Any, run_study: Any, tmp_path: Path) -> None:
    """So that its dashboard, and its samplers, read the study without us."""
    path = tmp_path / "mine.journal"
    run_study(open_study(storage=str(path)), peak_bytes)
    backend = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    study = optuna.load_study(study_name="mine", storage=backend)
    assert study.best_trial.params == {"conv_algo": "native", "batch_size": 166}
    (summary,) = optuna.get_all_study_summaries(backend)
    assert summary.best_trial.params == study.best_trial.params  # though it does not heed constraints
    assert study.metric_names == ["batch that fits"]
    for trial in study.trials:
        peak = trial.user_attrs["peak_bytes"]
        assert trial.value == (trial.params["batch_size"] if peak <= 10_000 else 0)
        assert trial.constraints["memory"] == (peak - 10_000) / 10_000
        assert trial.user_attrs["verdict"] == ("FITS" if peak <= 10_000 else "OOM")


@pytest.mark.parametrize(
    ("verdict", "peak", "constraint"),
    [
        (Verdict.FITS, 5_000, -0.5),
        (Verdict.FITS, None, 0.0),
        (Verdict.OOM, None, 1.0),
        (Verdict.OOM, 9_000, 1.0),
        (Verdict.OOM, 12_500, 0.25),
        (Verdict.THRASH, 10_000, 1.0),
    ],
)
def test_the_verdict_decides_the_sign_of_the_constraint(
    open_study: Any, outcome_of: Any, verdict: Verdict, peak: int | None, constraint: float
) -> None:
    study = open_study()
    ask = study.ask()
    study.tell(ask.trial_number, outcome_of(ask, peak, verdict=verdict))
    (trial,) = study._study.trials
    assert set(trial.constraints.values()) == {trial.constraints["memory"]} == {constraint}
    assert trial.state == optuna.trial.TrialState.COMPLETE


@pytest.mark.parametrize("verdict", [Verdict.FAILED, Verdict.INVALID, Verdict.TIMEOUT, Verdict.LOST])
def test_a_verdict_that_is_not_about_memory_is_kept_and_its_size_asked_for_again(
    open_study: Any, outcome_of: Any, verdict: Verdict
) -> None:
    study = open_study(space=SearchSpace(choices={"conv_algo": ("cudnn",)}))
    ask = study.ask()
    study.tell(ask.trial_number, outcome_of(ask, verdict=verdict))
    (trial,) = study._study.trials
    assert trial.state == optuna.trial.TrialState.FAIL
    assert trial.constraints == {}
    assert [record.outcome.verdict for record in study.outcomes()] == [verdict]
    assert study.ask().batch_size == ask.batch_size


def test_an_outcome_is_written_before_anything_that_follows_from_it(
    open_study: Any, outcome_of: Any, tmp_path: Path
) -> None:
    path = tmp_path / "mine.journal"
    study = open_study(storage=str(path))
    ask = study.ask()
    num_before = len(path.read_text().splitlines())
    study.tell(ask.trial_number, outcome_of(ask, 100))
    written = [json.loads(line) for line in path.read_text().splitlines()[num_before:]]
    (outcome, *_), *_, state = [[*line.get("user_attr", {}), line.get("state")] for line in written]
    assert outcome == "outcome"
    assert state == [optuna.trial.TrialState.COMPLETE]


def test_a_trial_says_what_it_was_for_and_how_many_steps_it_was_to_do(
    open_study: Any, outcome_of: Any
) -> None:
    only = SearchSpace(choices={"conv_algo": ("cudnn",)}, max_batch=100)
    study = open_study(space=only, goal=Goal(num_steps=3, soak_steps=20), curves=lambda _: Line())
    while (ask := study.ask()) is not None:
        study.tell(ask.trial_number, outcome_of(ask, 110 * ask.batch_size))
    told = [
        (trial.params["batch_size"], trial.user_attrs["purpose"], trial.user_attrs["num_steps"])
        for trial in study._study.trials
    ]
    assert told == [(50, "boundary", 3), (90, "boundary", 20), (91, "boundary", 20)]
    assert study.is_complete
    assert study.verified() == {(CUDNN, 90): 20}


class Line:
    """A prediction of twice the memory that is needed."""

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
        return 200 * batch_size

    lower_bound_bytes = peak_reserved_bytes


def test_a_trial_is_told_once(open_study: Any, outcome_of: Any) -> None:
    study = open_study()
    ask = study.ask()
    study.tell(ask.trial_number, outcome_of(ask, 100))
    with pytest.raises(StorageError, match="trial 0 of study mine is over"):
        study.tell(ask.trial_number, outcome_of(ask, 100))


def test_two_coordinators_share_a_study(open_study: Any, storage: str) -> None:
    """Neither takes the other's trials for orphans, and they ask for different sizes."""
    only = SearchSpace(choices={"conv_algo": ("cudnn",)}, max_batch=2)
    one, other = (open_study(space=only, storage=storage) for _ in range(2))
    first = one.ask()
    second = other.ask()
    assert {first.batch_size, second.batch_size} == {1, 2}
    assert one.ask() is None
    assert not one.is_settled


def test_closing_gives_up_what_was_not_told(open_study: Any) -> None:
    study = open_study()
    ask = study.ask()
    study.close()
    reopened = open_study()
    (trial,) = reopened._study.trials
    assert trial.state == optuna.trial.TrialState.FAIL
    assert trial.user_attrs["given_up"] == "the coordinator stopped before the trial ended"
    assert reopened.outcomes() == []
    assert reopened.ask().batch_size == ask.batch_size


def test_a_with_statement_closes_the_study(open_study: Any) -> None:
    with open_study() as study:
        study.ask()
    with open_study() as again:
        assert again._study.trials[0].state == optuna.trial.TrialState.FAIL


# Settings and names


def test_other_settings_are_refused_by_name(open_study: Any, storage: str) -> None:
    open_study(storage=storage, settings={"workload": "w", "mode": "train"})
    with pytest.raises(StudyMismatchError) as refused:
        open_study(
            storage=storage,
            budget_bytes=20_000,
            settings={"workload": "v", "mode": "train"},
            space=SearchSpace(choices={"conv_algo": ("native",)}, max_batch=300),
        )
    message = str(refused.value)
    assert "budget_bytes was 10000, is 20000" in message
    assert "conv_algo was cudnn,native, is native" in message
    assert "workload was w, is v" in message
    assert "mode" not in message
    assert "--fresh" in message
    assert refused.value.exit_code == 2


def test_fresh_begins_anew_whatever_the_settings_were(open_study: Any, run_study: Any, storage: str) -> None:
    study = open_study(storage=storage)
    run_study(study, peak_bytes)
    study.close()
    anew = open_study(storage=storage, settings={"workload": "v"}, fresh=True)
    assert anew.num_trials == 0
    assert anew.ask() is not None
    anew.close()
    assert open_study(storage=storage, settings={"workload": "v"}).num_trials == 0


def test_fresh_on_a_new_name_just_begins(open_study: Any) -> None:
    assert open_study(fresh=True).num_trials == 0


@pytest.mark.parametrize("fresh", [False, True])
def test_a_study_of_somebody_else_is_neither_used_nor_deleted(
    open_study: Any, tmp_path: Path, fresh: bool
) -> None:
    path = tmp_path / "theirs.journal"
    backend = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    theirs = optuna.create_study(storage=backend, study_name="mine")
    theirs.add_trial(optuna.create_trial(value=1.0))
    with pytest.raises(StudyMismatchError, match="was not made by autofit"):
        open_study(storage=str(path), fresh=fresh)
    assert len(theirs.trials) == 1


def test_a_name_made_from_the_label_tells_settings_apart(open_study: Any, state_dir: Path) -> None:
    one = open_study(name=None, label="nets/a.py:Net")
    other = open_study(name=None, label="nets/a.py:Net", budget_bytes=1)
    assert one.name == f"nets-a.py-Net-{one.fingerprint[:12]}"
    assert one.name != other.name
    assert {path.stem for path in (state_dir / "studies").iterdir()} == {one.name, other.name}


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a b", "x" * 200])
def test_a_name_that_is_no_file_name_is_refused(open_study: Any, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be named"):
        open_study(name=name)


def test_a_fingerprint_does_not_depend_on_the_order_of_the_settings() -> None:
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


# What is not said


def test_opening_and_asking_prints_nothing_and_leaves_optuna_as_it_was(
    open_study: Any, capfd: pytest.CaptureFixture[str], storage: str
) -> None:
    level = logging.getLogger("optuna").level
    with open_study(storage=storage, fresh=True) as study:
        study.ask()
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("optuna").level == level
