"""`observe --snapshot`, `explain` and `profile --trace` on memory snapshots of real runs."""

from __future__ import annotations

import io
import json
import pickle
import random
import resource
import sys
from pathlib import Path

import jsonschema
import pytest
from referencing import Registry, Resource

from autofit.explain.snapshots.matching import Difference, Matched
from autofit.questions.real_runs.snapshot import Compared, observed_snapshot
from tests.autofit.explain.snapshots import planted
from tests.fuzz import hostile
from tests.workers.replay.snapshots.made_up import MIB

SCHEMAS = Path(__file__).parents[4] / "docs" / "pages" / "schemas"


@pytest.fixture
def leaking(tmp_path):
    path = tmp_path / "run.pickle"
    path.write_bytes(planted.steps(4, leak=7 * MIB, copies=True).pickled())
    return path


def test_without_a_workload_all_is_said_that_needs_no_prediction(autofit, leaking):
    finished = autofit("observe", "--snapshot", str(leaking))
    assert finished.code == 0
    text = " ".join(finished.out.split())
    assert "leak: 7.00 MiB more with every step, over 2 steps; allocated in one step by" in text
    assert "train.py:31:log 7.00 MiB 1" in text
    assert "loss.py:12:loss aten._to_copy 32.00 MiB 1" in text
    assert "Reserved and not allocated" in text
    assert "allocator: expandable_segments=False" in text


def test_the_document_has_its_schema_and_every_part(autofit, leaking):
    document = autofit("observe", "--snapshot", str(leaking), "--json").document
    assert document["schema"] == "autofit.observed-snapshot/1"
    schemas = {path.name: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    registry = Registry().with_resources((n, Resource.from_contents(each)) for n, each in schemas.items())
    schema = schemas["autofit.observed-snapshot-1.json"]
    jsonschema.Draft202012Validator(schema, registry=registry).validate(document)
    assert set(schema["properties"]) == set(document)
    assert (document["growth"]["is_leak"], document["growth"]["bytes_a_step"]) == (True, 7 * MIB)
    assert document["copies"][0]["line"] == planted.COPIED
    assert document["compared"] is None
    assert len(document["unused"]["moments"]) > 20
    assert autofit("explain", str(leaking), "--json").document == document


def test_explain_says_what_would_save_most(autofit, leaking):
    finished = autofit("explain", str(leaking))
    assert finished.code == 0
    assert "What would save most at the peak" in finished.out
    assert "let go of what train.py:31:log allocates" in " ".join(finished.out.split())


def test_explain_reads_standard_input(autofit, leaking, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(leaking.read_bytes())))
    finished = autofit("explain", "-")
    assert finished.code == 0
    assert "standard input: peak in the" in " ".join(finished.out.split())


def test_the_text_of_an_out_of_memory_error_is_explained_as_by_explain_oom(autofit, tmp_path):
    path = tmp_path / "oom.txt"
    path.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    finished = autofit("explain", str(path), "--json")
    assert finished.document["error"]["requested_bytes"] == 2 << 30
    assert finished == autofit("explain-oom", str(path), "--json")


def test_a_snapshot_takes_no_workload_and_is_no_error_text(autofit, leaking):
    finished = autofit("explain", str(leaking), "--model", "gpt2", "--batch-size", "8")
    assert (finished.code, finished.err.count("\n")) == (2, 1)
    assert "`autofit observe --snapshot FILE`" in finished.err
    finished = autofit("explain-oom", str(leaking))
    assert (finished.code, finished.err.count("\n")) == (2, 1)
    assert "`autofit explain` reads it" in finished.err


# ── beside a prediction ──────────────────────────────────────────────────────


