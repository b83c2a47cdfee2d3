"""The bench's arithmetic on rows that are made up."""

from __future__ import annotations

import csv
import dataclasses

import pytest

from tests.bench import accuracy_report
from tests.bench.predictions import ABLATION, Prediction
from tests.bench.scoring import Scored, quantile, summarize, summarize_other, with_constants
from tests.bench.tables.rows import Row
from tests.bench.tables.setting import Setting

MIB = 1024**2


def row(**changes: object) -> Row:
    values = {
        "table": "made-up",
        "model": "net",
        "family": "nets",
        "setting": Setting(source="timm", model="net"),
        "batch_size": 32,
        "gpu": "a100-40g",
        "architecture": "sm_80",
        "total_bytes": 1000 * MIB,
        "context_bytes": 100 * MIB,
    }
    return Row(**{**values, **changes})


def measured(real_mib: int, likely_mib: int, *, high_mib: int | None = None, **changes: object) -> Scored:
    prediction = Prediction(
        low_bytes=likely_mib * MIB,
        likely_bytes=likely_mib * MIB,
        high_bytes=(likely_mib if high_mib is None else high_mib) * MIB,
        safe_bytes=(likely_mib if high_mib is None else high_mib) * MIB,
        seconds=2.0,
    )
    return Scored(row=row(measured_bytes=real_mib * MIB, **changes), prediction=prediction)


def runs(answer: bool) -> dict[str, bool]:
    return dict.fromkeys(("low", "likely", "high"), answer)


def bracket(*, says_it_runs: bool, says_next_runs: bool, safe_batch_size: int = 32) -> Scored:
    prediction = Prediction(
        runs=runs(says_it_runs), next_runs=runs(says_next_runs), safe_batch_size=safe_batch_size
    )
    return Scored(row=row(ran=True, failed_batch_size=48), prediction=prediction)


FAILED = Scored(row=row(measured_bytes=1, ran=True), prediction=Prediction(failure="no such model"))


def test_what_a_measurement_left_out_is_left_out_of_the_prediction_too() -> None:
    whole = measured(900, 1100)
    scored = dataclasses.replace(
        whole, prediction=dataclasses.replace(whole.prediction, before_bytes=100 * MIB)
    )
    assert scored.as_measured(scored.prediction.likely_bytes) == 1000 * MIB
    assert scored.real_bytes == 1000 * MIB
    assert scored.error == pytest.approx(1000 / 900 - 1)
    (constant_bytes,) = {s.constant_bytes for s in with_constants([scored])}
    assert constant_bytes == -100 * MIB
    assert summarize_other("all", "xMem", [whole_of_another()]).median == pytest.approx(1 / 9)


def whole_of_another() -> Scored:
    """What others said of a peak is held against it as it is."""
    scored = measured(900, 1100, others={"xMem": 1000 * MIB}, ran=True)
    return dataclasses.replace(
        scored, prediction=dataclasses.replace(scored.prediction, before_bytes=100 * MIB)
    )


def test_a_quantile_lies_between_two_values_on_the_line_through_both() -> None:
    assert quantile([4.0, 1.0, 2.0, 3.0, 5.0], 0.5) == 3.0
    assert quantile([0.0, 10.0], 0.9) == pytest.approx(9.0)
    assert quantile([7.0], 0.9) == 7.0


def test_errors_are_shares_of_what_was_measured() -> None:
    summary = summarize("all", [measured(100, 110), measured(200, 180), measured(100, 104)])
    assert summary.median == pytest.approx(0.10)
    assert summary.largest == pytest.approx(0.10)
    assert summary.bias == pytest.approx((0.10 - 0.10 + 0.04) / 3)
    assert summary.seconds == 2.0


def test_a_row_without_a_prediction_is_a_failure_and_no_error() -> None:
    summary = summarize("all", [measured(100, 110), FAILED])
    assert (summary.num_rows, summary.num_failed, summary.num_errors) == (2, 1, 1)
    assert summary.largest == pytest.approx(0.10)
    assert summary.labels_right == 0.0


def test_a_class_of_failures_has_no_figures() -> None:
    summary = summarize("all", [FAILED])
    assert (summary.median, summary.unsafe, summary.seconds) == (None, None, None)


