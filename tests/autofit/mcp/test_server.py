"""`autofit mcp` over stdin and stdout, driven by the SDK's own client."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("mcp")

import anyio
import jsonschema
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
TINY = f"{ROOT / 'tests' / 'autofit' / 'tiny_workloads.py'}:small"
Ask = Callable[[Client], Awaitable[Any]]
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity "
    "of 15.51 "
    "GiB of which 12.62 MiB is free. Including non-PyTorch memory, this process has 15.49 GiB memory in "
    "use. Of the "
    "allocated memory 15.20 GiB is allocated by PyTorch, and 5.27 MiB is reserved by PyTorch but unallocated."
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, in which the server runs; its state is beside it."""
    folder = tmp_path_factory.mktemp("user") / "project"
    folder.mkdir()
    (folder / "train.py").write_text((ROOT / "configs" / "examples" / "train.py").read_text())
    return folder


@pytest.fixture
def ask(folder: Path) -> Iterator[Callable[[Ask], Any]]:
    """Starts a server, and lets a function ask it; afterwards nothing of it may run or lie in the folder."""

    def run(question: Ask) -> Any:
        environment = {**os.environ, "AUTOFIT_STATE_DIR": str(folder.parent / "state")}
        parameters = StdioServerParameters(
            command=sys.executable, args=["-m", "autofit.cli", "mcp"], env=environment, cwd=folder
        )

        async def session() -> Any:
            async with Client(stdio_client(parameters)) as client:
                return await question(client)

        return anyio.run(session)

    before = set(folder.rglob("*"))
    yield run
    assert {path for path in folder.rglob("*") if "__pycache__" not in path.parts} == before
    assert not commands_that_run()


def commands_that_run() -> list[psutil.Process]:
    """Commands that a server of this test started and that still run."""
    return [
        each
        for each in psutil.process_iter(["cmdline", "environ"])
        if any("autofit.cli.called" in word for word in each.info["cmdline"] or ())
        and "test_server" in str(each.info["environ"])
    ]


def document(result: Any) -> dict[str, Any]:
    """Structured content of a result, which its text repeats."""
    content: dict[str, Any] = result.structured_content
    assert json.loads(result.content[0].text) == content
    return content


