"""`autofit schema`, and the documents of commands against the schemas that it prints."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import jsonschema
import pytest
from click.shell_completion import ShellComplete

from autofit.answers.schemas.documents import DOCUMENTS
from autofit.answers.schemas.json_schema import file_stem
from autofit.cli.app import autofit as group
from autofit.hardware.gpus import LocalGpu
from autofit.questions.doctor import Check
from autofit.questions.kv import kv_cache
from tests.autofit.serving.models import LLAMA_3_8B_PARTS
from tests.commands import Finished

ROOT = Path(__file__).parents[4]
Autofit = Callable[..., Finished]
CARD = LocalGpu(
    name="Tesla T4",
    uuid="GPU-1",
    architecture="sm_75",
    total_bytes=15 << 30,
    used_bytes=0,
    driver_version="580.1",
)


def short(schema: str) -> str:
    return schema.removeprefix("autofit.").partition("/")[0]


def holds(autofit: Autofit, document: dict[str, Any]) -> None:
    """Validates a document against the schema that `autofit schema` prints, with no key besides."""
    schema = autofit("schema", document["schema"]).document
    jsonschema.Draft202012Validator(schema).validate(document)
    assert document.keys() <= schema["properties"].keys()


def test_the_names_are_listed(autofit: Autofit) -> None:
    listed = dict(line.split() for line in autofit("schema").out.splitlines())
    assert listed == {short(schema): schema for schema in DOCUMENTS}


def test_every_schema_that_the_code_names_is_a_document_or_no_answer() -> None:
    stored = {
        "ground-truth",
        "job",
        "links",
        "lock",
        "plans",
        "profile",
        "residuals",
        "serving",
        "time-residuals",
        "trace",
    }
    named = {
        name
        for package in (ROOT / "autofit", ROOT / "workers")
        for path in package.rglob("*.py")
        for name in re.findall(r'SCHEMA = "(autofit\.[a-z-]+/\d)"', path.read_text(encoding="utf-8"))
    }
    assert {name for name in named if short(name) not in stored} <= DOCUMENTS.keys()


@pytest.mark.parametrize("schema", DOCUMENTS)
def test_a_schema_is_the_published_file_and_needs_no_other(autofit: Autofit, schema: str) -> None:
    printed = autofit("schema", short(schema)).document
    file = ROOT / "docs" / "pages" / "schemas" / f"{file_stem(schema)}.json"
    assert printed == json.loads(file.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed["title"] == schema
    for name in re.findall(r'"\$ref": "([^#"]+)"', json.dumps(printed)):
        assert printed["$defs"][name.removesuffix(".json")]["$id"] == name


@pytest.mark.parametrize("name", ["tune", "autofit.tune/1", "tune/1", "autofit.tune-1"])
def test_a_document_has_several_spellings(autofit: Autofit, name: str) -> None:
    assert autofit("schema", name).document["title"] == "autofit.tune/1"


@pytest.mark.parametrize("name", ["tunes", "autofit.tune/2", "", "../../etc/passwd", "x" * 10_000])
def test_an_unknown_name_is_refused_in_one_sentence(autofit: Autofit, name: str) -> None:
    done = autofit("schema", name)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "`autofit schema` lists them" in done.err


def test_names_are_completed() -> None:
    complete = ShellComplete(group, {}, "autofit", "_AUTOFIT_COMPLETE")
    assert {item.value for item in complete.get_completions(["schema"], "tu")} == {"tune", "tune-cards"}


def test_searches_and_estimates_are_as_their_schemas_say(autofit: Autofit, results: SimpleNamespace) -> None:
    recommending = results.recommending_cudnn(results.answer())
    for result in (results.answer(), results.nothing_fits(), recommending):
        document = autofit(
            "tune", "--model", "davenet", "--gpu-mem", "16G", "--json", tune=lambda *_, of=result: of
        ).document
        holds(autofit, document)
    estimate = ("estimate", "--model", "davenet", "--batch-size", "94", "--json")
    holds(autofit, autofit(*estimate, estimate=lambda *_: results.estimate(94)).document)


def test_lists_and_errors_are_as_their_schemas_say(autofit: Autofit) -> None:
    checks = (Check(name="torch", status="failed", detail="missing", next_step="install it"),)
    for words, doors in (
        (("models",), {}),
        (("gpus",), {"local_gpus": lambda: (CARD,)}),
        (("conv-algos",), {}),
        (("doctor",), {"examine": lambda: checks}),
        (("observe", "--list"), {}),
        (("estimate", "davenet"), {}),
        (("check", "no-such-model", "--batch-size", "8", "--gpu", "t4"), {}),
    ):
        holds(autofit, autofit(*words, "--json", **doors).document)


def test_the_cache_of_a_server_is_as_its_schema_says(autofit: Autofit) -> None:
    for gpu in ("h100-80g", "rtx-4090", "t4"):
        done = autofit(
            *("kv", "hf:llama", "--gpu", gpu, "--json"),
            kv=lambda workload, question, _: kv_cache(workload, question, parts=lambda _: LLAMA_3_8B_PARTS),
        )
        holds(autofit, done.document)


def test_every_command_with_json_is_of_those_with_a_schema() -> None:
    """Commands with `--json`; a new one has to be added here once its document has a schema."""
    context = click.Context(group)
    with_json = {
        name
        for name in group.list_commands(context)
        if any("--json" in option.opts for option in group.commands[name].params)
    }
    answers = {"tune", "estimate", "profile", "check", "cards", "observe", "explain", "explain-oom"}
    answers |= {"compare", "kv", "lock", "diff", "request"}
    jobs = {"submit", "jobs", "status", "wait", "result", "stop"}
    assert with_json - jobs == answers | {"models", "gpus", "conv-algos", "doctor"}


def test_the_document_of_a_class_has_all_its_fields() -> None:
    for document in DOCUMENTS.values():
        assert document.main is None or dataclasses.is_dataclass(document.main)
        assert document.main is not None or document.more
