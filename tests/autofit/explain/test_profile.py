"""A profile as a document: the same after a journey to disk, refused where it is not understood."""

from __future__ import annotations

import dataclasses
import gzip
import json

import pytest

from autofit.explain.profile import (
    PROFILE_SCHEMA,
    Profile,
    ProfileError,
    alive_at,
    peak_position,
    phase_of,
    read_profile,
)
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Allocation, Category, Mark, Trace

TRACE = Trace(
    workload="toy",
    batch_size=4,
    mode="train",
    optimizer="sgd",
    knobs=Knobs(),
    allocations=tuple(
        Allocation(num_bytes=size, category=category, operator="aten.empty", dtype="uint8", shape=(size,))
        for size, category in ((700, Category.PARAMETER), (10, Category.INPUT), (2000, Category.ACTIVATION))
    ),
    events=(0, 1, 2, ~2, ~1),
    marks=(
        Mark(position=0, name="model"),
        Mark(position=1, name="step 1 input"),
        Mark(position=2, name="step 1 forward"),
        Mark(position=3, name="step 1 output"),
        Mark(position=4, name="step 1 backward"),
    ),
)
PROFILE = Profile(
    trace=TRACE,
    knobs=Knobs(conv_algo="native"),
    card="rtx-3090",
    architecture="sm_86",
    requested_bytes=(700, 10, 2000),
    block_bytes=(1024, 512, 2048),
    context_bytes=400,
    peak_allocated_bytes=3584,
    peak_reserved_bytes=2 << 20,
    workspace_source="a formula",
    found_bytes={2: 512},
    versions={"autofit": "0.1.0"},
)


def document():
    return json.loads(gzip.decompress(PROFILE.to_bytes()))


def packed(content):
    return gzip.compress(
        json.dumps(content).encode(), mtime=0
    )  # the same in every process that collects tests


def test_a_profile_is_the_same_after_a_journey_to_disk(tmp_path):
    path = tmp_path / "profile.json.gz"
    path.write_bytes(PROFILE.to_bytes())
    assert read_profile(path) == PROFILE
    assert PROFILE.to_bytes() == PROFILE.to_bytes()


def test_what_is_alive_at_the_peak_adds_up_to_it():
    position = peak_position(PROFILE)
    assert position == 3
    assert alive_at(PROFILE, position) == [0, 1, 2]
    assert sum(PROFILE.block_bytes[number] for number in alive_at(PROFILE, position)) == 3584
    assert alive_at(PROFILE, 0) == []
    assert alive_at(PROFILE, 5) == [0]


def test_the_loss_is_of_the_forward_pass():
    found = {position: phase_of(PROFILE, position) for position in (1, 2, 3, 4, 5)}
    assert {position: (phase.step, phase.name) for position, phase in found.items()} == {
        1: (0, "model"),
        2: (1, "input"),
        3: (1, "forward"),
        4: (1, "forward"),
        5: (1, "backward"),
    }


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not a profile"),
        (b"not even gzip", "is not a profile"),
        (gzip.compress(b"not json", mtime=0), "no JSON"),
        (gzip.compress(b"\xff\xfe\x00", mtime=0), "no JSON"),
        (PROFILE.to_bytes()[:-30], "truncated"),
        (PROFILE.to_bytes()[:20] + b"\xff" * 40 + PROFILE.to_bytes()[60:], "damaged"),
        (packed({"schema": "autofit.profile/99"}), f"expected .* {PROFILE_SCHEMA}, got 'autofit.profile/99'"),
        (packed(TRACE.to_dict()), r"got 'autofit.trace/\d+'"),
        (packed([1, 2]), "got None"),
        (packed({**document(), "trace": {"schema": "autofit.trace/1"}}), "expected a trace of schema"),
        (packed({**document(), "knobs": {"colour": "red"}}), "malformed"),
        (packed({key: value for key, value in document().items() if key != "card"}), "malformed .*card"),
        (packed({**document(), "block_bytes": [1, 2]}), "more or fewer sizes"),
        (
            packed({**document(), "block_bytes": [None] * len(document()["block_bytes"])}),
            "not a whole number",
        ),
        (packed({**document(), "peak_allocated_bytes": "x"}), "not a whole number"),
        (packed({**document(), "found_bytes": {"3": 512}}), "an allocation that does not exist"),
        (packed({**document(), "found_bytes": {"2": -1}}), "not a whole number"),
        (packed({**document(), "found_bytes": {"two": 512}}), "malformed"),
        (packed({**document(), "versions": None}), "None is not of type dict"),
        (packed({**document(), "trace": {**document()["trace"], "convolutions": ["x"]}}), "malformed"),
        (
            packed({**document(), "trace": {**document()["trace"], "marks": [[-5, "model"]]}}),
            "after the last event",
        ),
    ],
)
def test_what_is_no_profile_is_refused_in_one_sentence(data, said, tmp_path):
    path = tmp_path / "other.gz"
    path.write_bytes(data)
    with pytest.raises(ProfileError, match=said) as caught:
        read_profile(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("events", [(0, 0), (~0,), (0, ~0, ~0), (7,), (0, ~7)])
def test_events_that_cannot_be_are_refused(events):
    trace = dataclasses.replace(TRACE, events=events, marks=())
    with pytest.raises(ProfileError, match="contradicts the events before it"):
        Profile.from_bytes(dataclasses.replace(PROFILE, trace=trace).to_bytes())


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ProfileError, match=r"cannot read .*nowhere\.gz: No such file"):
        read_profile(tmp_path / "nowhere.gz")
