"""Predicts configurations in a process whose working folder is another one, such as that of a revision.

    caller ── configurations as JSON on stdin ──▶ python -c … autofit.locks.apart ANSWER
           ◀── peaks with all holders, or an error, as JSON in the file ANSWER ──

The process ends with its caller, and so do those that it starts.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autofit.errors import (
    AutofitError,
    ExitCode,
    InfrastructureError,
    InternalError,
    UsageError,
    WorkloadFailedError,
)
from autofit.locks.configurations import Configuration
from autofit.locks.documents import plain
from autofit.locks.lock_file import LockedConfiguration
from autofit.paths import STATE_DIR_VARIABLE
from autofit_workers.process import descendants
from autofit_workers.spec.documents import DocumentError, parse_json, read_file
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.pythons import arguments_for

_BOOTSTRAP = "from autofit.locks.apart import main; main()"
_ERRORS: Mapping[int, type[AutofitError]] = {
    ExitCode.USAGE: UsageError,
    ExitCode.WORKLOAD_FAILED: WorkloadFailedError,
    ExitCode.INFRASTRUCTURE: InfrastructureError,
}


def predict_apart(
    wanted: Sequence[Configuration],
    folder: Path,
    *,
    state_dir: Path,
    variables: Mapping[str, str],
    checkout: Path,
    what: str,
) -> tuple[LockedConfiguration, ...]:
    """Predicted memory of configurations in another folder, with all holders.

    Args:
        wanted: the configurations; files that they name are looked for in that folder.
        folder: absolute folder in which they are predicted.
        state_dir: folder for what the process keeps.
        variables: environment of the process.
        checkout: folder of the user's own checkout, whose code must not be the one that is predicted.
        what: name of what is predicted, with which messages begin.

    Raises:
        AutofitError: one cannot be predicted.
    """
    asked = {
        "folder": str(folder),
        "checkout": str(checkout),
        "wanted": [dataclasses.asdict(each) for each in wanted],
    }
    with tempfile.TemporaryDirectory(prefix="autofit-answer-") as temporary:
        answer = Path(temporary) / "answer.json"
        _run([*arguments_for(_BOOTSTRAP), str(answer)], json.dumps(asked), folder, variables, state_dir)
        try:
            document = parse_json(read_file(answer))
        except (OSError, DocumentError) as error:
            raise InfrastructureError(
                f"{what}: the process that predicts it ended without an answer: run the command again"
            ) from error
    if "error" in document:
        raise _error(document["error"], what)
    return from_plain(tuple[LockedConfiguration, ...], document["found"])


def _run(
    arguments: Sequence[str], asked: str, folder: Path, variables: Mapping[str, str], state_dir: Path
) -> None:
    """Runs Python, and ends it if this process is interrupted; what it prints is not shown."""
    process = subprocess.Popen(  # noqa: S603 - the arguments are ours
        [sys.executable, *arguments],
        cwd=folder,
        env={**variables, STATE_DIR_VARIABLE: str(state_dir)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        process.communicate(asked)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _error(said: Mapping[str, Any], what: str) -> AutofitError:
    """Error that the process said, as this one raises it."""
    message = f"{what}: {said['message']}"
    if said["exit_code"] == ExitCode.WORKLOAD_FAILED:
        return WorkloadFailedError(message, kind=said["kind"], traceback=said.get("traceback", ""))
    return _ERRORS.get(said["exit_code"], InternalError)(message)


def main() -> None:
    """Predicts what stdin says, and writes the answer into the file that the last argument names."""
    descendants.die_with_parent()
    from autofit.locks.locking import predict_each

    asked = json.loads(sys.stdin.read())
    wanted = from_plain(tuple[Configuration, ...], asked["wanted"])
    try:
        found = predict_each(wanted, Path(asked["folder"]), checkout=Path(asked["checkout"]))
        answer: dict[str, Any] = {"found": plain(found)}
    except AutofitError as error:
        answer = {"error": {**json.loads(error.to_json()), "traceback": getattr(error, "traceback", "")}}
    except Exception as error:  # noqa: BLE001 - the process boundary
        said = InternalError(f"autofit itself failed ({type(error).__name__}: {error})")
        answer = {"error": json.loads(said.to_json())}
    Path(sys.argv[-1]).write_text(json.dumps(answer), encoding="utf-8")