def test_every_tool_answers_with_its_documents_and_tells_progress(ask: Callable[[Ask], Any]) -> None:
    told: list[tuple[float, str | None]] = []

    async def progress(number: float, _total: float | None, message: str | None) -> None:
        told.append((number, message))

    asked: dict[str, dict[str, Any]] = {
        "tune": {"model": TINY, "gpu": "t4", "max_batch": 8},
        "estimate": {"model": TINY, "batch_size": 2, "gpu": "t4"},
        "check": {"model": TINY, "batch_size": 2, "gpu": "t4"},
        "cards": {"model": TINY, "batch_size": 2, "gpu": "t4,l4"},
        "kv": {"model": "hf:no-such-type", "gpu": "h100-80g"},
        "profile": {"model": TINY, "batch_size": 2, "top": 3},
        "explain": {"text": MESSAGE},
    }

    async def question(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == asked.keys()
        for name, arguments in asked.items():
            result = await client.call_tool(name, arguments, progress_callback=progress)
            found = document(result)
            if name == "kv":  # whatever is installed, there is no such model
                assert result.is_error
                assert found["schema"] == "autofit.error/1"
            else:
                assert not result.is_error, found
                jsonschema.Draft202012Validator(tools[name].output_schema).validate(found)
        script = {"script": "train.py", "batch_arg": "--batch-size", "batch_size": 8, "gpu": "t4"}
        assert document(await client.call_tool("estimate", script))["batch_size"] == 8

    ask(question)
    assert told
    assert any("tracing" in (message or "") for _, message in told)


def test_a_call_that_is_cancelled_ends_what_it_started(ask: Callable[[Ask], Any], folder: Path) -> None:
    (folder.parent / "slow.py").write_text(SLOW)
    slow = {"model": f"{folder.parent / 'slow.py'}:workload", "batch_size": 2, "gpu": "t4"}

    async def question(client: Client) -> float:
        with anyio.move_on_after(6) as scope:
            await client.call_tool("estimate", slow)
        assert scope.cancelled_caught
        started = time.monotonic()
        while any(is_of_slow(each) for each in psutil.process_iter(["cmdline"])):
            assert time.monotonic() - started < 30
            await anyio.sleep(0.2)
        assert not (await client.call_tool("explain", {"text": MESSAGE})).is_error
        return time.monotonic() - started

    ask(question)


SLOW = """
import time
import torch
from autofit_workers.workload import Workload

def build():
    time.sleep(600)
    return torch.nn.Linear(4, 4)

workload = Workload(
    build_model=build,
    make_batch=lambda batch_size, device: torch.ones(batch_size, 4, device=device),
    loss=lambda model, batch: model(batch).sum(),
    optimizer="sgd",
)
"""


def is_of_slow(process: psutil.Process) -> bool:
    return any("slow.py:workload" in word for word in process.info["cmdline"] or ())


def test_fifty_calls_side_by_side_are_answered(ask: Callable[[Ask], Any]) -> None:
    answers: dict[int, Any] = {}

    async def question(client: Client) -> None:
        async def one(number: int) -> None:
            if number % 5 == 0:
                text = MESSAGE.replace("20.00 MiB", f"{number + 1}.00 MiB")
                answers[number] = await client.call_tool("explain", {"text": text})
            else:
                answers[number] = await client.call_tool("check", {"batch_size": -number})

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(one, number)

    ask(question)
    assert len(answers) == 50
    for number, result in answers.items():
        found = document(result)
        if number % 5 == 0:
            assert found["error"]["requested_bytes"] == (number + 1) << 20
        else:
            assert (result.is_error, found["schema"], found["exit_code"]) == (True, "autofit.error/1", 2)


HOSTILE: tuple[tuple[str, Any], ...] = (
    ("check", {"model": 8, "batch_size": "eight"}),
    ("check", {"model": "gpt2", "batch_size": [1]}),
    ("check", {"model": "gpt2", "batch_size": 10**400, "gpu": "t4"}),
    ("check", {"model": "gpt2", "batch_size": 8, "gpu": "rtx-9999"}),
    ("check", {"model": "no-such-model", "batch_size": 8, "gpu": "t4"}),
    ("check", {"model": "gpt2", "batch_size": 8, "no_such_argument": 1}),
    ("check", {"model": "gpt2\0", "batch_size": 8}),
    ("check", {"model": "x" * 3_000_000, "batch_size": 8}),
    ("estimate", {"script": "/no/such/script.py"}),
    ("estimate", {"model": "gpt2", "batch_size": 8, "report": "/tmp/page.html"}),
    ("estimate", {"script": "train.py", "allow_network": True}),
    ("tune", {"model": "gpt2", "gpu_mem": "-1G"}),
    ("tune", {"model": "gpt2", "gpu_mem": "16G", "storage": "sqlite:///here.db"}),
    ("explain", {}),
    ("explain", {"file": "/no/such/file"}),
    ("explain", {"text": "no error at all"}),
    ("explain", {"text": "CUDA out of memory. Tried to allocate 9e999 GiB"}),
    ("kv", {}),
    ("profile", {"model": "gpt2", "batch_size": 8, "view": "no-such-view"}),
    ("no-such-tool", {}),
)


def test_hostile_arguments_are_errors_of_one_sentence(ask: Callable[[Ask], Any]) -> None:
    async def question(client: Client) -> list[Any]:
        return [await client.call_tool(name, arguments) for name, arguments in HOSTILE]

    for (name, _), result in zip(HOSTILE, ask(question), strict=True):
        found = document(result)
        assert result.is_error, name
        assert (found["schema"], found["exit_code"]) == ("autofit.error/1", 2), found
        assert found["message"].count("\n") == 0
