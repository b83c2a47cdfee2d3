"""`autofit explain` and `explain-oom`: why a run took what it took, from its snapshot or its error's text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.interruption import print_document
from autofit.cli.options.pages import LongCommand
from autofit.cli.options.shared import (
    BATCH_SIZE_OR_OWN,
    CONV_ALGO,
    GPU,
    JSON,
    KNOBS,
    MODEL_OPTION,
    QUIET,
    SCRIPT,
    combined,
)
from autofit.errors import UsageError
from autofit.settings.resolve import names_workload, resolve_workload_beside
from autofit.settings.workloads import refer
from autofit_workers.process.garbage import without_collections

if TYPE_CHECKING:
    from autofit.cli.backend import Backend
    from autofit_workers.replay.snapshots.files import SnapshotFile

_STDIN = "-"
_FILE = click.argument("file", metavar="FILE|-", type=click.Path(path_type=Path, allow_dash=True))
_WORKLOAD: Callable[..., Any] = combined(MODEL_OPTION, SCRIPT, BATCH_SIZE_OR_OWN, CONV_ALGO, KNOBS, GPU)


@click.command(cls=LongCommand)
@_FILE
@_WORKLOAD
@QUIET
@JSON
@click.pass_obj
@without_collections()
def explain(
    backend: Backend,
    /,
    *,
    file: Path,
    batch_size: int | None,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Say why a run took the memory that it took.

    FILE is the run's memory snapshot, as torch.cuda.memory._dump_snapshot wrote it, or CSV of one; - reads
    it from standard input. Says what was alive at the peak, what leaked, and what would have saved most. No
    name in the file is ever looked up, so that a stranger's can be read. The text of an out-of-memory error
    is explained as by explain-oom.
    """
    from autofit.explain.snapshots.run import run_of

    content = _content(file)
    if not content.is_snapshot and _is_of_failure(content):
        _explain_failure(backend, content, batch_size, given, quiet=quiet, as_json=as_json)
        return
    run = run_of(content)
    if names_workload(given) or batch_size is not None:
        raise UsageError(
            "a snapshot is compared with a model or script by `autofit observe --snapshot FILE`: use that, "
            "or leave the workload out"
        )
    from autofit.answers.snapshot import explanation_sections
    from autofit.questions.real_runs.snapshot import observed_snapshot

    answer = observed_snapshot(run)
    if as_json:
        print_document(answer.to_json())
    else:
        from autofit.cli.text.sections import print_sections

        print_sections(explanation_sections(answer))


@click.command("explain-oom", cls=LongCommand)
@_FILE
@_WORKLOAD
@QUIET
@JSON
@click.pass_obj
def explain_oom(
    backend: Backend,
    /,
    *,
    file: Path,
    batch_size: int | None,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Explain an out-of-memory error.

    FILE has the error's text, alone or in the log of a run, of one rank or several; - reads it from standard
    input. Says what was asked for, who held the card's memory, whether it was fragmented, and what to do.
    With --model or --script and the batch size of that run, up to three changes are predicted with which it
    would have fitted. Errors of PyTorch 1.12 and later are read, and those of NCCL, cuBLAS and cuDNN.
    """
    content = _content(file)
    if content.is_snapshot:
        raise UsageError(
            f"{content.path or content.name} is a memory snapshot, not the text of an error: `autofit "
            "explain` reads it"
        )
    _explain_failure(backend, content, batch_size, given, quiet=quiet, as_json=as_json)


def _content(path: Path) -> SnapshotFile:
    """Content of a file, or of standard input for `-`, unpacked.

    Raises:
        SnapshotError: it cannot be read, or is larger than what is read.
    """
    from autofit.explain.snapshots.run import in_content, read_content

    is_stdin = str(path) == _STDIN
    return in_content("standard input", sys.stdin.buffer) if is_stdin else read_content(path)


def _is_of_failure(content: SnapshotFile) -> bool:
    from autofit.explain.out_of_memory.reader import names_failure

    return names_failure(content.data)


def _explain_failure(
    backend: Backend,
    content: SnapshotFile,
    batch_size: int | None,
    given: dict[str, Any],
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Prints what an error's text says, and the changes that would have avoided it if a workload is named."""
    from autofit.questions.failures.explained import explain_failure

    settings = resolve_workload_beside(given, batch_size, "an explained error")
    answer = explain_failure(str(content.path or content.name), content.data)
    if settings is not None:
        from autofit.cli.text.progress import progress

        with progress(quiet=quiet) as emit:
            workload = refer(settings.model, settings)
            answer = backend.avoid_failure(settings, workload, answer, batch_size, emit)
    if as_json:
        print_document(answer.to_json())
    else:
        from autofit.answers.out_of_memory import explained_error_sections
        from autofit.cli.text.sections import print_sections

        print_sections(explained_error_sections(answer))
