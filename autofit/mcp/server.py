"""Server of the Model Context Protocol on stdin and stdout, by the official SDK."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import anyio
import jsonschema
import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

from autofit.errors import UsageError
from autofit.identity import versions
from autofit.mcp.calls import Called, call, refused
from autofit.mcp.tool import Tool

_INSTRUCTIONS = (
    "autofit predicts the GPU memory and time of PyTorch training steps without a GPU, and how sure that is. "
    "Ask `check` whether a configuration fits, `tune` for the largest batch, `estimate` for what it needs, "
    "`cards` where it fits, `explain` about an out-of-memory error's text. Name a model (timm:resnet50, "
    "hf:gpt2, file.py:attribute) or a script. Sizes in answers are bytes."
)


def serve(tools: Sequence[Tool]) -> None:
    """Serves tools until standard input ends; standard output carries the protocol alone."""
    with _own_streams() as (stdin, stdout):
        anyio.run(_serve, {tool.name: tool for tool in tools}, stdin, stdout)


@contextlib.contextmanager
def _own_streams() -> Iterator[tuple[TextIO, TextIO]]:
    """Context manager with streams on stdin and stdout, whose descriptors lead elsewhere meanwhile.

    What libraries print goes to standard error.
    """
    wire_in, wire_out, null = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    with (
        os.fdopen(wire_in, encoding="utf-8", errors="replace") as stdin,
        os.fdopen(wire_out, "w", encoding="utf-8") as stdout,
    ):
        yield stdin, stdout


async def _serve(tools: dict[str, Tool], stdin: TextIO, stdout: TextIO) -> None:
    listed = [
        types.Tool(
            name=tool.name,
            description=tool.description,
            input_schema=tool.input_schema,
            output_schema=tool.output_schema,
            annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
        )
        for tool in tools.values()
    ]
    at_once = anyio.CapacityLimiter(max(1, os.cpu_count() or 1))

    async def on_list(_context: ServerRequestContext[Any], _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def on_call(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        numbers = itertools.count(1)

        async def tell(message: str) -> None:
            await context.session.report_progress(float(next(numbers)), message=message)

        try:
            words, text = _command_line(tools, params.name, params.arguments or {})
        except UsageError as error:
            return _result(refused(error))
        async with at_once:
            return _result(await call(words, text, tell))

    server: Server[Any] = Server(
        "autofit",
        version=versions()["autofit"],
        instructions=_INSTRUCTIONS,
        on_list_tools=on_list,
        on_call_tool=on_call,
    )
    async with stdio_server(anyio.wrap_file(stdin), anyio.wrap_file(stdout)) as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def _command_line(tools: dict[str, Tool], name: str, given: dict[str, Any]) -> tuple[list[str], str]:
    """Words and standard input of the command that a call asks for.

    Raises:
        UsageError: there is no such tool, or its arguments are not as its schema says.
    """
    if name not in tools:
        raise UsageError(f"there is no tool {name[:80]!r}: the tools are {', '.join(tools)}")
    tool = tools[name]
    errors = jsonschema.Draft202012Validator(tool.input_schema).iter_errors(given)
    if (first := next(iter(errors), None)) is not None:
        where = ".".join(map(str, first.absolute_path)) or "arguments"
        raise UsageError(f"{name}: {where}: {first.message[:300]}")
    return tool.command_line(given)


def _result(called: Called) -> types.CallToolResult:
    text = json.dumps(called.document, ensure_ascii=False, separators=(",", ":"))
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=called.document,
        is_error=called.is_error,
    )
