"""The predictor against what trials needed on real GPUs.

Rows are recorded by `python -m autofit_workers.trials.record`; every file of them in
`tests/data/ground_truth/` is checked, the allocated peak of each trial within 0.5 %, the reserved one
within 2 %.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import itertools
import json
from pathlib import Path

import pytest

from autofit.hardware.card import card_named
from autofit.predict.curve import PredictedCurve
from autofit.predict.plan_sources import PlanSources, plan_source
from autofit.predict.predictor import Predictor
from autofit.settings.workloads import refer
from autofit_workers.replay.plans.plan import PlanSource
from autofit_workers.replay.vendors import offline_source
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    GROUND_TRUTH_SCHEMA,
    Evidence,
    Peaks,
    Probe,
    TrialOutcome,
    TrialSpec,
    Verdict,
)
from autofit_workers.spec.setup import Setup
from autofit_workers.trials import door, record
from tests.workers.predicted import peaks_of

FOLDER = Path(__file__).parents[1] / "data" / "ground_truth"
TOLERANCES = {"allocated_bytes": 0.005, "reserved_bytes": 0.02}


def trials_in(lines: list[str]) -> list[record.Row]:
    """The rows of trials that ran to their end."""
    rows = [json.loads(line) for line in lines]
    assert {row["schema"] for row in rows} <= {GROUND_TRUTH_SCHEMA}
    return [row for row in rows if row["kind"] == "trial" and row["verdict"] == Verdict.FITS]


@functools.cache
def predictor_of(workload: str, mode: str | None, plans: PlanSources) -> Predictor:
    return Predictor(refer(workload), door.run, setup=Setup(mode=mode), plans=plans)


def curve_for(row: record.Row, plans: PlanSources) -> PredictedCurve:
    card = dataclasses.replace(card_named(None), architecture=row["environment"]["architecture"])
    return predictor_of(row["workload"], row["mode"], plans).curve(Knobs(**row["knobs"]), card)


def disagreements(row: record.Row, plans: PlanSources = plan_source) -> list[str]:
    """Where the prediction of a row's configuration is further from its peaks than it may be."""
    estimate = curve_for(row, plans)(row["batch_size"])
    predicted = {
        "allocated_bytes": estimate.peak_allocated_bytes,
        "reserved_bytes": estimate.peak_reserved_bytes,
    }
    found = []
    for kind, tolerance in TOLERANCES.items():
        measured = max(row["first_step"][kind], row["steady"][kind])
        error = (predicted[kind] - measured) / measured
        if abs(error) > tolerance:
            found.append(
                f"{row['workload']} {row['batch_size']} {row['knobs']}: "
                f"{kind} {measured}, predicted {error:+.2%}"
            )
    return found


@functools.cache
def recorded() -> tuple[record.Row, ...]:
    lines = [line for path in sorted(FOLDER.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return tuple(trials_in(lines))


@pytest.mark.skipif(not recorded(), reason=f"no trial was recorded on a real GPU yet: {FOLDER} has no rows")
def test_every_recorded_trial_is_predicted() -> None:
    found = [line for row in recorded() for line in disagreements(row)]
    assert found == [], "\n".join(found)


def as_if_measured(spec: TrialSpec) -> TrialOutcome:
    """A trial that needed exactly what is predicted, without libcudnn, in its first step."""
    predicted = door.run(dataclasses.replace(spec, probe=Probe.PREDICT))
    peaks = dataclasses.replace(peaks_of(predicted), device_bytes=1)
    return dataclasses.replace(
        predicted,
        verdict=Verdict.FITS,
        evidence=Evidence.MEASURED,
        first_step=peaks,
        steady=Peaks(1, 1, 1),
        environment={"architecture": "sm_80"},
    )


def without_libcudnn(architecture: str) -> PlanSource:
    return offline_source(architecture, importlib.metadata.version("torch"))


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """What the recorder writes of a context and one trial."""
    written: list[str] = []
    rows = record.record(["davenet-audio"], seconds=600.0, run=as_if_measured, clock=lambda: 0.0)
    for row in itertools.islice(rows, 2):
        record.write_row(written.append, row)
    return written


def test_only_trials_that_ran_to_their_end_are_checked(lines: list[str]) -> None:
    (row,) = trials_in(lines)
    assert row["workload"] == "davenet-audio"
    assert trials_in([line.replace('"FITS"', '"OOM"') for line in lines]) == []


def test_rows_of_another_schema_are_noticed(lines: list[str]) -> None:
    with pytest.raises(AssertionError):
        trials_in([lines[1].replace(GROUND_TRUTH_SCHEMA, "autofit.ground-truth/0")])


@pytest.mark.parametrize(
    ("kind", "change", "is_too_far"),
    [
        ("allocated_bytes", 1.0, False),
        ("allocated_bytes", 1.004, False),
        ("allocated_bytes", 0.996, False),
        ("allocated_bytes", 1.006, True),
        ("allocated_bytes", 0.994, True),
        ("reserved_bytes", 1.019, False),
        ("reserved_bytes", 0.981, False),
        ("reserved_bytes", 1.021, True),
        ("reserved_bytes", 0.979, True),
    ],
)
def test_a_row_that_differs_from_its_prediction_is_told_by_what_differs(
    lines: list[str], kind: str, change: float, is_too_far: bool
) -> None:
    (row,) = trials_in(lines)
    row["first_step"][kind] = round(row["first_step"][kind] * change)
    found = disagreements(row, without_libcudnn)
    assert len(found) == int(is_too_far)
    assert all(f"davenet-audio 64 {row['knobs']}: {kind}" in line for line in found)


def test_a_peak_after_the_first_step_counts_too(lines: list[str]) -> None:
    (row,) = trials_in(lines)
    row["steady"]["reserved_bytes"] = 2 * row["first_step"]["reserved_bytes"]
    assert len(disagreements(row, without_libcudnn)) == 1
