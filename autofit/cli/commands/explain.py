"""`autofit explain`: why a real run took the memory that it took, from its memory snapshot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autofit.cli.interruption import print_document
from autofit.cli.options.shared import JSON
from autofit.errors import UsageError
from autofit_workers.process.garbage import without_collections

if TYPE_CHECKING:
    from autofit.explain.snapshots.run import Run

_STDIN = "-"
_OOM = b"out of memory"


@click.command()
@click.argument("file", metavar="FILE|-", type=click.Path(path_type=Path, allow_dash=True))
@JSON
@without_collections()
def explain(*, file: Path, as_json: bool) -> None:
    """Say why a run took the memory that it took.

    FILE is the run's memory snapshot, as torch.cuda.memory._dump_snapshot wrote it, or CSV of one; - reads
    it from standard input. Says what was alive at the peak, what leaked, and what would have saved most. No
    name in the file is ever looked up, so that a stranger's can be read.
    """
    from autofit.answers.snapshot import explanation_sections
    from autofit.questions.snapshot import observed_snapshot

    answer = observed_snapshot(_opened(file))
    if as_json:
        print_document(answer.to_json())
    else:
        from autofit.cli.text.sections import print_sections

        print_sections(explanation_sections(answer))


def _opened(path: Path) -> Run:
    """Run whose snapshot is in a file, or on standard input for `-`.

    Raises:
        SnapshotError: the content is no snapshot.
        UsageError: it is the text of an out-of-memory error.
    """
    from autofit.explain.snapshots.run import in_content, read_content, run_of

    is_stdin = str(path) == _STDIN
    content = in_content("standard input", sys.stdin.buffer) if is_stdin else read_content(path)
    if not content.is_snapshot and _OOM in content.data.lower():
        raise UsageError(
            f"{content.path or content.name} is the text of an out-of-memory error, which this version does "
            "not explain: give the run's memory snapshot (torch.cuda.memory._dump_snapshot)"
        )
    return run_of(content)
