"""`autofit observe`: one paragraph, its documents, and what is wrong with a call."""

from __future__ import annotations

import json

import pytest

from autofit.predict.estimate import Interval
from autofit.predict.intervals import observations
from autofit.predict.intervals.observations import PeakKind
from autofit.questions.real_runs.observe import ObservedPeak, RealPeak
from tests.autofit.predict.test_observations import SEEN
from tests.autofit.questions.real_runs.test_observe import row
from tests.autofit.questions.real_runs.test_observed_run import a_run

GIB = 1024**3
OBSERVE = ("observe", "--model", "davenet", "--batch-size", "8", "--kind", "reserved", "--peak", "1.5G")


@pytest.fixture
def observing():
    """A stand-in for the prediction, and what it was asked."""
    seen = []

    def answer(settings, workload, peak, _emit):
        seen.append((settings, workload, peak))
        interval = Interval(low_bytes=GIB // 5, likely_bytes=GIB // 4, high_bytes=GIB // 3)
        return ObservedPeak(observation=SEEN, predicted=interval, interval=interval, note="a note")

    answer.seen = seen
    return answer


def test_what_is_typed_is_observed_and_said_in_one_paragraph(autofit, observing):
    finished = autofit(*OBSERVE, "--gpu", "rtx-3090", "--precision", "bf16", observe=observing)
    assert finished.code == 0
    assert finished.out.count("\n") == 1
    assert finished.out.startswith("step at batch 8 on a-card: reserved peak of 260.00 MiB observed")
    ((settings, workload, peak),) = observing.seen
    assert (workload.target, peak) == (
        "davenet",
        RealPeak(kind=PeakKind.RESERVED, num_bytes=3 * GIB // 2, batch_size=8),
    )
    assert (settings.gpu.key, settings.knobs.precision) == ("rtx-3090", "bf16")
    document = autofit(*OBSERVE, "--json", observe=observing).document
    assert (document["schema"], document["id"]) == ("autofit.observation/1", SEEN.id)


def test_beside_a_peak_the_argument_is_the_model(autofit, observing):
    peak = ("--peak", "1.5G", "--kind", "reserved", "--batch-size", "8")
    assert autofit("observe", "davenet", *peak, observe=observing).code == 0
    assert [(workload.target, seen.batch_size) for _, workload, seen in observing.seen] == [("davenet", 8)]


def test_of_a_file_card_and_knobs_are_those_of_its_rows(autofit, observing, tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [row(), row(batch_size=64), row(workload="vgg16")]
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    document = autofit("observe", str(file), "--model", "resnet50", "--json", observe=observing).document
    assert (document["schema"], len(document["observations"])) == ("autofit.observations/1", 2)
    assert [(asked[0].gpu.key, asked[1].target, asked[2].batch_size) for asked in observing.seen] == [
        ("rtx-3090", "resnet50", 32),
        ("rtx-3090", "resnet50", 64),
    ]
    assert len(autofit("observe", str(file), observe=observing).out.splitlines()) == 3


def test_what_was_observed_is_listed_and_can_be_forgotten(autofit, workload, state_dir):
    assert autofit("observe", "--list").out == "nothing was observed yet\n"
    observations.keep(workload, SEEN)
    assert autofit("observe", "--list").out.startswith(f"{SEEN.id}  step at batch 8 on a-card")
    assert autofit("observe", "--list", "--json").document["observations"][0]["id"] == SEEN.id
    assert autofit("observe", "--forget", SEEN.id).out.startswith(f"forgotten: {SEEN.id}")
    finished = autofit("observe", "--forget", SEEN.id)
    assert (finished.code, finished.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--peak", "-5G", "--kind", "reserved"), "--peak: '-5G' is not a size"),
        (("--peak", "0", "--kind", "reserved"), "less than one byte"),
        (("--peak", "5G"), "--kind"),
        (("--kind", "reserved"), "--peak"),
        (("--peak", "5G", "--kind", "peak"), "--kind"),
        (("FILE", "--peak", "5G"), "leave out --peak"),
        (("FILE", "--precision", "bf16"), "leave --gpu and the knobs out"),
        (("FILE", "--model", "davenet"), "holds measurements of resnet50, none of davenet"),
    ],
)
def test_what_is_wrong_with_a_call_is_one_sentence(autofit, observing, tmp_path, arguments, says):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row()) + "\n")
    words = [str(file) if word == "FILE" else word for word in arguments]
    if "FILE" not in arguments:
        words += ["--model", "davenet", "--batch-size", "8"]
    finished = autofit("observe", *words, observe=observing)
    assert (finished.code, finished.out, finished.err.count("\n")) == (2, "", 1)
    assert says in finished.err
    assert observing.seen == []


def test_of_an_observed_run_options_say_what_its_file_leaves_open(autofit, observing, tmp_path):
    file = tmp_path / "run.json"
    file.write_text(a_run().to_json())
    said = ("--model", "davenet", "--batch-size", "8", "--precision", "bf16")
    assert autofit("observe", str(file), *said, observe=observing).code == 0
    file.write_text(a_run(workload="vgg16", batch_size=16, knobs={"precision": "tf32"}).to_json())
    assert autofit("observe", str(file), observe=observing).code == 0
    assert [
        (workload.target, settings.gpu.key, settings.knobs.precision, peak.batch_size, peak.num_bytes)
        for settings, workload, peak in observing.seen
    ] == [
        ("davenet", "rtx-3090", "bf16", 8, 3 * GIB),
        ("vgg16", "rtx-3090", "tf32", 16, 3 * GIB),
    ]


@pytest.mark.parametrize(
    ("changes", "arguments", "says"),
    [
        ({}, (), "does not say which workload it is of"),
        ({"workload": "davenet"}, (), "does not say the batch size"),
        ({"batch_size": 4}, ("--model", "davenet", "--batch-size", "8"), "FILE is of batch 4"),
        ({"batch_size": 4}, ("--model", "davenet", "--gpu", "t4"), "leave --gpu out"),
        ({"batch_size": 4}, ("--model", "davenet", "--peak", "2G"), "leave out --peak"),
        (
            {"batch_size": 4, "knobs": {"precision": "bf16"}},
            ("--model", "davenet", "--precision", "tf32"),
            "FILE says the knobs itself",
        ),
        ({"batch_size": 4, "num_steps": 0}, ("--model", "davenet"), "no optimizer step ended"),
    ],
)
def test_an_observed_run_that_cannot_be_compared_is_one_sentence(autofit, tmp_path, changes, arguments, says):
    file = tmp_path / "run.json"
    file.write_text(a_run(**changes).to_json())
    finished = autofit("observe", str(file), *arguments)
    assert (finished.code, finished.out, finished.err.count("\n")) == (2, "", 1)
    assert says in finished.err
