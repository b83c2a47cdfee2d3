"""The Chrome trace: the fields of the Trace Event Format, slices that nest, counters that end at the peak."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from autofit.explain.exports.chrome_trace import chrome_trace, encode_chrome_trace
from autofit.explain.views.timeline import course_of
from autofit_workers.spec.trace import Call, Category
from tests.autofit.explain.profiles import allocation, profile_of
from tests.autofit.explain.toy import TIMED, UNSTATED
from tests.autofit.explain.trace_events import of_kind, validate

MIB = 1 << 20


def _made(module: str, operator: str):
    return allocation(2 * MIB, module=module, operator=operator)


PROFILE = profile_of(
    [
        allocation(MIB, Category.PARAMETER, module="features.0", operator="aten.randn"),
        _made("features.0", "aten.convolution"),
        allocation(8 * MIB, Category.WORKSPACE, module="features.0", operator="aten.convolution"),
        _made("features.3", "aten.convolution"),
        _made("features.3", "aten.convolution"),
        _made("", "aten.sum"),
        _made("features.3", "aten.convolution_backward"),
    ],
    (0, 1, 2, ~2, 3, 4, 5, 6, ~1),
    [(0, "model"), (1, "step 1 input"), (1, "step 1 forward"), (7, "step 1 backward")],
    [
        Call(
            position=position, operator="aten.convolution", module="features.3", inputs=(), outputs=(number,)
        )
        for position, number in ((4, 3), (5, 4))
    ],
)
EVENTS = chrome_trace(PROFILE)["traceEvents"]


def test_the_events_have_the_fields_of_the_format():
    validate(EVENTS)


def test_processes_and_threads_have_names():
    names = {(event["name"], event["tid"]): event["args"] for event in of_kind("M", EVENTS)}

    assert names["process_name", 0]["name"] == "cuda:0: made by hand at batch 4 on rtx-3090, predicted"
    assert names["thread_name", 1] == {"name": "phases"}
    assert names["thread_name", 2] == {"name": "modules and operators"}


def test_the_document_says_that_there_is_no_time_in_it():
    other = chrome_trace(PROFILE)["otherData"]

    assert "one memory event" in other["time_unit"]
    assert other["peak_allocated_bytes"] == PROFILE.peak_allocated_bytes


def test_phases_with_events_are_slices():
    phases = [(e["name"], e["ts"], e["dur"]) for e in of_kind("X", EVENTS) if e["cat"] == "phase"]

    assert phases == [("model", 0, 1), ("step 1 forward", 1, 6), ("step 1 backward", 7, 2)]


def test_modules_nest_by_their_paths_and_hold_their_operators():
    slices = [
        (e["name"], e["ts"], e["dur"], e["cat"]) for e in of_kind("X", EVENTS) if e["ts"] in range(1, 7)
    ]

    assert [each for each in slices if each[3] == "module"] == [
        ("features", 1, 5, "module"),
        ("0", 1, 3, "module"),
        ("3", 4, 2, "module"),
    ]
    assert [each for each in slices if each[3] == "operator"] == [
        ("aten.convolution", 1, 3, "operator"),
        ("aten.convolution", 4, 1, "operator"),  # two calls, though of the same module and operator
        ("aten.convolution", 5, 1, "operator"),
        ("aten.sum", 6, 1, "operator"),
    ]


def test_counters_follow_the_memory():
    course = course_of(PROFILE)
    last = {}
    for event in of_kind("C", EVENTS):
        last.setdefault(event["name"], {})[event["ts"]] = event["args"]["bytes"]

    assert set(last) == {"allocated", "reserved", *(f"allocated: {each}" for each in course.categories)}
    for name, column in (("allocated", course.allocated), ("reserved", course.reserved)):
        changes = {i: size for i, size in enumerate(column) if i == 0 or size != column[i - 1]}
        assert last[name] == changes
    assert max(last["allocated"].values()) == PROFILE.peak_allocated_bytes
    assert max(last["reserved"].values()) == PROFILE.peak_reserved_bytes


def test_the_peak_is_marked():
    (peak,) = of_kind("i", EVENTS)

    assert (
        course_of(PROFILE).allocated[peak["ts"]] == PROFILE.peak_allocated_bytes == peak["args"]["allocated"]
    )


def test_a_step_and_categories_can_be_chosen():
    events = chrome_trace(PROFILE, step=1, categories=[Category.WORKSPACE])["traceEvents"]

    validate(events)
    assert min(event["ts"] for event in of_kind("X", events)) == 1
    assert {event["name"] for event in of_kind("C", events)} == {
        "allocated",
        "reserved",
        "allocated: workspace",
    }


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_file_is_packed_by_its_name(name):
    document = chrome_trace(PROFILE)
    data = encode_chrome_trace(document, Path(name))

    assert json.loads(gzip.decompress(data) if name.endswith("gz") else data) == document


# ── on the axis of time ─────────────────────────────────────────────────────────────────────────


def _lanes(events):
    return {
        event["tid"]: event["args"]["name"]
        for event in of_kind("M", events)
        if event["name"] == "thread_name"
    }


def _slices(events, thread, kind=None):
    chosen = (e for e in of_kind("X", events) if e["tid"] == thread and kind in (None, e["cat"]))
    return [(event["name"], event["ts"], event["dur"]) for event in chosen]


def test_a_step_with_a_time_has_lanes_of_host_and_device_in_microseconds():
    document = chrome_trace(TIMED)
    events = document["traceEvents"]
    validate(events)
    assert list(_lanes(events).values()) == [
        "host: phases",
        "host: launches of modules and operators",
        "device: kernels",
    ]
    assert _slices(events, 2, "operator") == [
        ("aten.randn", 0, 1000),
        ("aten.relu", 1000, 1000),
        ("aten.add_", 2000, 500),
        ("aten.relu", 2500, 500),
        ("aten.relu", 3000, 1000),
    ]
    assert _slices(events, 3) == [
        ("aten.randn", 1000, 500),
        ("aten.relu", 2000, 3000),
        ("aten.add_", 5000, 1000),
        ("aten.relu", 6000, 1000),
        ("aten.relu", 7000, 3000),
    ]
    assert _slices(events, 1) == [
        ("step 2 input", 0, 1000),
        ("step 2 forward", 1000, 2000),
        ("step 2 backward", 3000, 1000),
    ]
    assert "microseconds of the likely step" in document["otherData"]["time_unit"]
    assert document["otherData"]["step_seconds"]["likely"] == 0.01


def test_kernels_are_named_by_operator_and_coloured_by_class():
    device = [
        event for event in chrome_trace(TIMED)["traceEvents"] if event["tid"] == 3 and event["ph"] == "X"
    ]
    assert [event["cat"] for event in device] == [
        "elementwise",
        "elementwise",
        "elementwise",
        "matmul",
        "elementwise",
    ]
    assert len({event["cname"] for event in device}) == 2
    assert device[3]["args"] == {"path": "head", "dtype": "float16", "flops": 40_000, "moved_bytes": 1000}


def test_memory_is_on_the_axis_of_the_host():
    events = chrome_trace(TIMED)["traceEvents"]
    counted = [event for event in of_kind("C", events) if event["name"] == "allocated"]
    assert 0 < counted[0]["ts"] < 1000
    assert counted[-1]["ts"] < 4000
    (peak,) = of_kind("i", events)
    highest = max(counted, key=lambda event: event["args"]["bytes"])
    assert (peak["ts"], peak["args"]["allocated"]) == (highest["ts"], TIMED.peak_allocated_bytes)


def test_a_prediction_without_rows_behind_it_is_drawn_in_proportion_and_says_so():
    document = chrome_trace(UNSTATED)
    validate(document["traceEvents"])
    other = document["otherData"]
    assert other["time_unit"].startswith("relative")
    assert other["step_seconds"] is None
    assert other["time_note"] == UNSTATED.time_note
    (process,) = (e for e in document["traceEvents"] if e["name"] == "process_name")
    assert process["args"]["name"].endswith("time is relative")
    assert _slices(document["traceEvents"], 3)[1] == ("aten.relu", 200_000, 300_000)


@pytest.mark.parametrize("step", [0, 1])
def test_a_step_without_a_time_is_drawn_in_the_order_of_its_events(step):
    document = chrome_trace(TIMED, step=step)
    assert "one memory event" in document["otherData"]["time_unit"]
    assert 3 not in _lanes(document["traceEvents"])
