"""Console entry point: the group of commands, and the reporting of every failure."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping, Sequence
from typing import Any, cast

import click

from autofit.cli.backend import Backend
from autofit.cli.commands import LISTED, Commands
from autofit.cli.interruption import current, print_document
from autofit.cli.streams import guarded
from autofit.errors import (
    AutofitError,
    ExitCode,
    OutputError,
    ReaderGoneError,
    UsageError,
    WorkloadFailedError,
)
from autofit_workers.installation import DISTRIBUTION


class _Listing(click.Group):
    """Command group that lists its commands without importing them, the most used first."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.commands = cast("MutableMapping[str, click.Command]", Commands())  # none is added or removed

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(LISTED)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a line for each command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, listed.summary) for name, listed in LISTED.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:  # before 8.2 click ends this with 0
            click.echo(ctx.get_help(), err=True)
            ctx.exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)


@click.group(cls=_Listing, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name=DISTRIBUTION, message="%(prog)s %(version)s")
def autofit() -> None:
    """The largest batch that fits your GPU, with the settings that make it fit, and the evidence.

    \b
    autofit tune --model davenet --gpu-mem 16G      no GPU is needed
    autofit estimate --model gpt2 --batch-size 8
    """  # noqa: D301 - click looks for the character, and keeps these lines as they are


def main(arguments: Sequence[str] | None = None, *, backend: Backend | None = None) -> int:
    """Runs an autofit command line and returns the exit code.

    Args:
        arguments: arguments without the program's name; those of the process if None.
        backend: functions that the commands call; the real ones if None.

    Returns:
        The exit code; one of `ExitCode` for answers and errors of autofit.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    with guarded():
        try:
            try:
                code = autofit.main(
                    arguments, prog_name="autofit", standalone_mode=False, obj=backend or Backend()
                )
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the process boundary
                code = _end(error, arguments)
            sys.stdout.flush()
        except (OutputError, ReaderGoneError) as error:  # in the last flush, or while reporting another error
            return _fail(error, arguments)
    return int(code or 0)


def _end(error: BaseException, arguments: Sequence[str]) -> int:
    """Prints the error that a command failed with, and returns its exit code.

    Args:
        error: error of autofit, of click, or an unexpected one, which is reported as an internal error.
        arguments: arguments of the command; with `--json` among them, the error is printed as JSON.

    Raises:
        OutputError, ReaderGoneError: the given error is one of these; nothing can be printed.
        SystemExit: the given error is this one, and standard output did not fail.
    """
    if isinstance(error, OutputError | ReaderGoneError):
        raise error
    if isinstance(error, SystemExit):
        if not isinstance(error.__context__, OSError):
            raise error
        error = error.__context__  # click takes a broken pipe inside a command for a closed stdout
    if isinstance(error, click.ClickException):
        error = _usage_error(error)
    elif isinstance(error, click.Abort):
        is_interrupt = isinstance(error.__cause__, KeyboardInterrupt)
        error = current().error() if is_interrupt else error.__cause__ or error
    if not isinstance(error, AutofitError):
        from autofit.cli.internal_error import internal_error

        error = internal_error(error, arguments)
    return _fail(error, arguments)


def _usage_error(error: click.ClickException) -> UsageError:
    """`UsageError` for a command line that click refuses: click's message, and how to show the help."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    message = error.format_message().rstrip(".")
    return UsageError(message if context is None else f"{message}; see `{context.command_path} --help`")


def _fail(error: AutofitError, arguments: Sequence[str]) -> int:
    if isinstance(error, ReaderGoneError):
        return error.exit_code
    if current().is_wanted and not isinstance(error, OutputError):
        return current().end(as_json="--json" in arguments)
    if isinstance(error, WorkloadFailedError) and error.traceback:
        click.echo(error.traceback.rstrip(), err=True)
    if "--json" in arguments and not isinstance(error, OutputError):
        print_document(error.to_json())
    else:
        click.echo(f"error: {error.message}", err=True)
    return error.exit_code
