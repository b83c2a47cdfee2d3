"""Commands as tools: which options are arguments, and the command lines that they become."""

from __future__ import annotations

from typing import Any

import click
import jsonschema
import pytest

from autofit.cli.app import autofit as group
from autofit.cli.options.tools import tools
from autofit.errors import UsageError
from autofit.mcp.tool import Tool

TOOLS = {tool.name: tool for tool in tools(group.commands)}
# Options that no tool has: they write files, run steps for real, lift guards, or only shape a text.
NOT_TAKEN = {
    *("--report", "--conv-plan", "--job", "--save", "--chrome-trace", "--snapshot", "--peak-snapshot"),
    *("--write", "--lock", "--file", "--sarif", "--tolerance"),
    *("--storage", "--study", "--address", "--dispatch", "--metrics-port", "--metrics-host", "--resources"),
    *("--probe", "--device", "--threads", "--deadline", "--node-wait", "--storage-wait", "--fresh"),
    *("--allow-network", "--allow-subprocesses", "--keep-env", "--keep-trackers", "--config"),
    *("--json", "--quiet", "--warm", "--help-all"),
}


def options(command: str) -> set[str]:
    parameters = group.commands[command].params
    return {max(each.opts, key=len) for each in parameters if isinstance(each, click.Option)}


def test_the_tools_are_the_questions() -> None:
    assert list(TOOLS) == ["tune", "estimate", "check", "cards", "kv", "profile", "explain"]


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_every_option_is_an_argument_but_those_that_do_more_than_answer(tool: Tool) -> None:
    taken = {each.option for each in tool.arguments.values() if each.option}
    left_out = options(tool.command[0]) - taken
    assert left_out <= NOT_TAKEN
    assert taken & NOT_TAKEN == ({"--device"} if tool.name == "profile" else set())
    for name in taken & {"--model", "--gpu", "--batch-size", "--precision", "--script"}:
        assert name.removeprefix("--").replace("-", "_") in tool.arguments


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_schemas_are_schemas(tool: Tool) -> None:
    for schema in (tool.input_schema, tool.output_schema):
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
    assert "Exit codes" not in tool.description


def test_an_error_document_is_none_of_a_tools_results() -> None:
    error = {"schema": "autofit.error/1", "kind": "usage", "message": "", "exit_code": 2}
    assert not jsonschema.Draft202012Validator(TOOLS["tune"].output_schema).is_valid(error)


@pytest.mark.parametrize(
    ("tool", "given", "words"),
    [
        ("check", {"model": "gpt2", "batch_size": 8}, ["--model=gpt2", "--batch-size=8"]),
        ("check", {"model": "--report=/etc/x"}, ["--model=--report=/etc/x"]),
        (
            "estimate",
            {"what_if": True, "script_arg": ["--lr", "1"]},
            ["--what-if", "--script-arg=--lr", "--script-arg=1"],
        ),
        ("estimate", {"what_if": False}, []),
        ("tune", {"gpu_mem": "16G", "gpu": None}, ["--gpu-mem=16G"]),
    ],
)
def test_arguments_become_a_command_line(tool: str, given: dict[str, Any], words: list[str]) -> None:
    found = TOOLS[tool]
    assert found.command_line(given) == ([*found.command, "--json", "--quiet", *words], "")


def test_nothing_is_run_for_real() -> None:
    assert TOOLS["tune"].command == ("tune", "--probe=predict")


def test_a_file_or_its_text_is_explained() -> None:
    explain = TOOLS["explain"]
    assert explain.command_line({"text": "CUDA out of memory"})[1] == "CUDA out of memory"
    assert explain.command_line({"file": "--help"})[0][-2:] == ["--", "--help"]
    for given in ({}, {"file": "a", "text": "b"}, {"file": "-"}, {"file": "a\0b"}):
        with pytest.raises(UsageError):
            explain.command_line(given)


def test_numbers_are_of_a_size_that_documents_can_have() -> None:
    for tool in TOOLS.values():
        for argument in tool.arguments.values():
            if argument.schema.get("type") == "integer":
                assert argument.schema["maximum"] <= 2**53
