"""What is found in recorded runs: their steps, what leaks, copies in 32 bits, and a fragmented cache."""

from __future__ import annotations

import pytest

from autofit.explain.snapshots.findings import growth_of, lines_at_peak, unused_of, wide_copies
from autofit.explain.snapshots.run import Run, run_of
from autofit.questions.real_runs.snapshot import observed_snapshot
from autofit_workers.replay.snapshots.files import open_snapshot, read_snapshots, unpacked
from tests.autofit.explain.snapshots import planted
from tests.bench.tables.folder import DEFAULT_TABLES
from tests.workers.replay.snapshots.made_up import MIB, MadeUp

SNAPSHOTS = DEFAULT_TABLES / "snapshots"
needs_snapshots = pytest.mark.skipif(not SNAPSHOTS.exists(), reason=f"no snapshots at {SNAPSHOTS}")


def run(made: MadeUp) -> Run:
    return run_of(unpacked("run.pickle", made.pickled()))


@pytest.mark.parametrize("number", [3, 5])
def test_steps_are_found_by_what_repeats(number: int) -> None:
    found = run(planted.steps(number))
    assert not found.names_steps
    assert found.num_steps == number
    begins = {found.followed.sources[found.followed.events[start]].where for start in found.starts[:-1]}
    assert begins == {"/me/train.py:10:batch"}


def test_steps_that_a_profiler_named_are_taken() -> None:
    made = planted.steps(3)
    moments = [each["time_us"] for each in made.entries if each["frames"] and each["frames"][0]["line"] == 10]
    made.annotations = [
        {"stage": "START", "name": f"ProfilerStep#{number}", "device": 0, "time_us": moment}
        for number, moment in enumerate(moments)
        if number != 2 or moment != moments[0]
    ]
    found = run(made)
    assert found.names_steps
    assert found.num_steps >= 2


def test_a_leak_is_what_grew_between_steps_and_has_its_line() -> None:
    growth = growth_of(run(planted.steps(5, leak=7 * MIB)))
    assert growth is not None
    assert growth.is_leak
    assert growth.bytes_a_step == 7 * MIB
    assert [(row.line, row.num_bytes, row.count) for row in growth.lines] == [(planted.KEPT, 7 * MIB, 1)]


def test_steps_that_keep_nothing_do_not_leak() -> None:
    found = run(planted.steps(5))
    assert growth_of(found) is None
    assert observed_snapshot(found).peak_phase.endswith(
        "of step 2"
    )  # which has the optimizer's state from its begin


def test_a_copy_in_32_bits_has_its_line_and_operator() -> None:
    (copy,) = wide_copies(run(planted.steps(3, copies=True)))
    assert (copy.line, copy.operator, copy.num_bytes) == (planted.COPIED, "aten._to_copy", 32 * MIB)
    assert wide_copies(run(planted.steps(3))) == ()


def test_lines_at_the_peak_add_up_to_what_is_requested_there() -> None:
    found = run(planted.steps(3))
    alive = found.alive_at(found.peak_position)
    assert sum(row.num_bytes for row in lines_at_peak(found)) == sum(
        found.followed.requested_bytes[each] for each in alive
    )
    assert lines_at_peak(found)[0].line == "attn.py:54:forward"


def test_expandable_segments_are_not_advised_where_they_are_on() -> None:
    made = planted.steps(3)
    assert "reserved memory without a tensor" in {each.name for each in observed_snapshot(run(made)).savings}
    made.settings["expandable_segments"] = True
    saved = {each.name for each in observed_snapshot(run(made)).savings}
    assert "reserved memory without a tensor" not in saved


# ── streams of real runs ─────────────────────────────────────────────────────


def given(name: str) -> planted.Snapshot:
    return read_snapshots(open_snapshot(SNAPSHOTS / f"{name}.events.csv.gz"))[0]


def of(snapshot: planted.Snapshot) -> Run:
    return run_of(unpacked("run.pickle", planted.pickled(snapshot)))


@needs_snapshots
def test_layers_of_a_real_forward_pass_are_no_steps() -> None:
    assert of(given("kkaitlyn111-ctx512_forward_mixed")).num_steps == 0


@needs_snapshots
def test_a_leak_planted_in_a_real_step_is_found() -> None:
    before = growth_of(of(given("Wedsonlin-medium_128_training")))
    after = growth_of(of(planted.with_leak(given("Wedsonlin-medium_128_training"))))
    assert before is not None
    assert after is not None
    assert after.bytes_a_step - before.bytes_a_step == 48 * MIB
    assert planted.KEPT not in {row.line for row in before.lines}
    assert (after.lines[0].line, after.lines[0].num_bytes) == (planted.KEPT, 48 * MIB)


@needs_snapshots
def test_a_copy_planted_in_a_real_step_is_found() -> None:
    copies = wide_copies(of(planted.with_copy(given("Wedsonlin-medium_512_training"))))
    assert planted.COPIED in [row.line for row in copies[:8]]  # as many are printed


@needs_snapshots
def test_a_cache_that_was_fragmented_on_purpose_is_found() -> None:
    name = "kkaitlyn111-ctx128_forward"
    before, after = unused_of(of(given(name))), unused_of(of(planted.with_fragments(given(name))))
    assert after.most_bytes - before.most_bytes > 1500 * MIB
    assert (after.pinned[0].line, after.pinned[0].num_bytes) == (planted.HELD, 1800 * MIB)
    assert after.largest_free_bytes is not None
    assert after.largest_free_bytes <= 20 * MIB
