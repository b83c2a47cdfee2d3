"""The memory snapshot: PyTorch's own readers open it, and its bytes are the simulator's."""

from __future__ import annotations

import base64
import json
import pickle
import pickletools

import pytest
import torch.cuda._memory_viz as memory_viz

from autofit.explain.exports.snapshot import FIRST_ADDRESS, encode_snapshot, snapshot
from autofit.explain.profile import peak_position
from autofit_workers.spec.trace import Category
from tests.autofit.explain.profiles import allocation, profile_of

MIB = 1 << 20
STACK = ("train.py:9:<module>", "model.py:3:forward")
PROFILE = profile_of(
    [
        allocation(3 * MIB + 100, Category.PARAMETER, operator="aten.randn", module="conv"),
        allocation(700, Category.INPUT),
        allocation(50 * MIB + 1, stack=STACK, operator="aten.convolution", module="conv"),
        allocation(0, Category.WORKSPACE),
        allocation(40 * MIB, Category.GRADIENT, source="loss.py:5:loss"),
        allocation(4 * MIB, Category.OTHER),
    ],
    (0, 1, 2, 3, ~3, ~2, 4, ~1, 5),
    [(0, "model"), (1, "step 1 input"), (2, "step 1 forward"), (6, "step 1 backward")],
)


@pytest.fixture
def written():
    return pickle.loads(encode_snapshot(snapshot(PROFILE)))


def running(entries, signs):
    """The sums of sizes after each entry, by the sign of its action."""
    total, sums = 0, [0]
    for entry in entries:
        total += signs.get(entry["action"], 0) * entry["size"]
        sums.append(total)
    return sums


def embedded(html):
    """The snapshot that a page of PyTorch's has in it."""
    line = next(line for line in html.splitlines() if line.startswith("const local_files"))
    (file,) = json.loads(line.removeprefix("const local_files = "))
    return pickle.loads(base64.b64decode(file["base64"]))


def test_pytorchs_own_readers_open_it(written):
    summary = memory_viz.segsum(written)
    listed = memory_viz.trace(written)

    assert f"total_reserved: {memory_viz.Bytes(PROFILE.peak_reserved_bytes)}" in summary
    assert "cudaMalloc" in listed
    assert embedded(memory_viz.trace_plot(written)) == written
    assert embedded(memory_viz.segment_plot(written)) == written
    assert "model.py:3:forward" in memory_viz.memory(
        snapshot(PROFILE, position=3), format_flamegraph=lambda text: text
    )


def test_at_the_peak_active_blocks_are_the_allocated_peak():
    at_peak = snapshot(PROFILE, position=peak_position(PROFILE))

    active = sum(memory_viz.calc_active(segment) for segment in at_peak["segments"])
    assert active == PROFILE.peak_allocated_bytes
    assert active == sum(segment["active_size"] for segment in at_peak["segments"])


def test_segments_add_up_to_the_reserved_peak(written):
    signs = {"segment_alloc": 1, "segment_free": -1}
    (entries,) = written["device_traces"]

    assert max(running(entries, signs)) == PROFILE.peak_reserved_bytes
    assert running(entries, signs)[-1] == sum(segment["total_size"] for segment in written["segments"])


def test_entries_say_what_was_requested_and_when(written):
    (entries,) = written["device_traces"]
    blocks = [
        (e["action"], e["size"], e["time_us"]) for e in entries if e["action"] in ("alloc", "free_requested")
    ]

    assert blocks == [
        ("alloc", 3 * MIB + 100, 0),
        ("alloc", 700, 1),
        ("alloc", 50 * MIB + 1, 2),
        ("free_requested", 50 * MIB + 1, 5),
        ("alloc", 40 * MIB, 6),
        ("free_requested", 700, 7),
        ("alloc", 4 * MIB, 8),
    ]


def test_every_free_is_completed_at_once(written):
    (entries,) = written["device_traces"]
    for index, entry in enumerate(entries):
        if entry["action"] == "free_requested":
            following = entries[index + 1]
            assert (following["action"], following["addr"]) == ("free_completed", entry["addr"])


