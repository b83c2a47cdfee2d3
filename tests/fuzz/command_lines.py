"""Hostile inputs through the command line, with stand-ins where a command would begin to predict."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from autofit.cli.app import main
from autofit.cli.backend import Backend
from autofit.cli.commands.profile_views import EXPORTS, VIEWS
from autofit.errors import WorkloadFailedError
from autofit.settings.options import OPTIONS
from tests.fuzz.parsers import PARSERS

_ASKING = ("tune", "estimate", "check", "cards", "profile")


def _reached(*_arguments: Any, **_options: Any) -> NoReturn:
    """Stands for everything behind the command line: whatever it is asked, the workload fails."""
    raise WorkloadFailedError("reached")


BACKEND = Backend(
    **{each.name: _reached for each in dataclasses.fields(Backend) if each.name != "local_gpus"}
)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """One call: its arguments, the variables of its environment, and the content of its file."""

    arguments: tuple[str, ...]
    variables: dict[str, str]
    file: tuple[str, bytes] | None = None


def make_command_line(random: Random, folder: Path) -> CommandLine:
    """A call by seed; its file, where it has one, is to lie in the folder."""
    parser = PARSERS[random.choice(list(PARSERS))]
    data = parser.make(random)
    path = folder / f"input{parser.suffix}"
    flags = random.sample(("--json", "--quiet"), random.randrange(2))
    match parser.name:
        case "profiles":
            arguments = ["profile", "--trace", str(path), "--view", random.choice(list(VIEWS)), *flags]
            if random.random() < 0.3:
                arguments += [f"--{random.choice(list(EXPORTS))}", str(folder / "out")]
            arguments += ["--all"] if random.random() < 0.3 else []
        case "snapshots":
            command = random.choice((["explain"], ["observe", "--snapshot"], ["profile", "--trace"]))
            arguments = [*command, str(path), *(each for each in flags if each != "--quiet")]
        case "toml":
            arguments = ["tune", "--config", str(path), *flags]
        case "locks" | "tables":
            command = random.choice((["diff", str(path)], ["check", "--lock", "--file"]))
            arguments = [*command, str(path), *flags]
        case "jobs" | "journals":
            name = random.choice(("job-0", "job-1", "fleet", "none"))
            command = random.choice((["jobs"], ["status", name], ["result", name]))
            arguments = [*command, "--storage", str(path), *flags[:1]]
            arguments = [each for each in arguments if each != "--quiet"]
        case "answers" | "outcomes" | "plans":
            arguments = ["observe", str(path), *flags]
        case _:
            return _of_options(random, data, flags)
    return CommandLine(tuple(arguments), {}, (str(path), data))


def _of_options(random: Random, data: bytes, flags: list[str]) -> CommandLine:
    given = json.loads(data)
    said = given.get("cli", given)
    arguments = [random.choice(_ASKING)]
    for name, each in said.items():
        option = next((one for one in OPTIONS.values() if one.argument == name), None)
        arguments.append(f"--{name.replace('_', '-')}")
        if option is None or not option.is_switch:
            arguments.append(_passed(each))
    arguments += random.choice(([], ["--batch-size", random.choice(("8", "0", "-1", "9" * 30, "x"))]))
    variables = {name: _passed(each) for name, each in given.get("env", {}).items()}
    return CommandLine((*arguments, *flags), variables)


def _passed(each: Any) -> str:
    """What the system lets through as an argument: no NUL, and undecodable bytes as Python has them."""
    text = each if isinstance(each, str) else json.dumps(each)
    return os.fsdecode(text.replace("\0", "").encode(errors="replace")[:100_000])


def call(line: CommandLine) -> tuple[int, str]:
    """Runs it in this process; its exit code and what it printed."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with _environment(line.variables), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(line.arguments), backend=BACKEND)
    printed = b"".join(stream.buffer.getvalue() for stream in (out, err))  # type: ignore[attr-defined]
    return code, printed.decode(errors="replace")


def call_process(line: CommandLine) -> tuple[int, str]:
    """The same in a process of its own."""
    finished = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.command_lines", *line.arguments],
        env={**os.environ, **line.variables},
        capture_output=True,
        timeout=120,
        check=False,
    )
    return finished.returncode, (finished.stdout + finished.stderr).decode(errors="replace")


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    sys.exit(main(backend=BACKEND))