def test_beside_a_workload_the_differences_are_said_line_by_line(autofit, leaking):
    asked = []

    def compare(settings, workload, run, batch_size, _emit):
        asked.append((settings.gpu.key, workload.target, run.snapshot.name, batch_size))
        difference = Difference(
            operator="aten.mm", line="attn.py:54:forward", real_bytes=16 * MIB, predicted_bytes=0,
            peak_bytes=16 * MIB, real_count=1, predicted_count=0, why="workspace",
        )  # fmt: skip
        matched = Matched(
            num_real=100, num_predicted=99, num_matched=99, by_line=True, before_bytes=0,
            differences=(difference,),
        )  # fmt: skip
        compared = Compared(
            workload="davenet", batch_size=8, peak_allocated_bytes=200 * MIB, peak_reserved_bytes=1 << 36,
            matched=matched, observation=None, note="its peak is not kept: a reason",
        )  # fmt: skip
        from dataclasses import replace

        return replace(observed_snapshot(run), compared=compared)

    options = ("--model", "davenet", "--batch-size", "8", "--gpu", "rtx-3090")
    finished = autofit("observe", "--snapshot", str(leaking), *options, compare_snapshot=compare)
    assert finished.code == 0
    assert asked == [("rtx-3090", "davenet", "run.pickle", 8)]
    text = " ".join(finished.out.split())
    assert "aten.mm at attn.py:54:forward: 16.00 MiB more, workspace (1, 16.00 MiB more at the peak)" in text
    assert "99 of 100 recorded allocations of the step are the predicted ones (99)" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--snapshot", "{}", "--peak", "3G"), "leave out FILE, --peak and --kind"),
        (("--snapshot", "{}", "--batch-size", "8"), "--batch-size is of a model"),
        (("--snapshot", "{}", "--model", "davenet"), "Missing option '--batch-size'"),
        (("--snapshot", "{}.none",), "No such file"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_one_sentence(autofit, leaking, arguments, says):
    finished = autofit("observe", *(each.format(leaking) for each in arguments))
    assert finished.code == 2
    assert finished.err.count("\n") == 1
    assert says in finished.err


# ── views and exports ────────────────────────────────────────────────────────


@pytest.mark.parametrize("view", ["ops", "scopes", "code", "tensors", "timeline"])
def test_every_view_but_the_plan_shows_a_snapshot(autofit, leaking, view):
    finished = autofit("profile", "--trace", str(leaking), "--view", view)
    assert finished.code == 0
    assert finished.out.startswith("run.pickle, recorded by a real run")
    document = autofit("profile", "--trace", str(leaking), "--view", view, "--json").document
    assert document["peak_reserved_bytes"] == 64 << 30


def test_a_plan_needs_what_no_snapshot_has(autofit, leaking):
    finished = autofit("profile", "--trace", str(leaking), "--view", "plan")
    assert (finished.code, finished.err.count("\n")) == (2, 1)
    assert "which no memory snapshot has" in finished.err


def test_a_snapshot_is_exported_to_every_form_and_comes_back_the_same(autofit, leaking, tmp_path):
    names = ("save", "snapshot", "peak-snapshot", "chrome-trace", "report")
    files = {name: tmp_path / f"out-{name}.{'html' if name == 'report' else 'json'}" for name in names}
    given = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    assert autofit("profile", "--trace", str(leaking), *given).code == 0
    views = [
        autofit("profile", "--trace", str(path), "--view", "timeline", "--json").document
        for path in (leaking, files["save"])
    ]
    assert views[0] == views[1]
    again = [autofit("explain", str(path), "--json").document for path in (leaking, files["snapshot"])]
    for document in again:
        del document["name"], document["settings"]
    assert again[0]["growth"] == again[1]["growth"]
    assert again[0]["peak_allocated_bytes"] == again[1]["peak_allocated_bytes"]
    trace = json.loads(files["chrome-trace"].read_text())
    assert trace["otherData"]["evidence"] == "measured"
    assert "recorded" in files["report"].read_text()
    peak = pickle.loads(files["peak-snapshot"].read_bytes())
    held = sum(each["allocated_size"] for each in peak["segments"])
    assert held == again[0]["peak_allocated_bytes"]


# ── hostile files ────────────────────────────────────────────────────────────


PROGRAMS = (
    b"cos\nsystem\n(S'true'\ntR.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    b"\x80\x04\x8c\x01a\x51.",
    b"\x80\x04\x96" + b"\xff" * 8 + b".",
    b"\x80\x04]r\xff\xff\xff\x7f.",
    b"\x80\x05\x97.",
)


def hostile_files(number: int):
    """Files that nobody means well with, from valid ones by seed: pickles, CSV, other programs of pickle."""
    valid = planted.steps(2).document()
    table = "action,address,size,stream,where\nalloc,0,512,0,a.py:1:f\nfree_completed,0,512,0,\n"
    for seed in range(number):
        rng = random.Random(seed)
        kind = rng.random()
        if kind < 0.4:
            try:
                yield pickle.dumps(hostile.document(valid, rng), rng.choice((2, 4, 5)))
            except (UnicodeError, RecursionError):
                yield b"\x80\x04" + b"]" * 100_000 + b"."
        elif kind < 0.7:
            yield hostile.damaged(pickle.dumps(valid, 4), rng)
        elif kind < 0.8:
            yield hostile.damaged(table.encode(), rng)
        elif kind < 0.9:
            yield rng.choice(PROGRAMS)
        else:
            data = rng.choice((b"]", b"}", b")\x85", b"N", b"(")) * rng.choice((10, 100_000))
            yield b"\x80\x04" + data + b"."


def test_hostile_files_are_told_of_in_one_sentence(autofit, tmp_path):
    path, refused = tmp_path / "hostile.pickle", 0
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in hostile_files(200):
        path.write_bytes(data)
        finished = autofit("explain", str(path), "--json")
        assert finished.code in (0, 2)
        document = finished.document
        if finished.code:
            refused += 1
            assert document["schema"] == "autofit.error/1"
            assert "\n" not in document["message"]
            assert document["kind"] in ("snapshot", "usage")
    assert refused > 120
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 300 << 10
