from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autofit.errors import DriverError
from autofit.hardware.gpus import LocalGpu
from autofit.predict.self_test import SelfTest
from autofit.questions import doctor
from autofit_workers.spec.protocol import TrialError, TrialOutcome, TrialSpec, Verdict
from autofit_workers.spec.trace import UNPROTECTED
from autofit_workers.tracing.unprotected import MORE
from autofit_workers.trials.outcomes import without_answer


def aborting(spec: TrialSpec) -> TrialOutcome:
    error = TrialError(kind="environment", message="the process was killed by SIGABRT")
    return without_answer(spec, Verdict.LOST, error)


def card() -> LocalGpu:
    return LocalGpu(
        name="NVIDIA A10",
        uuid="GPU-1",
        architecture="sm_86",
        total_bytes=22 * 1024**3,
        used_bytes=0,
        driver_version="580.1",
    )


def checks(**doors) -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.examine(**doors)}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> dict[str, doctor.Check]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        return checks(gpus=lambda: ())


def test_this_environment_is_healthy(healthy):
    assert {check.status for check in healthy.values()} == {"ok"}


def test_every_required_package_is_listed_with_its_version(healthy):
    assert {"torch", "ray", "optuna", "click", "prometheus-client", "rich", "psutil"} <= healthy.keys()
    assert healthy["python"].detail == ".".join(map(str, sys.version_info[:3]))


def test_no_card_is_no_failure(healthy):
    assert healthy["gpus"].detail == "none found; predictions do not need one"


def test_a_pytorch_that_cannot_be_predicted_fails_and_says_what_to_do():
    check = checks(run=aborting, gpus=lambda: ())["prediction"]
    assert check.status == "failed"
    assert "SIGABRT" in check.detail
    assert "measure" in check.next_step


def test_a_release_that_was_not_tried_is_a_warning_with_the_way_out():
    check = doctor._judged(SelfTest(torch_version="2.16.0", findings=()))
    assert check.status == "warning"
    assert "2.6 to 2.15" in check.next_step
    assert "autofit observe" in check.next_step


def test_local_cards_are_named_with_their_driver():
    assert (
        checks(run=aborting, gpus=lambda: (card(),))["gpus"].detail == "NVIDIA A10 (22.00 GiB); driver 580.1"
    )


def test_a_driver_that_does_not_answer_is_a_warning():
    def refuse() -> tuple[LocalGpu, ...]:
        raise DriverError("the driver does not match the library")

    check = checks(run=aborting, gpus=refuse)["gpus"]
    assert (check.status, check.detail) == ("warning", "the driver does not match the library")


def test_a_state_directory_that_is_a_file_fails(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(tmp_path / "file"))
    check = checks(run=aborting, gpus=lambda: ())["state directory"]
    assert check.status == "failed"
    assert "AUTOFIT_STATE_DIR" in check.next_step


def test_a_machine_without_namespaces_is_told_what_takes_effect_there():
    told = f"{UNPROTECTED}: all that it does (no such call)"
    check = doctor._boundary(SelfTest(torch_version="2.13.0", findings=(), unprotected=told + MORE))
    assert (check.status, check.detail) == ("warning", told)
    assert doctor._boundary(SelfTest(torch_version="2.13.0", findings=())).status == "ok"
