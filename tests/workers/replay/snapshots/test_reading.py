"""Snapshots as pickles and as CSV: what is read of them, and what is refused."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import pytest

from autofit_workers.replay.allocator.pools import ActionKind
from autofit_workers.replay.snapshots import Snapshot
from autofit_workers.replay.snapshots.blocks import follow
from autofit_workers.replay.snapshots.files import open_snapshot, read_snapshots, unpacked
from autofit_workers.spec.documents import DocumentError
from tests.workers.replay.snapshots.made_up import BASE, MIB, MadeUp, cpp, frame

LINE = "/home/me/attn.py:54"
LIBRARY = "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py:134"


def read(data: bytes, name: str = "run.pickle") -> dict[int, Snapshot]:
    return read_snapshots(unpacked(name, data))


def two_blocks() -> MadeUp:
    made = MadeUp()
    made.alloc(
        0,
        3 * MIB + 1,
        cpp("at::_ops::empty_memory_format::call(…)"),
        cpp("at::_ops::mm::redispatch(…)"),
        cpp("at::_ops::linear::call(…)"),
        frame(LIBRARY),
        frame(LINE, "attend"),
        frame("train.py:9", "main"),
    )
    made.alloc(4 * MIB, 8 * MIB, cpp("torch::autograd::Engine::thread_main(…)"))
    made.free(0)
    return made


def test_an_event_has_its_line_operator_and_phase() -> None:
    (snapshot,) = read(two_blocks().pickled()).values()
    _, first, second, requested, freed = snapshot.events
    assert first.where == "/home/me/attn.py:54:attend"
    assert first.stack == (
        "./train.py:9:main",
        "/home/me/attn.py:54:attend",
        "torch/nn/modules/linear.py:134:forward",
    )
    assert (first.operator, first.is_backward, first.size) == ("aten.mm", False, 3 * MIB + 1)
    assert (second.where, second.operator, second.is_backward) == ("", "", True)
    assert (requested.kind, freed.kind) == (ActionKind.FREE_REQUESTED, ActionKind.FREE_COMPLETED)
    assert second.address - first.address == 4 * MIB
    assert snapshot.segments[0].live == {4 * MIB: 8 * MIB}
    assert snapshot.settings["expandable_segments"] == "False"


def test_blocks_are_followed_from_before_the_first_event() -> None:
    made = two_blocks()
    del made.entries[:2]  # the segment and the first block were made before
    followed = follow(read(made.pickled())[0])
    assert followed.is_exact
    assert followed.num_before == 1
    assert followed.events == [0, 1, ~0]
    assert followed.requested_bytes == [3 * MIB + 1, 8 * MIB]
    # What was too little to be split off before the second block belongs to the first one.
    assert followed.block_bytes == [4 * MIB, 8 * MIB]
    assert followed.reserved == [100 * MIB] * 3
    assert (followed.peak_allocated_bytes, followed.peak_reserved_bytes) == (12 * MIB, 100 * MIB)


def test_expandable_segments_are_followed_by_their_sums() -> None:
    made = two_blocks()
    made.entries[0]["action"] = "segment_map"
    followed = follow(read(made.pickled())[0])
    assert not followed.is_exact
    assert followed.knows_reserved
    assert followed.peak_allocated_bytes == 11 * MIB + 512
    assert followed.peak_reserved_bytes == 100 * MIB


def test_annotations_ooms_and_other_devices_are_kept() -> None:
    made = two_blocks()
    moment = made.entries[3]["time_us"]
    made.annotations = [{"stage": "START", "name": "ProfilerStep#3", "device": 0, "time_us": moment}]
    made.entries.append(
        {"action": "oom", "size": 9 * MIB, "device_free": 5 * MIB, "time_us": 0, "frames": []}
    )
    made.entries.append({"action": "snapshot", "addr": 0, "size": 0, "stream": 0})
    document = made.document()
    document["segments"].append({**document["segments"][0], "device": 3, "address": 2 * BASE, "blocks": []})
    found = read(pickle.dumps(document))
    assert list(found) == [0, 3]
    assert found[0].annotations == ((3, "ProfilerStep#3"),)
    (oom,) = found[0].ooms
    assert (oom.num_bytes, oom.device_free_bytes, oom.position) == (9 * MIB, 5 * MIB, 5)
    assert found[0].other_devices == {3: 100 * MIB}


# ── CSV ──────────────────────────────────────────────────────────────────────

EVENTS = """action,address,size,stream,where
segment_alloc,0,20971520,0,
alloc,0,2097152,0,attn.py:54:forward
"""
SEGMENTS = """segment_address,segment_size,segment_type,stream,block_offset,block_size,requested_size,state
0,20971520,large,0,0,2097152,2097152,active_allocated
0,20971520,large,0,2097152,18874368,0,inactive
"""


@pytest.mark.parametrize("named", ["events", "segments"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_two_tables_of_a_run_are_read_by_either_name(tmp_path: Path, named: str, suffix: str) -> None:
    for name, text in {"events": EVENTS, "segments": SEGMENTS}.items():
        data = text.encode()
        path = tmp_path / f"run.{name}.csv{suffix}"
        path.write_bytes(gzip.compress(data) if suffix else data)
    (snapshot,) = read_snapshots(open_snapshot(tmp_path / f"run.{named}.csv{suffix}")).values()
    assert snapshot.name == "run"
    assert [event.where for event in snapshot.events] == ["", "attn.py:54:forward"]
    assert follow(snapshot).is_exact


def test_events_alone_say_what_is_reserved_at_least() -> None:
    events = EVENTS + "free_completed,99614720,5242880,0,\n"  # of a block from before
    (snapshot,) = read(events.encode(), "run.events.csv").values()
    followed = follow(snapshot)
    assert not followed.knows_reserved
    assert followed.reserved == [5 * MIB, 25 * MIB, 25 * MIB]
    assert max(followed.allocated) == 7 * MIB


# ── what is refused ──────────────────────────────────────────────────────────


def changed(**values: Any) -> bytes:
    document = two_blocks().document()
    document["device_traces"][0][1] |= values
    return pickle.dumps(document)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is no memory snapshot"),
        (b"text", "is no memory snapshot"),
        (pickle.dumps([]), "is no memory snapshot"),
        (pickle.dumps({"segments": 1, "device_traces": []}), "is no list"),
        (pickle.dumps({"segments": [1], "device_traces": []}), "is no dict"),
        (pickle.dumps({"segments": [], "device_traces": [[1]]}), "is no dict"),
        (pickle.dumps({"segments": [], "device_traces": [[]] * 65}), "more than 64 devices"),
        (pickle.dumps({"segments": [], "device_traces": [[{}] * 2000] * 64 * 10}), "more than"),
        (changed(action="walk"), "unknown kind"),
        (changed(action=1), "without an action"),
        (changed(addr="x"), "no whole number"),
        (changed(size=-1), "size that no memory has"),
        (changed(size=1 << 60), "size that no memory has"),
        (gzip.compress(b"x", mtime=0)[:-1], "is truncated"),
        (EVENTS.replace("20971520", "x").encode(), "is no table of a snapshot"),
        (EVENTS.replace(",where", "").encode(), "is no table of a snapshot"),
        (EVENTS.replace("2097152,0,attn", "-5,0,attn").encode(), "size that no memory has"),
        (EVENTS.encode() + b"\xff", "is no text"),
        (EVENTS.encode() + b"walk,0,0,0,", "unknown kind"),
        (SEGMENTS.encode(), "table of events is not beside it"),
    ],
)  # fmt: skip
def test_what_is_no_snapshot_is_refused_in_one_predicate(data: bytes, says: str) -> None:
    with pytest.raises(DocumentError, match=says):
        read(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: entries.append(entries[1]),  # allocated again where it may not be
        lambda entries: entries.append(entries[-1]),  # freed again
    ],
)
def test_events_that_contradict_each_other_are_refused(change: Any) -> None:
    made = two_blocks()
    change(made.entries)
    change(made.entries)
    with pytest.raises(ValueError, match="a block at"):
        follow(read(made.pickled())[0])
