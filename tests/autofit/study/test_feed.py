"""The first news of a study in a database, read in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from autofit.study.feed import TrialFeed
from autofit.study.relations import Relations


@pytest.fixture
def study(tmp_path: Path) -> Iterator[optuna.Study]:
    """Another study's trials lie between those of the study."""
    storage = Relations(f"sqlite:///{tmp_path / 'studies.db'}")
    mine, other = (optuna.create_study(storage=storage, study_name=name) for name in ("mine", "other"))
    for number in range(7):
        other.tell(other.ask(), 0.0)
        trial = mine.ask()
        trial.set_user_attr("number", number)
        if number != 3:
            mine.tell(trial, float(number))
    yield mine
    storage.remove_session()
    storage.engine.dispose()


def backend_of(study: optuna.Study) -> Relations:
    """What a feed is given: the database itself, not what Optuna keeps of it for a study."""
    backend = study._storage._backend  # type: ignore[attr-defined]
    assert isinstance(backend, Relations)
    return backend


@pytest.mark.parametrize("piece", [1, 2, 3, 6, 7, 500])
def test_however_many_are_read_at_once_each_trial_is_news_once(study: optuna.Study, piece: int):
    feed = TrialFeed(backend_of(study), study._study_id, piece=piece)
    news = feed.news()
    assert [(trial.number, trial.user_attrs) for trial in news] == [(n, {"number": n}) for n in range(7)]
    assert [trial.number for trial in news if trial.state is TrialState.RUNNING] == [3]
    study.tell(study.ask(), 1.0)
    assert [trial.number for trial in feed.news()] == [3, 7]  # that which still runs, and the new one


def test_a_study_that_is_gone_is_a_key_error(study: optuna.Study):
    backend = backend_of(study)
    feed = TrialFeed(backend, study._study_id, piece=2)
    optuna.delete_study(study_name="mine", storage=backend)
    with pytest.raises(KeyError):
        feed.news()
