"""`autofit request`: what is printed, the document, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from autofit.answers.schemas.json_schema import file_stem, published
from autofit.cli.app import autofit as group
from autofit.errors import ExitCode
from autofit.hardware.gpus import catalogue
from autofit.locks.lock_file import Lock, LockedConfiguration, write_lock
from autofit.questions.check import Answer
from autofit.requests.formats import FORMATS
from tests.autofit.requests.answers import GIB, answer, fit, needing

ASK = ("request", "--model", "resnet50", "--batch-size", "64", "--for")
TINY = f"{Path(__file__).parents[2] / 'tiny_workloads.py'}:small"


@pytest.fixture
def asked():
    """A stand-in for the prediction, which remembers what it was asked."""
    seen = []

    def make(found):
        def predict(settings, workload, question, _emit):
            seen.append((settings, workload, question))
            return found

        return predict

    make.seen = seen
    return make


def test_the_request_and_what_it_rests_on_is_all_that_is_printed(autofit, asked):
    finished = autofit(*ASK, "dstack", cards=asked(needing(18)))
    assert (finished.code, finished.err) == (0, "")
    assert yaml.safe_load(finished.out)["resources"]["gpu"]["memory"] == "20GB.."
    first, second, *_ = finished.out.splitlines()
    assert first.startswith("# resnet50 at batch 64: up to 18.00 GiB reserved on ")
    assert second.startswith("# fits on ")
    assert [gpu.is_mig_slice for gpu in asked.seen[0][2].gpus].count(True) == 0  # dstack gives none


def test_the_document_has_the_request_and_is_as_its_schema_says(autofit, asked):
    import jsonschema

    finished = autofit(*ASK, "kai", "--gpu", "l4,a100-40g", "--json", cards=asked(needing(9, "l4")))
    document = json.loads(finished.out)
    assert (document["schema"], document["scheduler"], document["asks_by"]) == (
        "autofit.request/1",
        "kai",
        "memory",
    )
    assert yaml.safe_load(document["request"]) == document["values"]
    assert document["cards"][0]["least_total_bytes"] <= document["memory_bytes"]
    jsonschema.validate(document, published(file_stem("autofit.request/1")))
    assert [gpu.key for gpu in asked.seen[0][2].gpus] == ["l4", "a100-40g"]


def test_the_exit_code_says_why_there_is_none(autofit, asked):
    none = autofit(*ASK, "slurm", cards=asked(needing(300)))
    assert (none.code, none.out) == (ExitCode.NOTHING_FITS, "")
    assert none.err.startswith(
        "no request: batch 64 surely fits on none of the cards: the step needs up to 300"
    )
    unsure = answer([fit(catalogue()["t4"], 9 * GIB, verdict=Answer.UNSURE)])
    finished = autofit(*ASK, "slurm", "--json", cards=asked(unsure))
    assert finished.code == ExitCode.UNSURE
    document = json.loads(finished.out)
    assert (document["request"], document["verdict"]) == (None, "unsure")
    assert document["reason"]


def test_an_unknown_scheduler_is_one_sentence_with_a_suggestion(autofit, asked):
    finished = autofit(*ASK, "slrm", cards=asked(needing(9)))
    assert finished.code == ExitCode.USAGE
    assert finished.err.strip().endswith("Did you mean slurm?")
    assert not asked.seen


def test_prices_go_to_the_cards_that_are_asked(autofit, asked, tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text("t4 = 0.35\nl4 = 0.7\n")
    autofit(*ASK, "skypilot", "--gpu", "t4", "--prices", str(path), cards=asked(needing(9, "t4")))
    assert asked.seen[0][2].prices == {"t4": 0.35}
    missing = autofit(*ASK, "skypilot", "--prices", "aws", cards=asked(needing(9)))
    assert missing.code == ExitCode.USAGE
    assert "no price list comes with autofit" in missing.err


def test_several_numbers_of_gpus_are_asked_as_by_cards(autofit, asked):
    found = needing(30, "t4", "a100-80g", num_gpus=4)
    finished = autofit(*ASK, "slurm", "--gpus", "2,4", "--parallel", "fsdp", cards=asked(found))
    assert "#SBATCH --gres=gpu:nvidia_a100-sxm4-80gb:4" in finished.out
    assert [parallel.name for parallel in asked.seen[0][2].parallels] == ["fsdp:2", "fsdp:4"]
    script = ("request", "--script", "train.py", "--for", "slurm", "--gpus", "2")
    assert "a script decides that itself" in autofit(*script, cards=asked(found)).err


def test_a_batch_size_is_needed_without_a_script(autofit, asked):
    finished = autofit("request", "--model", "resnet50", "--for", "slurm", cards=asked(needing(9)))
    assert finished.code == ExitCode.USAGE
    assert "Give --batch-size N" in finished.err


def test_the_shell_completes_the_schedulers():
    command = group.commands["request"]
    (option,) = [each for each in command.params if each.name == "scheduler"]
    completions = option.shell_complete(command.make_context("request", [], resilient_parsing=True), "")
    assert [each.value for each in completions] == list(FORMATS)


def test_the_help_names_every_scheduler(autofit):
    text = " ".join(autofit("request", "--help").out.split())
    assert all(name in text for name in FORMATS)


@pytest.mark.process
def test_it_says_of_a_card_what_cards_and_check_say(autofit):
    told = ("--model", TINY, "--batch-size", "64", "--quiet")
    request = json.loads(autofit("request", *told, "--for", "kai", "--gpu", "l4", "--json").out)
    (card,) = json.loads(autofit("cards", *told, "--gpu", "l4", "--json").out)["cards"]
    assert request["cards"][0]["required_bytes"] == card["required_bytes"]
    assert request["cards"][0]["least_total_bytes"] == card["least_total_bytes"]
    at_least = str(card["least_total_bytes"])
    assert int(at_least) <= request["memory_bytes"] < int(at_least) + 1024**2
    check = ("check", *told, "--gpu-mem")
    assert autofit(*check, at_least).code in (ExitCode.FOUND, ExitCode.UNSURE)  # of an unnamed card


def test_a_locked_configuration_is_asked_for_by_its_name(autofit, asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ("--model", "resnet50", "--batch-size", "64", "--precision", "amp-bf16", "--gpu", "t4")
    ours, of_a_test = (
        LockedConfiguration(name="train", arguments=arguments),
        LockedConfiguration(name="t.py::t"),
    )
    write_lock(
        tmp_path / "memory.lock.toml", Lock(configurations={each.name: each for each in (ours, of_a_test)})
    )
    call = ("request", "--for", "kai", "--lock")
    assert autofit(*call, "train", "--optimizer", "sgd", cards=asked(needing(9))).code == 0
    settings, workload, question = asked.seen[0]
    assert (workload.name, question.batch_size) == ("resnet50", 64)
    assert (settings.knobs.precision, settings.knobs.optimizer) == ("amp-bf16", "sgd")
    assert len(question.gpus) > 10  # those that the scheduler may choose among, not the card of the lock
    for name, sentence in (("trian", "Did you mean train?"), ("t.py::t", "is locked by a test")):
        finished = autofit(*call, name, cards=asked(needing(9)))
        assert finished.code == 2
        assert sentence in finished.err
