"""The calibration: what it makes of rows whose errors are known."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from autofit.predict.confidence import ModelClass, Residuals
from autofit_workers.spec.pythons import read_toml
from tests.bench.calibrate import (
    TAIL,
    Row,
    calibrated,
    cross_validated,
    document,
    entries_of,
    note_of,
    read_rows,
    shares_of,
    tail_of,
)
from tests.bench.tables.gpumemnet_timm import TOO_FEW

HEAD = (
    "table,model,family,groups,optimizer,gpu,batch_size,limit_bytes,model_class,architecture,measured_bytes,real_bytes,"
    "low_bytes,likely_bytes,high_bytes,workspace_likely_bytes,failure"
)


def row(family: str, error: float, *, model_class: ModelClass = ModelClass.DENSE) -> Row:
    """A run that took so much more (or less) than the one prediction for it."""
    return Row(
        table="a-table",
        family=family,
        model_class=model_class,
        cards="ampere-ada",
        gpu="a-card",
        torch_release="",
        batch_size=8,
        real_bytes=round(1e9 * (1 + error)),
        low_bytes=10**9,
        likely_bytes=10**9,
        high_bytes=10**9,
        workspace_bytes=0,
    )


def with_workspace(share: float, *, real: float) -> Row:
    """A run of which a thousand million bytes are likely, so much of that the largest workspace."""
    return dataclasses.replace(row("one", real), workspace_bytes=round(1e9 * share))


def test_the_shares_leave_out_a_fortieth_at_either_end() -> None:
    rows = [row("one", (number - 50) / 1000) for number in range(101)]
    shares = shares_of(rows)
    assert (shares.low, shares.high) == pytest.approx((-0.048, 0.048), abs=2e-4)
    assert sum(shares.covers(one) for one in rows) / len(rows) >= 0.95


def test_of_the_largest_workspace_no_more_is_added_than_real_runs_need() -> None:
    unused = [with_workspace(number / 100, real=0.0) for number in range(40)]
    assert shares_of(unused).workspace == 0.0
    needed = [with_workspace(number / 100, real=number / 100) for number in range(40)]
    assert shares_of(needed).workspace >= 0.9
    shares = shares_of([with_workspace(number / 100, real=number / 200) for number in range(40)])
    assert shares.workspace == pytest.approx(0.5, abs=0.1)
    assert shares.high == pytest.approx(0.02, abs=0.02)


def test_of_two_steps_that_may_have_run_the_nearer_one_counts(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    others = ",else_low_bytes,else_likely_bytes,else_high_bytes"
    line = "t,m,f,,adam,g,{},40000000000,attention,sm_86,4050000000,{},3000000000,3000000000,3000000000,0,,{}"
    other = "4000000000,4000000000,4000000000"
    file.write_text(
        f"{HEAD}{others}\n{line.format(8, 4_010_000_000, other)}\n"
        f"{line.format(8, 3_020_000_000, other)}\n{line.format(9, 4_010_000_000, ',,')}\n"
    )
    rows, _ = read_rows([file])
    assert [row.likely_bytes for row in rows] == [4 * 10**9, 3 * 10**9, 3 * 10**9]


def test_no_end_is_moved_by_less_than_identical_runs_differ() -> None:
    shares = shares_of([row("one", 0.03 + number / 1000) for number in range(10)])
    assert (shares.low, shares.high) == pytest.approx((-0.02, 0.039), abs=2e-4)


def test_a_family_with_many_rows_does_not_drown_another() -> None:
    rows = [row("many", 0.0) for _ in range(1000)] + [row("few", 0.1) for _ in range(5)]
    assert shares_of(rows).high == pytest.approx(0.1, abs=2e-4)


def test_coverage_is_that_of_intervals_made_without_the_family() -> None:
    rows = [row("good", 0.01) for _ in range(10)] + [row("bad", 0.3) for _ in range(10)]
    tried = cross_validated(rows)
    assert (tried.covered, tried.unsafe) == (0.5, 0.5)


def test_where_families_that_are_left_out_lie_above_less_is_left_out() -> None:
    alike = [row(family, number / 2000) for family in "abcd" for number in range(100)]
    assert tail_of(alike) == TAIL
    apart = [
        row(family, (number + 4 * place) / 2000)
        for place, family in enumerate("abcd")
        for number in range(100)
    ]
    tail = tail_of(apart)
    assert tail < TAIL
    assert shares_of(apart, tail).high > shares_of(apart).high


def test_what_is_written_is_what_predictions_read() -> None:
    rows = [row(family, error) for family in ("a", "b") for error in (-0.02, 0.03) for _ in range(5)]
    few = [row("c", 0.5, model_class=ModelClass.ATTENTION)]
    text = document((entry for _, entry in calibrated(rows + few)), note="a note")
    assert note_of(text) == "a note"
    assert note_of(document([], note="")) == ""
    residuals = Residuals.from_toml(text)
    known = residuals.of(ModelClass.DENSE, "sm_80")
    assert (known.low_share, known.high_share) == pytest.approx((-0.02, 0.03), abs=2e-4)
    assert (known.num_rows, known.num_families) == (20, 2)
    assert known.sources == ("a-table",)
    assert residuals.of(ModelClass.ATTENTION, "sm_80").num_rows == 0
    assert read_toml(text)["unmeasured"]["factor"] > 1


def test_entries_of_classes_that_were_not_calibrated_stay_as_they_are() -> None:
    rows = [
        row(family, 0.03, model_class=model_class)
        for model_class in (ModelClass.DENSE, ModelClass.ATTENTION)
        for family in ("a", "b")
        for _ in range(10)
    ]
    text = document((entry for _, entry in calibrated(rows)), note="")
    kept = entries_of(text, [ModelClass.DENSE])
    assert (
        document([*kept, *(entry for _, entry in calibrated(rows, [ModelClass.ATTENTION]))], note="") == text
    )
    assert list(Residuals.from_toml(document(kept, note="")).measured) == [(ModelClass.DENSE, "ampere-ada")]


@pytest.mark.parametrize(
    ("model_class", "runs", "second_bytes", "num_left"),
    [
        ("attention", ("adam,g", "adam,g"), 4_070_000_000, 2),
        ("attention", ("adam,g", "adam,g"), 4_100_000_000, 0),
        ("attention", ("adam,g", "adamw,g"), 4_100_000_000, 0),
        ("attention", ("adam,g", "sgd,g"), 4_100_000_000, 2),
        ("attention", ("adam,g", "adam,h"), 4_100_000_000, 2),
        ("without-convolutions", ("adam,g", "adam,h"), 4_100_000_000, 0),
    ],
    ids=[
        "as identical runs",
        "by more",
        "an optimizer that takes the same",
        "another optimizer",
        "on another card",
        "whose card makes no difference",
    ],
)
def test_of_a_repeated_run_that_differs_neither_is_believed(
    tmp_path: Path, model_class: str, runs: tuple[str, str], second_bytes: int, num_left: int
) -> None:
    file = tmp_path / "rows.csv"
    lines = [
        f"t,m,f,,{run},4,40000000000,{model_class},sm_86,{measured},{measured},3900000000,4000000000,4200000000,0,"
        for run, measured in zip(runs, (4_000_000_000, second_bytes), strict=True)
    ]
    file.write_text("\n".join([HEAD, *lines, ""]))
    rows, num_failed = read_rows([file])
    assert (len(rows), num_failed) == (num_left, 2 - num_left)


def test_rows_are_read_as_what_the_allocator_had_small_ones_left_out_and_failures_counted(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(
        f"{HEAD}\n"
        "t,m,f,,adam,g,4,40000000000,attention,sm_86,4050000000,4000000000,1900000000,1950000000,1990000000,0,\n"
        "t,m,f,,adam,g,8,40000000000,attention,sm_86,4150000000,4100000000,3800000000,3900000000,3980000000,0,\n"
        "t,m,f,,adam,g,16,40000000000,attention,sm_86,,,900000000,950000000,990000000,0,\n"
        "t,m,f,,adam,g,32,40000000000,,sm_86,5100000000,,0,0,0,0,not traced\n"
    )
    (only,), num_failed = read_rows([file])
    assert num_failed == 1
    assert (only.real_bytes, only.cards, only.model_class) == (
        4_100_000_000,
        "ampere-ada",
        ModelClass.ATTENTION,
    )
    assert only.beyond_high(0.0) > 0


def test_a_run_that_took_far_more_than_a_larger_batch_was_not_alone_on_its_card(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    peaks = {8: 30, 16: 12, 32: 13, 64: 14}
    lines = [
        f"t,m,f,,adam,g,{batch},40000000000,attention,sm_80,{gigabytes}000000000,{gigabytes}000000000,9000000000,9000000000,9000000000,0,"
        for batch, gigabytes in peaks.items()
    ]
    file.write_text("\n".join([HEAD, *lines]))
    rows, num_left_out = read_rows([file])
    assert [row.real_bytes for row in rows] == [12 * 10**9, 13 * 10**9, 14 * 10**9]
    assert num_left_out == 1


@pytest.mark.parametrize(
    ("peaks", "left"),
    [
        ({8: 6, 32: 7, 64: 12, 128: 22}, {32, 64, 128}),
        ({8: 3, 32: 7, 64: 12, 128: 22}, {8, 32, 64, 128}),
        ({16: 6, 32: 5.5, 64: 9}, {16, 32, 64}),
    ],
    ids=["far above what three others say", "along their line", "two others may be the wrong ones"],
)
def test_a_run_far_above_the_line_of_the_others_was_not_alone_on_its_card(
    tmp_path: Path, peaks: dict[int, float], left: set[int]
) -> None:
    file = tmp_path / "rows.csv"
    sizes = {batch: round(gigabytes * 1e9) for batch, gigabytes in peaks.items()}
    lines = [
        f"t,m,f,,adam,g,{batch},40000000000,attention,sm_80,{size},{size},9000000000,9000000000,9000000000,0,"
        for batch, size in sizes.items()
    ]
    file.write_text("\n".join([HEAD, *lines]))
    rows, num_left_out = read_rows([file])
    assert {row.real_bytes for row in rows} == {sizes[batch] for batch in left}
    assert num_left_out == len(peaks) - len(left)


def test_a_run_whose_loss_cannot_have_run_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(
        f"{HEAD}\nt,m,f,vit; {TOO_FEW},adam,g,64,40000000000,attention,sm_80,"
        "9000000000,9000000000,9000000000,9000000000,9000000000,0,\n"
    )
    assert read_rows([file]) == ([], 1)
