"""The times of a profile: kept with it, shown by every view, and never as seconds where none are said."""

from __future__ import annotations

import dataclasses
import gzip
import json

import pytest

from autofit.errors import UsageError
from autofit.explain.profile import Profile, ProfileError, timed_step
from autofit.explain.timing import EventClock
from autofit.explain.views.code import code_view
from autofit.explain.views.device_time import class_times, module_times
from autofit.explain.views.filters import parse_filters
from autofit.explain.views.ops import operator_view
from autofit.explain.views.scopes import scope_view
from autofit.explain.views.tensors import tensor_view
from autofit.explain.views.timeline import timeline_view
from tests.autofit.explain.toy import CONV, HEAD, LOSS, PROFILE, TIMED, TIMING, UNSTATED

BY_SECONDS = parse_filters(order_by="seconds")
TIMED_VIEWS = (operator_view, scope_view, code_view)


def document(profile=TIMED):
    return json.loads(gzip.decompress(profile.to_bytes()))


def packed(plain):
    return gzip.compress(json.dumps(plain).encode(), mtime=0)


def shares(view, own=False):
    return {
        (row.name, getattr(row, "phase", "")): round((row.own if own else row.sizes).step_share, 9)
        for row in view.rows
    }


# ── the document ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("profile", [TIMED, UNSTATED, PROFILE])
def test_times_are_the_same_after_a_journey_to_disk(profile):
    assert Profile.from_bytes(profile.to_bytes()) == profile


def test_a_profile_of_before_there_were_times_is_read_and_says_so():
    old = {key: value for key, value in document().items() if key not in ("timing", "time_note")}
    profile = Profile.from_bytes(packed(old))
    assert profile.timing is None
    assert "saved without times" in profile.time_note


def test_nothing_of_a_saved_profile_is_in_seconds_where_none_are_said():
    assert document(UNSTATED)["timing"]["seconds"] is None
    assert document(UNSTATED)["timing"]["calls"] == document(TIMED)["timing"]["calls"]  # shares alone


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"calls": [[0, 0, 9999, 0.1, 0.1, 0.2, 1.0, []]]}, "out of order"),
        ({"calls": [[0, 0, 3, 0.1, 0.3, 0.2, 1.0, []]]}, "ends before it starts"),
        ({"calls": [[0, 0, 3, -0.1, 0.1, 0.2, 1.0, []]]}, "a number is missing"),
        ({"calls": [[0, 0, 3, 0.1, 0.1, 0.2, 1.0, [77]]]}, "malformed"),
        ({"kernels": [["magic", 0.1, 0, 5, "float32"]]}, "magic"),
        ({"kernels": [["matmul", 0.1, 0.5, 5, "float32"]]}, "a whole number is missing"),
        ({"roofs": {"flops": {}, "vector_flops": 0.0, "bandwidth": 1.0}}, "none that a card can have"),
        ({"seconds": dict.fromkeys(document()["timing"]["seconds"], 1e300)}, "none that a step can take"),
        ({"calls": []}, "missing"),
        ({"names": ["x" * 5000] * 9}, "have no names"),
        ({"seconds": {"likely": 1.0}}, "lacks"),
    ],
)
def test_times_that_cannot_be_are_refused(changed, said):
    plain = document()
    with pytest.raises(ProfileError, match=said):
        Profile.from_bytes(packed({**plain, "timing": {**plain["timing"], **changed}}))


# ── when events are ─────────────────────────────────────────────────────────────────────────────


def test_events_are_while_the_host_is_at_their_operator_in_their_order():
    clock = EventClock.of_host(TIMING, 11, 21)
    times = [clock.of_event(index) for index in range(11, 21)]
    assert times == sorted(set(times))
    assert 0 < times[0] < 0.1 < times[1] < times[3] < 0.2
    # Of the two operators at position 15 the one that allocates has the events.
    assert 0.25 < times[4] < times[5] < 0.3 < times[6]
    assert times[-1] < clock.end == 0.4


def test_on_the_device_the_same_events_are_later():
    host, device = EventClock.of_host(TIMING, 11, 21), EventClock.of_device(TIMING, 11, 21)
    assert all(host.of_event(index) < device.of_event(index) for index in range(11, 21))
    assert device.end == 1.0


# ── views ───────────────────────────────────────────────────────────────────────────────────────


def test_operators_have_times_those_in_place_too():
    view = operator_view(TIMED, BY_SECONDS)
    assert list(shares(view).items()) == [
        (("relu", "forward"), 0.4),
        (("relu", "backward"), 0.3),
        (("add_", "forward"), 0.1),
        (("randn", "input"), 0.05),
        (("empty_strided", "model"), 0.0),
    ]
    assert view.selection.step == timed_step(TIMED) == 2


def test_modules_have_the_times_of_their_operators_and_of_all_below():
    view = scope_view(TIMED, BY_SECONDS)
    assert shares(view) == {("toy", ""): 0.85, ("body", ""): 0.7, ("body.conv", ""): 0.7, ("head", ""): 0.1}
    assert shares(view, own=True)["toy", ""] == 0.05


def test_lines_have_the_times_of_what_they_led_to_and_of_what_followed_in_place():
    view = code_view(TIMED, BY_SECONDS)
    assert shares(view, own=True) == {
        ("toy", ""): 0,
        (LOSS, ""): 0,
        (CONV, ""): 0.7,  # with `add_`, which has no lines of its own
        (HEAD, ""): 0.1,
        ("/me/train.py:3:batch", ""): 0.05,
        ("(model)", ""): 0,
        ("(forward)", ""): 0,
    }


