"""`autofit profile`: the timeline, the plan, and the files for other programs."""

from __future__ import annotations

import gzip
import json
import pickle

import pytest
from torch.cuda import _memory_viz as memory_viz

from autofit.cli.text.chart import chart
from autofit.explain.views.timeline import timeline
from autofit_workers.spec.trace import Call, Category
from tests.autofit.explain.profiles import allocation, profile_of
from tests.autofit.explain.trace_events import validate

MIB = 1 << 20
PROFILE = profile_of(
    [
        allocation(4 * MIB, Category.PARAMETER, module="conv"),
        allocation(24 * MIB, module="conv", operator="aten.relu"),
        allocation(4 * MIB, Category.GRADIENT, module="conv"),
    ],
    (0, 1, 2, ~1, ~2),
    [(0, "model"), (1, "step 1 forward"), (2, "step 1 backward")],
    [Call(position=1, operator="aten.relu", module="conv", inputs=(0,), outputs=(1,), name="hidden")],
)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "profile.json.gz"
    path.write_bytes(PROFILE.to_bytes())
    return path


@pytest.fixture
def profile(autofit, saved):
    return lambda *options: autofit("profile", "--trace", str(saved), *options)


def test_the_chart_rises_to_the_peak_and_points_at_it():
    (lane,) = timeline(PROFILE, num_moments=10)
    lines = list(chart(lane))
    columns = [line[13:] for line in lines[:12]]

    assert len(lane.moments) == 5
    heights = [sum(line[column : column + 1] == "█" for line in columns) for column in range(5)]
    assert heights == sorted(heights[:3]) + sorted(heights[3:], reverse=True)
    assert columns[-1].count("█") == 5 - heights.count(0)
    assert any("░" in line for line in columns)
    assert lines[-1].index("▲") - 13 == lane.moments.index(lane.peak) == 2
    assert "model" not in lines[-2], "one column has no room for it"
    assert lines[-2].strip().startswith("│││ba")


def test_the_timeline_says_where_the_peak_is(profile):
    text = " ".join(profile("--view", "timeline").out.split())

    assert "cuda:0 █ allocated ░ reserved, not allocated" in text
    assert "step 1 backward ▲ 3 32.00 MiB 44.00 MiB 4.00 MiB 4.00 MiB 24.00 MiB" in text
    assert "allocated peak 32.00 MiB (33,554,432 bytes): step 1 backward, after 3 of 5 events" in text


def test_the_timeline_shows_the_highest_phases_in_their_order(profile):
    text = profile("--view", "timeline", "--top", "2").out

    assert [line.split("  ")[1] for line in text.splitlines() if line.startswith("  step 1")] == [
        "step 1 forward",
        "step 1 backward ▲",
    ]
    assert "… and 1 more: --all shows them" in text
    assert "more" not in profile("--view", "timeline", "--all").out


def test_the_timeline_as_a_document(profile):
    document = profile("--view", "timeline", "--json", "--top", "3").document

    assert (document["schema"], document["view"]) == ("autofit.profile-view/1", "timeline")
    (lane,) = document["lanes"]
    assert lane["peak"]["allocated_bytes"] == document["peak_allocated_bytes"] == 32 * MIB
    assert lane["peak"] in lane["rows"]
    assert lane["peak"]["categories"] == {
        "parameter": 4 * MIB,
        "gradient": 4 * MIB,
        "activation": 24 * MIB,
    }
    assert len(lane["phase_peaks"]) == 3


def test_the_plan_has_a_row_for_each_policy(profile):
    text = " ".join(profile("--view", "plan").out.split())

    for policy in ("everything", "named", "eager", "in-place", "planned", "folded"):
        assert f" {policy} " in text
    assert "eager 32.00 MiB 33,554,432 bytes 100.0% – 1 2" in text
    assert "step 1; every number includes 4.00 MiB that stay allocated" in text
    assert "1 values have no Python name; together they hold at most 4.00 MiB" in text


def test_the_plan_as_a_document(profile):
    document = profile("--view", "plan", "--json").document

    assert (document["schema"], document["view"], document["step"]) == ("autofit.profile-view/1", "plan", 1)
    assert [policy["name"] for policy in document["policies"]][2:] == [
        "eager",
        "in-place",
        "planned",
        "folded",
    ]
    assert [place["holds"] for place in document["places"]] == [["conv/aten.relu"], ["conv/aten.empty"]]
    assert document["resident_bytes"] == 4 * MIB


@pytest.mark.parametrize("name", ["timeline.json", "timeline.json.gz"])
def test_a_chrome_trace_is_written(name, profile, tmp_path):
    path = tmp_path / name
    finished = profile("--chrome-trace", str(path))

    assert f"wrote {path}" in finished.err
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    validate(document["traceEvents"])


@pytest.mark.parametrize(
    ("options", "num_entries", "active_bytes"),
    [
        (("--snapshot",), 9, 4 * MIB),
        (("--step", "0", "--snapshot"), 2, 4 * MIB),
        (("--peak-snapshot",), 5, 32 * MIB),
    ],
)
def test_a_snapshot_is_of_the_moment_asked_for(options, num_entries, active_bytes, profile, tmp_path):
    path = tmp_path / "snapshot.pickle"
    assert profile(*options, str(path)).code == 0

    snapshot = pickle.loads(path.read_bytes())

    assert len(snapshot["device_traces"][0]) == num_entries
    assert sum(map(memory_viz.calc_active, snapshot["segments"])) == active_bytes
    assert "segments:" in memory_viz.segsum(snapshot)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--view", "timeline", "--step", "9"), "no step 9; choose from 0, 1"),
        (("--view", "plan", "--step", "9"), "no step 9; choose from 0, 1"),
        (("--view", "timeline", "--device", "cuda:7"), "nothing matches --device 'cuda:7'"),
        (("--view", "plan", "--device", "cuda:7"), "nothing matches --device 'cuda:7'"),
        (("--view", "timeline", "--category", "input"), "nothing matches --category input"),
    ],
)
def test_filters_that_leave_nothing_are_usage_errors(options, said, profile):
    finished = profile(*options, "--json")

    assert finished.code == 2
    assert said in finished.document["message"]


def test_a_plan_needs_a_profile_with_calls(autofit, tmp_path):
    path = tmp_path / "plain.json.gz"
    path.write_bytes(profile_of([allocation(10)], [0]).to_bytes())
    finished = autofit("profile", "--trace", str(path), "--view", "plan")

    assert finished.code == 2
    assert "the plan needs operator calls" in finished.err


def test_a_file_is_not_written_where_a_view_fails(profile, tmp_path):
    path = tmp_path / "trace.json"
    assert profile("--view", "plan", "--step", "9", "--chrome-trace", str(path)).code == 2
    assert not path.exists()
