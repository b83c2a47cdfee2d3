"""An estimate: what of it is worked out when it is asked for, and what a document keeps of that."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from autofit.predict.estimate import Estimate, PhasePeak, PhasePeaks
from autofit_workers.spec.plain import from_plain
from tests.autofit.cli.conftest import predicted_estimate

PEAKS = (PhasePeak(name="forward", num_bytes=5), PhasePeak(name="backward", num_bytes=7))


@pytest.fixture
def passes() -> list[str]:
    """A line for each pass over the blocks."""
    return []


@pytest.fixture
def estimate(passes: list[str]) -> Estimate:
    def find() -> tuple[PhasePeak, ...]:
        passes.append("over all blocks")
        return PEAKS

    return dataclasses.replace(predicted_estimate(), phases=PhasePeaks(find))


def test_phases_are_worked_out_once_and_only_when_they_are_asked_for(
    estimate: Estimate, passes: list[str]
) -> None:
    assert estimate.interval.high_bytes > estimate.interval.low_bytes
    assert not passes

    assert estimate.peak_phase == "backward"
    assert (len(estimate.phases), estimate.phases[0], estimate.phases[1:]) == (2, PEAKS[0], PEAKS[1:])
    assert len(passes) == 1


def test_a_document_has_the_phases_and_gives_the_estimate_back(estimate: Estimate) -> None:
    document = estimate.to_dict()

    assert document["phases"] == [dataclasses.asdict(peak) for peak in PEAKS]
    assert document["peak_phase"] == "backward"
    assert from_plain(Estimate, document) == estimate


def test_a_copy_holds_the_phases_alone(estimate: Estimate) -> None:
    copied = pickle.loads(pickle.dumps(estimate))

    assert type(copied.phases) is tuple
    assert copied == estimate