def test_blocks_tile_their_segments(written):
    for segment in written["segments"]:
        address = segment["address"]
        assert address >= FIRST_ADDRESS
        for block in segment["blocks"]:
            assert block["address"] == address
            address += block["size"]
        assert address == segment["address"] + segment["total_size"]
        assert segment["segment_type"] in ("small", "large")


def test_stacks_have_their_innermost_line_first(written):
    (entries,) = written["device_traces"]
    frames = {e["size"]: [(f["filename"], f["line"], f["name"]) for f in e["frames"]] for e in entries}

    assert frames[50 * MIB + 1] == [
        ("conv", 0, "aten.convolution"),
        ("model.py", 3, "forward"),
        ("train.py", 9, "<module>"),
    ]
    assert frames[40 * MIB] == [("(no module)", 0, "aten.empty"), ("loss.py", 5, "loss")]


def test_categories_colour_the_page_without_stopping_it(written):
    (entries,) = written["device_traces"]
    found = {entry["category"] for entry in entries}

    # Of all categories the page wants this one to be there.
    assert {"unknown", "parameter", "input", "activation", "gradient", "other"} == found


def test_phases_are_annotations(written):
    told = [(each["name"], each["stage"], each["time_us"]) for each in written["external_annotations"]]

    assert told[:4] == [
        ("model", "START", 0),
        ("model", "END", 1),
        ("step 1 input", "START", 1),
        ("step 1 input", "END", 2),
    ]


def test_the_pickle_has_only_what_the_page_can_read():
    # The opcodes that `unpickle` of MemoryViz.js knows.
    known = {
        *("APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME", "LONG1"),
        *("LONG_BINGET", "MARK", "MEMOIZE", "PROTO", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE2"),
        *("APPEND", "NEWFALSE", "BINPUT", "BINUNICODE", "EMPTY_TUPLE", "NEWTRUE", "NONE", "BINFLOAT"),
        *("TUPLE", "TUPLE1", "TUPLE3", "LONG_BINPUT", "LIST", "DICT", "SETITEM"),
    }
    opcodes = list(pickletools.genops(encode_snapshot(snapshot(PROFILE))))

    assert {opcode.name for opcode, _, _ in opcodes} <= known
    assert [argument for opcode, argument, _ in opcodes if opcode.name == "PROTO"] == [4]


def test_a_snapshot_of_nothing_opens_too():
    empty = snapshot(profile_of([], []))

    assert "segments: 0" in memory_viz.segsum(empty)
    assert memory_viz.trace(empty) == ""


def test_streams_and_what_waits_for_them_are_told_as_pytorch_tells_them():
    gathered = allocation(4 * MIB, stream=7, stream_uses=(0,))
    profile = profile_of([gathered, gathered, allocation(4 * MIB)], (0, ~0, 1, ~1, 2, ~2))
    whole, waiting = snapshot(profile), snapshot(profile, position=4)

    (entries,) = whole["device_traces"]
    assert [(entry["action"], entry["stream"]) for entry in entries] == [
        ("segment_alloc", 7),
        ("alloc", 7),
        ("free_requested", 7),
        ("free_completed", 7),  # where the next request finds that the stream is done
        ("alloc", 7),
        ("free_requested", 7),
        ("free_completed", 7),
        ("segment_alloc", 0),
        ("alloc", 0),
        ("free_requested", 0),
        ("free_completed", 0),
    ]
    assert [segment["stream"] for segment in whole["segments"]] == [7, 0]
    (segment,) = waiting["segments"]
    assert [block["state"] for block in segment["blocks"]] == ["active_pending_free", "inactive"]
    assert (segment["allocated_size"], segment["active_size"]) == (0, 4 * MIB)
    assert segment["blocks"][0]["requested_size"] == segment["requested_size"] == 4 * MIB
    assert embedded(memory_viz.trace_plot(whole)) == whole
    assert "stream_7" in memory_viz.segsum(waiting)
