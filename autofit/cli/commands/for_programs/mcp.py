"""`autofit mcp`: serves the questions of autofit to assistants, by the Model Context Protocol."""

from __future__ import annotations

import click

from autofit.errors import UsageError

_NEEDS = ("mcp", "mcp_types", "anyio", "jsonschema")


@click.command()
@click.pass_context
def mcp(context: click.Context) -> None:
    """Serve autofit's questions to an assistant.

    Speaks the Model Context Protocol on standard input and output until the input ends. The tools are tune,
    estimate, check, cards, kv, profile and explain, with the options of these commands as arguments and the
    documents of --json as results. All is predicted: nothing is run for real, no file is written but
    autofit's own state, and a script is followed under the guards of the command line. Needs pip install
    'autofit-gpu[mcp]'.
    """
    _require_sdk()
    from autofit.cli.options.tools import tools
    from autofit.mcp.server import serve

    group = context.find_root().command
    assert isinstance(group, click.Group)
    serve(tools(group.commands))


def _require_sdk() -> None:
    """Raises `UsageError` where the SDK is missing, or is of another generation."""
    import importlib.util

    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"autofit mcp needs the Model Context Protocol's SDK, and {missing[0]} is not installed: "
            "pip install 'autofit-gpu[mcp]'"
        )
