"""A coordinator that is killed, at the worst moments, and the one that comes after it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest

from autofit.search.space import SearchSpace
from autofit.study.owner import Owner
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Verdict

COORDINATOR = """
import json, os, signal, sys
from autofit.search.space import SearchSpace
from autofit.study.study import TuningStudy
from autofit_workers.spec.protocol import Device, Evidence, Peaks, TrialOutcome, Verdict

storage, moment = sys.argv[1:]
space = SearchSpace(choices={"conv_algo": ("cudnn", "native")}, max_batch=300)
study = TuningStudy.open(
    space, budget_bytes=10_000, settings={"workload": "w"}, name="mine", seed=0, storage=storage
)

def outcome(ask):
    return TrialOutcome(
        verdict=Verdict.FITS, evidence=Evidence.MEASURED, device=Device(kind="cuda", name="card"),
        batch_size=ask.batch_size, knobs=ask.knobs, steady=Peaks(reserved_bytes=100 * ask.batch_size),
    )

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

for _ in range(3):
    ask = study.ask()
    study.tell(ask.trial_number, outcome(ask))
ask = study.ask()
print(json.dumps([ask.trial_number, ask.knobs.conv_algo, ask.batch_size]), flush=True)
if moment == "outcome written":
    study._records._finish = die
    study.tell(ask.trial_number, outcome(ask))
if moment == "constraint written":
    study._records._backend.set_trial_state_values = die
    study.tell(ask.trial_number, outcome(ask))
die()
"""


def killed_coordinator(storage: str, moment: str) -> tuple[int, Knobs, int]:
    """Runs a coordinator until it is killed; what it had asked for last."""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", COORDINATOR, storage, moment],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    number, conv_algo, batch_size = json.loads(done.stdout)
    return number, Knobs(conv_algo=conv_algo), batch_size


@pytest.mark.process
def test_a_trial_in_flight_is_given_up_and_asked_for_again(
    open_study: Any, run_study: Any, storage: str
) -> None:
    number, knobs, batch_size = killed_coordinator(storage, "trial running")
    study = open_study(storage=storage)
    assert [record.trial_number for record in study.outcomes()] == [0, 1, 2]
    orphan = study._study.trials[number]
    assert orphan.state == optuna.trial.TrialState.FAIL
    assert "ended before its trial" in orphan.user_attrs["given_up"]
    tried = run_study(study, lambda _, b: 100 * b)
    assert batch_size in tried[knobs]
    known = {(record.outcome.knobs, record.outcome.batch_size) for record in study.outcomes()}
    assert len(known) == study.num_trials == len(study._study.trials) - 1
    assert study.is_settled


@pytest.mark.process
@pytest.mark.parametrize("moment", ["outcome written", "constraint written"])
def test_an_outcome_that_was_written_is_told_to_its_end(
    open_study: Any, run_study: Any, storage: str, moment: str
) -> None:
    number, knobs, batch_size = killed_coordinator(storage, moment)
    study = open_study(storage=storage)
    assert study.outcomes()[number].outcome.verdict is Verdict.FITS
    trial = study._study.trials[number]
    assert trial.state == optuna.trial.TrialState.COMPLETE
    assert trial.constraints == {"memory": (100 * batch_size - 10_000) / 10_000}
    assert batch_size not in run_study(study, lambda _, b: 100 * b)[knobs]


def owner(**changes: Any) -> Owner:
    return dataclasses.replace(Owner.this_process(lease_seconds=60.0), **changes)


def test_a_living_process_is_waited_for_beyond_its_lease() -> None:
    assert owner(lease_until_seconds=0.0).why_gone() is None


def test_a_process_id_that_was_used_again_is_another_process() -> None:
    reason = owner(started_seconds=psutil.boot_time() - 1e6).why_gone()
    assert reason is not None
    assert "used again" in reason


def test_another_host_is_waited_for_until_its_lease_expires() -> None:
    elsewhere = f"not-{socket.gethostname()}"
    assert owner(host=elsewhere, process_id=1).why_gone() is None
    reason = owner(host=elsewhere, lease_until_seconds=0.0).why_gone()
    assert reason is not None
    assert f"the lease of {elsewhere} expired" in reason


def test_a_trial_of_another_host_is_asked_for_again_once_its_lease_expired(
    open_study: Any, storage: str
) -> None:
    only = SearchSpace(choices={"conv_algo": ("cudnn",)}, max_batch=300)
    other = open_study(space=only, storage=storage)
    asks = [other.ask(), other.ask()]
    for ask, lease_until_seconds in zip(asks, (time.time() + 3600.0, 0.0), strict=True):
        elsewhere = owner(host=f"not-{socket.gethostname()}", lease_until_seconds=lease_until_seconds)
        other._records.renew(other._asked[ask.trial_number].trial_id, elsewhere)
    study = open_study(space=only, storage=storage)
    assert [trial.state.name for trial in study._study.trials] == ["RUNNING", "FAIL"]
    again = study.ask()
    assert again.batch_size == asks[1].batch_size