@pytest.mark.parametrize("make", TIMED_VIEWS)
def test_documents_have_seconds_and_shares_that_agree(make):
    plain = json.loads(make(TIMED, BY_SECONDS).to_json())
    assert plain["times"] == {
        "step": 2,
        "step_seconds": dataclasses.asdict(TIMING.seconds),
        "waiting_share": pytest.approx(0.15),
        "note": TIMED.time_note,
    }
    assert all(row["seconds"] == pytest.approx(0.01 * row["step_share"]) for row in plain["rows"])


@pytest.mark.parametrize("make", TIMED_VIEWS)
def test_a_prediction_without_rows_behind_it_has_shares_and_no_seconds(make):
    plain = json.loads(make(UNSTATED, BY_SECONDS).to_json())
    assert plain["times"]["step_seconds"] is None
    assert "no measured times of this card" in plain["times"]["note"]
    assert {row["seconds"] for row in plain["rows"]} == {None}
    assert [row["step_share"] for row in plain["rows"]] == [
        row["step_share"] for row in json.loads(make(TIMED, BY_SECONDS).to_json())["rows"]
    ]


@pytest.mark.parametrize("make", TIMED_VIEWS)
def test_by_bytes_the_rows_stay_in_their_order_and_have_times_beside(make):
    timed, plain = make(TIMED, parse_filters()), make(PROFILE, parse_filters())
    named = [row.name for row in plain.rows]
    assert [row.name for row in timed.rows if row.sizes.count] == named
    assert {row.sizes.step_share for row in plain.rows} == {0.0}


@pytest.mark.parametrize(
    ("profile", "given", "said"),
    [
        (PROFILE, {}, "saved without times"),
        (TIMED, {"step": 1}, "choose --step 2"),
        (TIMED, {"category": "activation"}, "leave out --category"),
    ],
)
@pytest.mark.parametrize("make", TIMED_VIEWS)
def test_where_there_are_no_times_to_order_by_it_says_why(make, profile, given, said):
    with pytest.raises(UsageError, match=said):
        make(profile, parse_filters(order_by="seconds", **given))
    view = make(profile, parse_filters(**given))  # by bytes it is shown without
    assert view.selection.timing is None
    assert said in view.selection.time_note


def test_tensors_have_no_times():
    with pytest.raises(UsageError, match="choose ops, scopes, code or timeline"):
        tensor_view(TIMED, BY_SECONDS)
    (row, *_) = json.loads(tensor_view(TIMED, parse_filters()).to_json())["rows"]
    assert not {"seconds", "step_share"} & row.keys()


# ── the timeline ────────────────────────────────────────────────────────────────────────────────


def test_by_seconds_the_timeline_is_of_equal_portions_of_the_step():
    (lane,) = timeline_view(TIMED, parse_filters(order_by="seconds", top=20)).lanes(20)
    assert [moment.step_share for moment in lane.moments] == [number / 20 for number in range(20)]
    assert max(moment.allocated_bytes for moment in lane.moments) == lane.peak.allocated_bytes
    by_phase = dict(zip((peak.phase.name for peak in lane.phase_peaks), lane.phase_shares, strict=True))
    assert by_phase == pytest.approx({"input": 0.05, "forward": 0.5, "backward": 0.3})


@pytest.mark.parametrize(("profile", "likely"), [(TIMED, 0.01), (UNSTATED, None)])
def test_the_timelines_document_has_seconds_where_they_are_said(profile, likely):
    (lane,) = json.loads(timeline_view(profile, BY_SECONDS).to_json())["lanes"]
    for row in (*lane["rows"], *lane["phase_peaks"], lane["peak"]):
        seconds = None if likely is None else pytest.approx(likely * row["step_share"])
        assert row["seconds"] == seconds


def test_the_timeline_keeps_to_the_order_of_events_unless_asked():
    (lane,) = timeline_view(TIMED, parse_filters()).lanes(20)
    assert lane.phase_shares == ()
    assert {moment.step_share for moment in lane.moments} == {None}


# ── classes of kernels, and modules ─────────────────────────────────────────────────────────────


def test_classes_stand_under_the_roofs_of_the_card():
    elementwise, matmul = class_times(TIMING)
    assert (elementwise.name, matmul.name) == ("elementwise", "matmul float16")
    assert elementwise.share == pytest.approx(0.75)
    assert elementwise.intensity == pytest.approx(1 / 4)  # an operation for each element of four bytes
    assert elementwise.is_bound_by_memory
    assert elementwise.most_flops == pytest.approx(1e8 / 4)
    assert (matmul.intensity, matmul.most_flops) == (40, 4e9)
    assert not dataclasses.replace(matmul, bandwidth=1e9).is_bound_by_memory
    assert matmul.attained_flops(TIMING) == pytest.approx(40_000 / 1e-3)
    assert matmul.attained_flops(UNSTATED.timing) is None


def test_modules_that_take_time_are_listed_after_those_around_them():
    found = {each.path: each for each in module_times(TIMED)}
    assert list(found) == ["", "body", "body.conv", "head"]
    assert found["body.conv"].own_share == pytest.approx(0.7)
    assert (found["head"].kind, found["body"].kind) == ("matmul", "")
    assert module_times(PROFILE) == ()
