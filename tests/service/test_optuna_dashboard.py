"""A study of ours on the pages of optuna-dashboard, as a browser shows them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial

import autofit
from tests.browser import Browser, browsing, needs_browser
from tests.conformance.dispatcher import ROOT
from tests.daemons import Daemon, free_ports

pytestmark = [pytest.mark.process, needs_browser]


@dataclass(frozen=True)
class Tuned:
    """A search that was made."""

    answer: dict[str, Any]
    trials: list[FrozenTrial]
    storage: str

    def trial_of(self, *, conv_algo: str, batch_size: int | None) -> FrozenTrial:
        asked = {"conv_algo": conv_algo, "batch_size": batch_size}
        return next(trial for trial in self.trials if trial.params == asked)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """A predicted search of two algorithms, kept in SQLite."""
    folder = tmp_path_factory.mktemp("tuned")
    storage = f"sqlite:///{folder / 'studies.db'}"
    model = ROOT / "tests" / "autofit" / "tiny_workloads.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFIT_STATE_DIR", str(folder / "state"))
        result = autofit.tune(f"{model}:small", gpu="rtx-3090", conv_algo="cudnn,native", storage=storage)
    answer = result.to_dict()
    trials = optuna.load_study(study_name=answer["study"], storage=storage).trials
    return Tuned(answer, trials, storage)


@pytest.fixture(scope="module")
def dashboard(tuned: Tuned, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the dashboard of the study's storage listens."""
    (port,) = free_ports(1)
    program = Path(sys.executable).with_name("optuna-dashboard")
    options = ["--server=wsgiref", "--host=127.0.0.1", f"--port={port}"]
    log = tmp_path_factory.mktemp("dashboard") / "log"
    with Daemon([program, *options, tuned.storage], log=log, environment={"PYTHONUNBUFFERED": "1"}) as daemon:
        daemon.await_log("Listening on")
        yield f"http://127.0.0.1:{port}/dashboard"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def test_the_list_of_studies_names_the_workload_and_the_card(dashboard: str, browser: Browser, tuned: Tuned):
    listed = browser.text(dashboard, once_it_says=tuned.answer["study"])
    assert "tiny_workloads.py-small-rtx-3090-" in listed
    assert "Direction: MAXIMIZE" in listed


def test_the_page_of_a_study_shows_its_answer_and_which_trials_do_not_fit(
    dashboard: str, browser: Browser, tuned: Tuned, tmp_path: Path
):
    best = tuned.answer["best"]
    algo, batch_size = best["knobs"]["conv_algo"], best["batch_size"]
    trial = tuned.trial_of(conv_algo=algo, batch_size=batch_size)
    said = browser.text(f"{dashboard}/studies/1", once_it_says="Infeasible")
    browser.save(tmp_path / "study.png")
    assert f"Best Trial (number={trial.number})\n{batch_size}\n" in said
    assert f"Params = [conv_algo: {algo}, batch_size: {batch_size}]" in said
    assert "batch that fits" in said
    assert "autofit_settings" in said


def test_the_page_of_a_trial_shows_algorithm_batch_and_verdict(
    dashboard: str, browser: Browser, tuned: Tuned, tmp_path: Path
):
    for entry in tuned.answer["frontier"]:
        algo = entry["knobs"]["conv_algo"]
        for batch_size, fits in ((entry["largest_batch"], True), (entry["first_failing_batch"], False)):
            trial = tuned.trial_of(conv_algo=algo, batch_size=batch_size)
            heading = f"Trial {trial.number} (trial_id="
            said = browser.text(f"{dashboard}/studies/1/trials?numbers={trial.number}", once_it_says=heading)
            shown = said[said.index(heading) :]
            assert f"Value\n{batch_size if fits else 0}\n" in shown
            assert f"conv_algo {algo}\nbatch_size {batch_size}\n" in shown
            assert ("verdict FITS" in shown) == fits
            assert f"peak_bytes {trial.user_attrs['peak_bytes']}" in shown
    assert f"{len(tuned.trials)} Trials" in said
    browser.save(tmp_path / "trial.png")
