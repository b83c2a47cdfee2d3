"""`autofit diff`: which modules and lines made the memory grow, between locks, profiles or revisions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from autofit.cli.interruption import print_document
from autofit.cli.options.locks import CONFIGURATION, complete_name, given_options
from autofit.cli.options.pages import LongCommand, option
from autofit.cli.options.shared import JSON, QUIET, REPORT, WARM
from autofit.errors import UsageError
from autofit.settings.options import Topic

if TYPE_CHECKING:
    from autofit.cli.backend import Backend
    from autofit.errors import ExitCode
    from autofit.locks.configurations import Configuration
    from autofit.locks.diff import MemoryDiff
    from autofit.locks.locked import Predict


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completions of a side: configurations, and files."""
    return complete_name(ctx, param, incomplete) or [CompletionItem(incomplete, type="file")]


@click.command(cls=LongCommand)
@click.argument("sides", nargs=-1, metavar="[A B]", shell_complete=_complete)
@option(
    Topic.MODEL,
    "--rev",
    metavar="A..B",
    is_common=True,
    help="Compare two revisions of git instead, or revision A with the working tree: of the configurations "
    "named in the place of A B, of all in pyproject.toml, or of the one that --model and others describe. "
    "A...B begins where B left A.",
)
@CONFIGURATION
@option(
    Topic.OUTPUT,
    "--markdown",
    "as_markdown",
    is_flag=True,
    is_common=True,
    help="Print Markdown, for a comment on a pull request.",
)
@REPORT
@WARM
@QUIET
@JSON
@click.pass_obj
def diff(
    backend: Backend,
    /,
    *,
    sides: tuple[str, ...],
    rev: str | None,
    as_markdown: bool,
    report: Path | None,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> ExitCode | None:
    """Show which lines made the memory grow.

    A and B are each a lock that `autofit lock` wrote, a profile that `autofit profile --save` wrote, or a
    configuration of [tool.autofit.lock] in pyproject.toml. What changed at the peak is listed by module and
    line; code that was only moved or renamed is not. Revisions are checked out into temporary folders and
    predicted there: the working tree, the index and the stash stay as they are.
    """
    options = given_options(given)
    if as_json and as_markdown:
        raise UsageError("--json and --markdown exclude each other: leave one out")
    if report is not None:
        from autofit.paths import require_writable

        require_writable(report)
    from autofit.cli.text.progress import progress

    with progress(quiet=quiet) as emit:
        answer = _answer(sides, rev, options, lambda wanted: backend.lock(wanted, Path.cwd(), emit))
    if as_json:
        print_document(answer.to_json())
    else:
        _print(answer, as_markdown=as_markdown)
    if report is not None:
        from autofit.cli.commands.report_file import write_report
        from autofit.report.lock_pages import report_on_diff

        return write_report(report, lambda: report_on_diff(answer))
    return None


def _answer(sides: tuple[str, ...], rev: str | None, options: dict[str, Any], predict: Predict) -> MemoryDiff:
    """Diff of two sides, or of what options or names describe at two revisions."""
    from autofit.locks.diff import diff_revisions, diff_sides, side_named

    if rev is not None:
        return diff_revisions(rev, _wanted(sides, options), Path.cwd(), predict)
    if options:
        raise UsageError(
            f"--{next(iter(options)).replace('_', '-')} is of --rev: give it too, or lock the configuration "
            "with `autofit lock --name NAME …` and give its name"
        )
    if len(sides) != 2:
        raise UsageError(
            f"two sides are compared, and {len(sides)} given: name two locks, profiles or configurations, or "
            "give --rev A..B"
        )
    before, after = (side_named(text, Path.cwd(), predict) for text in sides)
    return diff_sides(before, after)


def _wanted(names: tuple[str, ...], options: dict[str, Any]) -> tuple[Configuration, ...]:
    """Configurations to predict at both revisions."""
    from autofit.locks.configurations import chosen, configuration, read_configured

    if not options:
        return chosen(read_configured(Path.cwd()).configurations, names)
    if names:
        raise UsageError(f"{names[0]} is configured: leave out --{next(iter(options)).replace('_', '-')}")
    return (configuration(str(options.get("model") or options.get("script") or "model"), options),)


def _print(answer: MemoryDiff, *, as_markdown: bool) -> None:
    from autofit.answers.locks.changes import diff_sections

    if as_markdown:
        from autofit.answers.markdown import markdown

        click.echo(markdown(diff_sections(answer)), nl=False)
    else:
        from autofit.cli.text.sections import print_sections

        print_sections(diff_sections(answer))
