"""`autofit profile`: views in text and as documents, of a prediction or of a saved profile."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys

import pytest

from tests.autofit.explain.toy import PROFILE, TIMED, UNSTATED

PREDICTED = ("profile", "--model", "davenet", "--batch-size", "4")
VIEWS = ("ops", "scopes", "code", "tensors")


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "profile.json.gz"
    path.write_bytes(PROFILE.to_bytes())
    return path


@pytest.fixture
def asked():
    """A stand-in for the prediction, and what it was asked."""
    seen = []

    def predict(settings, workload, batch_size, _emit):
        seen.append((settings, workload, batch_size))
        return PROFILE

    return predict, seen


def words(finished):
    assert finished.code == 0, finished.err
    return " ".join(finished.out.split())


def test_the_configuration_that_is_typed_is_the_one_that_is_asked_for(autofit, asked):
    predict, seen = asked
    options = "--conv-algo native --precision amp-bf16 --optimizer adam --mode infer --gpu t4"
    assert autofit(*PREDICTED, *options.split(), profile=predict).code == 0
    ((settings, workload, batch_size),) = seen
    assert (workload.target, batch_size) == ("davenet", 4)
    assert settings.configuration("a profile").conv_algo == "native"
    assert (settings.knobs.precision, settings.knobs.optimizer, settings.setup.mode) == (
        "amp-bf16",
        "adam",
        "infer",
    )
    assert settings.gpu.key == "t4"


def test_operators_are_shown_unless_another_view_is_asked_for(autofit, saved):
    text = words(autofit("profile", "--trace", str(saved)))
    assert "toy at batch 4 · fp32 · the workload's optimizer · train" in text
    assert "relu forward 4.10 KiB 100.00% 51.22% 3 5.00 KiB" in text
    assert "step 1: 6 allocations, 8.01 KiB requested, 8.00 KiB of blocks at the peak (8,192 bytes)" in text
    assert "on sm_80: allocated peak 8.00 KiB (8,192 bytes), reserved peak 2.00 MiB" in text


@pytest.mark.parametrize(
    ("view", "line"),
    [
        ("scopes", "body.conv 5.57 KiB 5.57 KiB 4 6.00 KiB 6.00 KiB"),
        ("code", "net.py:4:forward 3.91 KiB 3.91 KiB 2 4.00 KiB 4.00 KiB"),
        (
            "tensors",
            "body.conv/relu:0 [4, 375] 1500 2 2.93 KiB 4.00 KiB activation x step 1 forward step 1 backward",
        ),
    ],
)
def test_each_view_has_its_columns(view, line, autofit, saved):
    assert line in words(autofit("profile", "--trace", str(saved), "--view", view))


def test_columns_are_selected(autofit, saved):
    text = words(autofit("profile", "--trace", str(saved), "--select", "count"))
    assert "operator phase count relu forward 3" in text


@pytest.mark.parametrize("view", VIEWS)
def test_json_prints_one_document_with_all_rows(view, autofit, saved):
    document = autofit("profile", "--trace", str(saved), "--view", view, "--json").document
    assert (document["schema"], document["view"]) == ("autofit.profile-view/1", view)
    assert len(document["rows"]) == document["num_passing"]


def test_what_is_left_out_is_counted(autofit, saved):
    command = ("profile", "--trace", str(saved), "--view", "tensors")
    assert "… and 4 more: --all shows them" in words(autofit(*command, "--top", "2"))
    assert "more" not in words(autofit(*command, "--all"))


def test_filters_are_passed_on(autofit, saved):
    text = words(
        autofit(
            *("profile", "--trace", str(saved), "--view", "scopes", "--category", "gradient,activation"),
            *("--start-name-regex", "^body$", "--hide-name-regex", "nothing", "--max-depth", "2"),
            *("--min-bytes", "1K", "--order-by", "name", "--step", "2", "--device", "cuda"),
        )
    )
    assert "toy – 3.91 KiB 2" in text
    assert "head" not in text


def test_lines_of_libraries_are_shown_on_request(autofit, saved):
    command = ("profile", "--trace", str(saved), "--view", "code")
    assert "functional.py" not in autofit(*command).out
    assert "functional.py:70:relu" in autofit(*command, "--libraries").out


def test_a_profile_is_saved_and_shown_again_from_its_file(autofit, asked, tmp_path):
    path = tmp_path / "trace.json.gz"
    first = autofit(*PREDICTED, "--save", str(path), profile=asked[0])
    assert f"wrote {path} (" in first.err
    again = autofit("profile", "--trace", str(path))
    assert (again.code, again.out) == (0, first.out)


@pytest.mark.parametrize("place", ["missing/trace.json.gz", "."])
def test_a_place_that_cannot_be_written_is_found_before_anything_is_traced(place, autofit, asked, tmp_path):
    predict, seen = asked
    finished = autofit(*PREDICTED, "--save", str(tmp_path / place), "--json", profile=predict)
    assert finished.code == 5
    assert "cannot write" in finished.document["message"]
    assert seen == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--model M or --script FILE with --batch-size N, or --trace FILE"),
        (("--model", "davenet"), "--model M or --script FILE with --batch-size N, or --trace FILE"),
        (("--trace", "{saved}", "--model", "davenet"), "leave out --model"),
        (("--trace", "{saved}", "--batch-size", "4"), "leave out --batch-size"),
        (("--trace", "{saved}", "--conv-algo", "native"), "leave out --conv-algo"),
        (
            (
                "--trace",
                "{saved}.gz",
            ),
            "cannot read",
        ),
        (("--trace", "{saved}", "--view", "graph"), "'graph' is not one of"),
        (
            ("--trace", "{saved}", "--show-name-regex", "("),
            "--show-name-regex: '(' is not a valid regular expression",
        ),
        (
            ("--trace", "{saved}", "--show-name-regex", "nowhere"),
            "nothing matches --show-name-regex 'nowhere'",
        ),
        (("--trace", "{saved}", "--step", "7"), "no step 7"),
        (("--trace", "{saved}", "--order-by", "bytes,name"), "--order-by takes one column, got 'bytes,name'"),
        (("--trace", "{saved}", "--all", "--top", "3"), "--all and --top 3 contradict each other"),
        (
            ("--trace", "{saved}", "--view", "timeline", "--min-bytes", "1G", "--max-depth", "1"),
            "--view timeline does not take --min-bytes and --max-depth",
        ),
        (
            ("--trace", "{saved}", "--view", "plan", "--category", "activation"),
            "--view plan does not take --category",
        ),
        (("--model", "davenet", "--batch-size", "4", "--conv-algo", "all"), "a profile takes one algorithm"),
    ],
)
def test_what_cannot_be_shown_is_a_usage_error(options, said, autofit, saved):
    finished = autofit("profile", *(option.format(saved=saved) for option in options), "--json")
    assert finished.code == 2
    assert said in finished.document["message"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no gzip", "is not a profile"),
        (PROFILE.to_bytes()[:-40], "is truncated"),
        (gzip.compress(b'{"schema": "autofit.profile/9"}', mtime=0), "got 'autofit.profile/9'"),
        (gzip.compress(b'{"schema": "autofit.estimate/1"}', mtime=0), "got 'autofit.estimate/1'"),
    ],
    ids=["no gzip", "cut off", "another version", "another document"],
)
def test_a_file_that_is_no_profile_is_refused_by_name(content, said, autofit, tmp_path):
    path = tmp_path / "other.json.gz"
    path.write_bytes(content)
    finished = autofit("profile", "--trace", str(path))
    assert finished.code == 2
    assert finished.err.startswith(f"error: {path}: ")
    assert said in finished.err


def test_a_model_of_the_users_is_profiled_with_its_lines(autofit, workload_file):
    finished = autofit(
        "profile", "--model", f"{workload_file}:healthy", "--batch-size", "4", "--view", "code"
    )
    assert finished.code == 0, finished.err
    assert workload_file.name in finished.out
    assert finished.err == "tracing batch 4\n"


def test_a_saved_profile_is_shown_without_torch(saved):
    code = (
        "import sys; from autofit.cli import main; "
        "assert main(['profile', '--trace', sys.argv[1], '--view', 'tensors']) == 0; "
        "heavy = {'torch', 'ray', 'optuna'} & sys.modules.keys(); assert not heavy, heavy"
    )
    command = [sys.executable, "-c", code, str(saved)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_a_page_is_made_of_a_saved_profile(autofit, saved, tmp_path):
    page = tmp_path / "page.html"
    assert autofit("profile", "--trace", str(saved), "--report", str(page), "--quiet").code == 0
    assert "toy at batch 4 allocates 8.00 KiB at its peak" in page.read_text(encoding="utf-8")


# ── times ───────────────────────────────────────────────────────────────────────────────────────

TIMED_VIEWS = ("ops", "scopes", "code", "timeline")
SECONDS = re.compile(r"[0-9] m?s\b")


@pytest.fixture
def shown(autofit, tmp_path):
    """What `autofit profile` makes of a saved profile."""

    def run(profile, *options):
        path = tmp_path / "timed.json.gz"
        path.write_bytes(profile.to_bytes())
        return autofit("profile", "--trace", str(path), *options)

    return run


@pytest.mark.parametrize(
    ("view", "line"),
    [
        ("ops", "relu forward 4 ms 40.0%"),
        ("scopes", "body.conv 7 ms 7 ms 70.0%"),
        ("code", "net.py:4:forward 7 ms 7 ms 70.0%"),
        ("timeline", "step 2 forward ▲ 3.25 ms 5 ms"),
    ],
)
def test_by_seconds_a_view_has_the_times_first(view, line, shown):
    text = words(shown(TIMED, "--view", view, "--order-by", "seconds"))
    assert line in text
    assert "step 2 is predicted to take 10 ms (8 to 12 ms), of which the device waits 15.0% for the" in text
    assert "step time: likely off by a factor of 1.10" in text


@pytest.mark.parametrize("view", TIMED_VIEWS)
def test_a_prediction_without_rows_behind_it_prints_no_seconds(view, shown):
    command = "--view", view, "--order-by", "seconds"
    assert SECONDS.search(words(shown(TIMED, *command)))
    text = words(shown(UNSTATED, *command))
    assert not SECONDS.search(text)
    assert "70.0%" in text or "40.0%" in text or "50.0%" in text
    assert "no step time is stated, only which step is slower: there are no measured times of this" in text


@pytest.mark.parametrize("view", TIMED_VIEWS)
def test_nor_does_its_document(view, shown):
    def seconds_of(plain):
        """Whatever stands under a name of seconds, at any depth."""
        if isinstance(plain, list):
            return [each for part in plain for each in seconds_of(part)]
        if not isinstance(plain, dict):
            return []
        own = [value for key, value in plain.items() if "seconds" in key]
        return own + [each for part in plain.values() for each in seconds_of(part)]

    command = "--view", view, "--order-by", "seconds", "--json"
    assert None not in seconds_of(shown(TIMED, *command).document)
    assert set(seconds_of(shown(UNSTATED, *command).document)) == {None}


def test_times_stand_beside_bytes_unless_columns_are_selected(shown):
    assert "relu forward 4.10 KiB 100.00% 51.22% 3 5.00 KiB 4 ms 40.0%" in words(shown(TIMED))
    assert "operator phase time of the step relu forward 4 ms" in words(shown(TIMED, "--select", "seconds"))
    assert "time" not in words(shown(TIMED, "--select", "count")).split("step 1:")[0]


def test_without_times_it_says_why_and_ordering_by_them_is_refused(shown):
    assert words(shown(PROFILE)).endswith("the profile was saved without times: save it again to have them")
    for option in ("--order-by", "--select"):
        finished = shown(PROFILE, option, "seconds")
        assert finished.code == 2
        assert f"{option} seconds: the profile was saved without times" in finished.err