def test_the_constant_of_a_family_is_what_the_other_families_leave_over() -> None:
    scored = with_constants(
        [
            measured(1100, 1000, family="a"),
            measured(2100, 2000, family="a"),
            measured(1500, 1000, family="b"),
            measured(1300, 1000, family="c"),
        ]
    )
    # Of the others' 500 and 300 MiB for a, where 300 is more of its peak; of 100, 100 and 300 for b.
    assert [s.constant_bytes // MIB for s in scored] == [300, 300, 100, 100]


def using(scored: Scored, *cudnn: str) -> Scored:
    return dataclasses.replace(scored, prediction=dataclasses.replace(scored.prediction, cudnn=cudnn))


def test_networks_that_use_the_same_of_cudnn_have_a_constant_of_their_own() -> None:
    plain = [measured(1100, 1000, family=family) for family in "abc"]
    convolutional = [using(measured(1400, 1000, family=family), "convolution") for family in "abc"]
    scored = with_constants(plain + convolutional)
    assert [s.constant_bytes // MIB for s in scored] == [100, 100, 100, 400, 400, 400]
    assert summarize("all", scored).largest == 0.0


def test_a_use_of_cudnn_of_which_there_is_one_other_family_has_the_constant_of_all_that_use_it() -> None:
    plain = [measured(1100, 1000, family=family) for family in "abc"]
    normed = [using(measured(1200, 1000, family=family), "convolution", "batch norm") for family in "abc"]
    convolutional = [using(measured(1400, 1000, family=family), "convolution") for family in "de"]
    scored = with_constants(plain + normed + convolutional)
    assert [s.constant_bytes // MIB for s in scored] == [100] * 3 + [200] * 5


def test_a_use_of_cudnn_that_no_other_family_shares_has_the_constant_of_all_others() -> None:
    convolutional = [using(measured(1400, 1000, family=family), "convolution") for family in "ab"]
    scored = with_constants([measured(1100, 1000, family="c"), *convolutional])
    assert scored[0].constant_bytes == 400 * MIB


def test_the_constant_is_the_one_by_which_peaks_are_off_least_each_by_its_own_size() -> None:
    pairs = [(1100, 1000), (9300, 9000), (8300, 8000), (1150, 1000), (7300, 7000)]
    scored = [measured(*pair) for pair in pairs]
    (constant_bytes,) = {s.constant_bytes for s in with_constants(scored)}
    assert constant_bytes == 150 * MIB

    def total_error(num_bytes: int) -> float:
        return sum(abs(dataclasses.replace(s, constant_bytes=num_bytes).error) for s in scored)

    assert total_error(constant_bytes) == min(total_error(size * MIB) for size in range(0, 400, 10))


def test_the_constant_of_a_single_family_is_its_own() -> None:
    scored = with_constants([measured(1100, 1000), measured(1200, 1000), measured(1300, 1000)])
    assert {s.constant_bytes for s in scored} == {200 * MIB}


def test_failures_and_labels_have_no_part_in_the_constant() -> None:
    label = Scored(row=row(ran=False, family="b"), prediction=Prediction(runs=runs(False)))
    failed = dataclasses.replace(FAILED, row=row(measured_bytes=1, family="b"))
    scored = with_constants([measured(1100, 1000, family="a"), label, failed])
    assert [s.constant_bytes for s in scored[:2]] == [100 * MIB] * 2


def test_a_label_of_another_family_is_nothing_to_fit_a_constant_on() -> None:
    label = Scored(
        row=row(ran=False, family="e"), prediction=Prediction(runs=runs(False), cudnn=("convolution",))
    )
    normed = [using(measured(1200, 1000, family=family), "convolution", "batch norm") for family in "ab"]
    scored = with_constants([using(measured(1400, 1000, family="d"), "convolution"), label, *normed])
    assert scored[0].constant_bytes == 200 * MIB


def test_a_single_family_has_a_constant_for_each_use_of_cudnn() -> None:
    scored = with_constants([measured(1100, 1000), using(measured(1400, 1000), "convolution")])
    assert [s.constant_bytes // MIB for s in scored] == [100, 400]


def test_the_constant_does_not_hide_an_error_of_the_peak_above_it() -> None:
    scored = dataclasses.replace(measured(1100, 120), constant_bytes=1000 * MIB)
    assert scored.error == pytest.approx(20 / 1100)
    assert scored.error_above_constant == pytest.approx(0.2)


def test_a_measurement_below_the_constant_has_no_peak_above_it() -> None:
    scored = dataclasses.replace(measured(1000, 10), constant_bytes=1000 * MIB)
    assert scored.error_above_constant is None
    assert summarize("all", [scored]).above_median is None


def test_unsafe_is_a_high_end_that_with_the_margin_is_below_what_was_measured() -> None:
    safe, unsafe = measured(100, 90, high_mib=98), measured(100, 90, high_mib=96)
    summary = summarize("all", [safe, unsafe])
    assert summary.unsafe == 0.5
    assert summary.unsafe_at_likely == 1.0


def test_what_an_unsafe_answer_does_not_give_does_not_make_up_for_what_others_give_away() -> None:
    assert summarize("all", [measured(100, 90, high_mib=120), measured(100, 80)]).given_away == (
        pytest.approx(0.1)
    )


@pytest.mark.parametrize(
    ("says_it_runs", "says_next_runs", "right"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_a_bracket_is_hit_where_both_of_its_ends_are(
    says_it_runs: bool, says_next_runs: bool, right: bool
) -> None:
    scored = bracket(says_it_runs=says_it_runs, says_next_runs=says_next_runs)
    assert scored.is_labelled_right == right


def test_the_safe_answer_of_a_bracket_is_unsafe_where_it_is_the_size_that_did_not_run() -> None:
    answers = (47, 48)
    assert [
        bracket(says_it_runs=True, says_next_runs=True, safe_batch_size=size).is_unsafe for size in answers
    ] == [False, True]


def test_a_bracket_is_known_to_its_lower_end() -> None:
    below = bracket(says_it_runs=True, says_next_runs=False, safe_batch_size=24)
    inside = bracket(says_it_runs=True, says_next_runs=False, safe_batch_size=40)
    assert (below.given_away, inside.given_away) == (0.25, 0.0)


def test_what_ran_out_of_memory_is_a_label_and_no_number() -> None:
    right = Scored(row=row(ran=False), prediction=Prediction(runs=runs(False)))
    wrong = Scored(row=row(ran=False), prediction=Prediction(runs=runs(True)))
    ran = Scored(row=row(ran=True, measured_bytes=MIB), prediction=Prediction(runs=runs(True)))
    summary = summarize("all", [right, wrong, ran])
    assert summary.num_errors == 1
    assert summary.labels_right == pytest.approx(2 / 3)
    assert summary.oom_labels_right == 0.5


def test_another_predictor_is_scored_on_the_rows_that_it_answered() -> None:
    others = {"other": 150 * MIB}
    scored = [
        measured(100, 100, others=others),
        measured(100, 100, others={"other": None}),
        measured(100, 100),
    ]
    summary = summarize_other("other", "other", scored)
    assert (summary.num_rows, summary.num_failed) == (2, 1)
    assert summary.median == pytest.approx(0.5)
    assert summary.seconds is None


def test_another_predictors_number_is_taken_as_it_is() -> None:
    scored = dataclasses.replace(measured(100, 50, others={"other": 100 * MIB}), constant_bytes=50 * MIB)
    assert summarize("ours", [scored]).median == 0
    assert summarize_other("other", "other", [scored]).median == 0


def test_another_predictor_says_by_its_number_whether_a_size_runs() -> None:
    # 1000 MiB less a context of 100.
    fits = Scored(row=row(ran=True, others={"other": 900 * MIB}), prediction=Prediction())
    does_not = Scored(row=row(ran=False, others={"other": 901 * MIB}), prediction=Prediction())
    assert summarize_other("other", "other", [fits, does_not]).labels_right == 1.0


def test_every_step_of_the_ablation_has_a_constant_of_its_own() -> None:
    first = ABLATION[0][0]
    scored = [
        dataclasses.replace(
            s,
            constant_bytes=50 * MIB,
            prediction=dataclasses.replace(s.prediction, ablation_bytes={first: 60 * MIB}),
        )
        for s in (measured(100, 50, family="a"), measured(100, 50, family="b"))
    ]
    step = accuracy_report.ablated(scored, first)
    assert [s.constant_bytes // MIB for s in step] == [40, 40]
    assert all(s.error == 0 for s in step)


def test_the_report_names_what_failed_and_why() -> None:
    text = "\n".join(accuracy_report.markdown([measured(100, 110), FAILED]))
    assert "- net (1 rows): no such model" in text
    assert "| nets | 2 | 1 | 10.0 % |" in text


def test_every_row_is_a_line_of_the_csv(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    other = measured(100, 110, others={"other": 7})
    accuracy_report.write_rows(path, [other, bracket(says_it_runs=True, says_next_runs=False), FAILED])
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["failure"] for line in lines] == ["", "", "no such model"]
    assert (lines[0]["measured_bytes"], lines[0]["other"]) == (str(100 * MIB), "7")
    assert (lines[1]["failed_batch_size"], lines[1]["measured_bytes"]) == ("48", "")
