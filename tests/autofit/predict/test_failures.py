"""What an outcome that says nothing about memory ends a command with."""

from __future__ import annotations

import pytest

from autofit.errors import AutofitError, DispatchError, WorkloadFailedError
from autofit.predict.failures import raise_if_failed
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, TrialError, TrialOutcome, Verdict

MIB = 1024**2
CUDNN, NATIVE = Knobs(conv_algo="cudnn"), Knobs(conv_algo="native")


@pytest.mark.parametrize(
    ("verdict", "told", "kind", "exit_code"),
    [
        (Verdict.FAILED, "user", "workload", 4),
        (Verdict.INVALID, "user", "workload", 4),
        (Verdict.FAILED, "unsupported", "unsupported", 4),
        (Verdict.FAILED, "missing-library", "infrastructure", 5),
        (Verdict.LOST, "environment", "dispatch", 5),
        (Verdict.TIMEOUT, "environment", "dispatch", 5),
    ],
)
def test_an_outcome_without_an_answer_is_the_error_that_ends_the_command(
    verdict: Verdict, told: str, kind: str, exit_code: int
) -> None:
    error = TrialError(kind=told, message="it broke", traceback="line 1")
    with pytest.raises(AutofitError, match="it broke") as raised:
        raise_if_failed(outcome_of(verdict, error))
    assert (raised.value.kind, raised.value.exit_code) == (kind, exit_code)
    if isinstance(raised.value, WorkloadFailedError):
        assert raised.value.traceback == "line 1"


@pytest.mark.parametrize("verdict", [Verdict.FITS, Verdict.OOM, Verdict.THRASH])
def test_an_outcome_about_memory_is_no_error(verdict: Verdict) -> None:
    raise_if_failed(outcome_of(verdict))


def test_an_outcome_that_gives_no_reason_is_named_by_its_verdict() -> None:
    with pytest.raises(DispatchError, match="batch 8: the trial ended LOST"):
        raise_if_failed(outcome_of(Verdict.LOST))


def outcome_of(verdict: Verdict, error: TrialError | None = None) -> TrialOutcome:
    return TrialOutcome(
        verdict=verdict,
        evidence=Evidence.MEASURED,
        device=Device(kind="cuda", name="real card"),
        batch_size=8,
        knobs=CUDNN,
        error=error,
    )
