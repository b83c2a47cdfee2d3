"""Observed peaks: what they leave of an interval, what they hold for, and how they are kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from autofit import paths
from autofit.hardware.card import Card
from autofit.predict.confidence import Calibration, ModelClass, Residuals
from autofit.predict.intervals import observations
from autofit.predict.intervals.observations import Observation, Observations, PeakKind, Residual, sharpened
from autofit.predict.predictor import Predictor
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.setup import TYPICAL
from autofit_workers.spec.workloads.tasks import TASK_NAMES

MIB = 1024**2
WIDE = Calibration(
    model_class=ModelClass.DENSE, cards="ampere-ada", low_share=-0.06, high_share=0.1, num_rows=40
)
# The step of the stand-ins: 100 MiB of parameters and 20 MiB a sample.
SEEN = Observation(
    workload="step",
    kind=PeakKind.RESERVED,
    peak_bytes=260 * MIB,
    low_bytes=260 * MIB,
    high_bytes=260 * MIB,
    predicted_bytes=260 * MIB,
    batch_size=8,
    knobs=Knobs(),
    mode="train",
    batch_kind=TYPICAL,
    degrees=(),
    nonzero_share=0.5,
    convolves=False,
    card="a-card",
    torch="2.13.0",
    day="2026-11-24",
)


def seen(**changes: Any) -> Observation:
    peak = changes.get("peak_bytes", SEEN.peak_bytes)
    return dataclasses.replace(SEEN, **{"low_bytes": peak, "high_bytes": peak, **changes})


def shares(observation: Observation, batch_size: int = 8, span: tuple[int, int] = (240, 280)) -> Any:
    residual = Residual.of(observation, span[0] * MIB, span[1] * MIB)
    found = sharpened(WIDE, [residual], batch_size)
    return found.low_share, found.high_share


@pytest.mark.parametrize(
    ("changes", "batch_size", "expected"),
    [
        ({}, 8, (-0.02, 0.02)),
        ({}, 500, (-0.02, 0.02)),
        ({"convolves": True}, 8, (-0.02, 0.02)),
        ({"convolves": True}, 9, (-0.04, 0.06)),
        ({"kind": PeakKind.ALLOCATED}, 8, (-0.04, 0.06)),
        ({"peak_bytes": 294 * MIB}, 8, (-0.02, 0.07)),
        ({"peak_bytes": 306 * MIB}, 8, (-0.02, 0.1)),
        ({"peak_bytes": 322 * MIB}, 8, (-0.02, 0.17)),
        ({"peak_bytes": 322 * MIB, "convolves": True}, 9, (-0.04, 0.17)),
        ({"peak_bytes": 216 * MIB}, 8, (-0.12, 0.02)),
        ({"low_bytes": 200 * MIB, "high_bytes": 260 * MIB}, 8, (-0.06, 0.02)),
        ({"low_bytes": 190 * MIB, "high_bytes": 210 * MIB}, 8, (-0.2284, 0.02)),
    ],
    ids=[
        "inside the span",
        "another batch, without convolutions",
        "the same batch, with convolutions",
        "another batch, with convolutions",
        "an allocated peak",
        "above the span",
        "near the end, never wider than before",
        "outside, so it widens",
        "outside widens at other batches too",
        "below",
        "perhaps below",
        "surely below",
    ],
)
def test_what_an_observed_peak_leaves_of_the_shares(
    changes: dict[str, Any], batch_size: int, expected: tuple[float, float]
) -> None:
    assert shares(seen(**changes), batch_size) == pytest.approx(expected, abs=1e-4)


def test_shares_that_are_narrower_than_repeated_runs_differ_stay_as_they_are() -> None:
    narrow = dataclasses.replace(WIDE, low_share=-0.0055, high_share=0.01)
    found = sharpened(narrow, [Residual.of(SEEN, 240 * MIB, 280 * MIB)], 8)
    assert (found.low_share, found.high_share) == (-0.0055, 0.01)


def test_without_observations_nothing_changes_and_with_them_the_note_says_so() -> None:
    assert sharpened(WIDE, [], 8) is WIDE
    note = sharpened(WIDE, [Residual.of(SEEN, 240 * MIB, 280 * MIB)], 8).note
    assert "1 observed peak of this workload (batch 8, 2026-11-24)" in note
    assert "-2.0% and +2.0%" in note


def test_a_reserved_peak_outranks_the_others() -> None:
    others = [seen(kind=kind, peak_bytes=400 * MIB) for kind in (PeakKind.DEVICE, PeakKind.ALLOCATED)]
    residuals = [Residual.of(each, 240 * MIB, 280 * MIB) for each in (*others, SEEN)]
    found = sharpened(WIDE, residuals, 8)
    assert (found.low_share, found.high_share) == (-0.02, 0.02)
    assert len(found.observed) == 1


@pytest.fixture
def off() -> Residuals:
    """Real runs of any class lay up to 6 % below and 10 % above what was predicted."""
    return Residuals(
        measured={
            (each, cards): dataclasses.replace(WIDE, model_class=each, cards=cards)
            for each in ModelClass
            for cards in ("ampere-ada", "any")
        },
        factor=1.0,
        extra_share=0.0,
    )


def interval(
    workload: WorkloadRef, worker: Any, off: Residuals, card: Card, batch_size: int, *found: Observation
) -> tuple[int, int]:
    predictor = Predictor(
        workload, worker, residuals=off, plans=FormulaPlans, observations=Observations(found)
    )
    estimate = predictor.estimate(Knobs(), card, batch_size)
    curve = predictor.curve(Knobs(), card)
    assert curve(batch_size).interval == estimate.interval
    assert curve.peak_reserved_bytes(batch_size) == estimate.interval.high_bytes
    return estimate.interval.low_bytes // MIB, estimate.interval.high_bytes // MIB


def test_the_same_setting_on_the_same_card_is_sharper_at_every_batch(
    workload: WorkloadRef, worker: Any, off: Residuals, card: Card
) -> None:
    assert interval(workload, worker, off, card, 45) == (940, 1100)
    assert interval(workload, worker, off, card, 45, SEEN) == (980, 1020)
    assert interval(workload, worker, off, card, 45, seen(peak_bytes=312 * MIB)) == (980, 1220)


@pytest.mark.parametrize(
    "changes",
    [
        {"knobs": Knobs(precision="bf16")},
        {"card": "rtx-3090"},
        {"card": ""},
        {"mode": "infer"},
        {"batch_kind": "worst"},
        {"degrees": (("ddp", 8),)},
        {"nonzero_share": 0.1},
        {"predicted_bytes": 270 * MIB},
    ],
)
def test_what_is_of_another_step_or_of_a_workload_that_changed_counts_for_nothing(
    workload: WorkloadRef, worker: Any, off: Residuals, card: Card, changes: dict[str, Any]
) -> None:
    assert interval(workload, worker, off, card, 45, seen(**changes)) == (940, 1100)


def test_of_a_step_without_convolutions_the_algorithm_does_not_count(
    workload: WorkloadRef, worker: Any, off: Residuals, card: Card
) -> None:
    other = seen(knobs=Knobs(conv_algo="native"))
    assert interval(workload, worker, off, card, 45, other) == (980, 1020)


def test_what_is_kept_is_found_for_its_workload_wherever_that_lies(state_dir: Path) -> None:
    here, elsewhere = (
        WorkloadRef(kind="file", target=f"/{folder}/net.py:net", source_sha256="aa") for folder in "ab"
    )
    observations.keep(here, SEEN)
    assert Observations.load(here).digest == Observations.load(elsewhere).digest != ""
    assert observations.kept() == [SEEN]
    changed = dataclasses.replace(here, source_sha256="bb")
    assert Observations.load(changed).digest == ""


def test_a_model_with_another_task_is_another_workload_and_one_without_is_found_as_before() -> None:
    model = WorkloadRef(kind="library", target="hf:bert")
    assert observations.workload_key(model) == "6fa3d93207c515f1", "as 0.2 named it"
    keys = {observations.workload_key(dataclasses.replace(model, task=task)) for task in TASK_NAMES}
    assert len(keys - {"6fa3d93207c515f1"}) == len(TASK_NAMES)


def test_a_later_observation_of_the_same_takes_its_place_and_can_be_forgotten(
    workload: WorkloadRef, state_dir: Path
) -> None:
    later, other = seen(peak_bytes=300 * MIB, day="2026-11-25"), seen(batch_size=16)
    for each in (SEEN, other, later):
        observations.keep(workload, each)
    assert observations.kept() == [other, later]
    before = Observations.load(workload).digest
    assert observations.forget(later.id) == [later]
    assert observations.kept() == [other]
    assert Observations.load(workload).digest != before
    assert observations.forget(later.id) == []


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"observation/1": {"kind": "reserved"}}', "\ufffd{"])
def test_a_damaged_file_is_a_warning_and_ignored(
    workload: WorkloadRef, state_dir: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    observations.keep(workload, SEEN)
    observations.keep(workload, seen(batch_size=16))
    damaged = next(path for path in paths.observations_path().iterdir() if SEEN.id in path.name)
    damaged.write_text(content)
    assert observations.kept() == [seen(batch_size=16)]
    (record,) = caplog.records
    assert "cannot be read and is ignored" in record.message
