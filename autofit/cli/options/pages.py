"""Help of commands with many options: the common ones by default, all of them with `--help-all`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import click

from autofit.settings.options import Topic

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_HELP_ALL = "--help-all"


class TopicOption(click.Option):
    """Command-line option that the help lists under a heading.

    Args:
        topic: subject of the option, which decides the heading.
        is_common: whether the short help (`--help`) shows the option too, not only `--help-all`.
    """

    def __init__(self, *names: Any, topic: Topic, is_common: bool = False, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.topic, self.is_common = topic, is_common


class OptionStandingAlone(TopicOption):
    """Option whose value may be left out, which then is `true`; `--no-NAME` stands for `false`.

    The word after it is its value only if `is_value` says so: in `autofit tune --compile davenet` it is the
    model.

    Args:
        is_value: returns whether a text is a value of the option, rather than the command's next argument.
    """

    def __init__(self, *names: Any, is_value: Callable[[str], bool], **attributes: Any) -> None:
        super().__init__(*names, is_flag=False, flag_value="true", **attributes)
        self._is_value = is_value
        self.secondary_opts = [f"--no-{name.removeprefix('--')}" for name in self.opts]

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Names and help, in which only the option itself takes a value."""
        record = super().get_help_record(ctx)
        if record is None:
            return None
        names, text = record
        return f"{names.partition(' / ')[0]} / {', '.join(self.secondary_opts)}", text

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        entry = parser._long_opt[self.opts[0]]  # noqa: SLF001 - click has no other way to leave it a word
        store = entry.process

        def process(value: Any, state: Any) -> None:
            if isinstance(value, str) and not self._is_value(value):
                state.rargs.insert(0, value)
                value = self.flag_value
            store(value, state)

        entry.process = process
        parser.add_option(
            obj=self, opts=self.secondary_opts, dest=self.name, action="store_const", const="false"
        )


def option(
    topic: Topic,
    *names: str,
    is_common: bool = False,
    cls: type[TopicOption] = TopicOption,
    **attributes: Any,
) -> Decorator:
    """Decorator that adds a command-line option, listed under the heading of a topic in the help.

    Args:
        topic: subject of the option, which decides the heading.
        names: names of the option, such as `--peak`, as for `click.option`.
        is_common: whether the short help (`--help`) shows the option too.
        cls: class of the option.
        attributes: further arguments of the class.
    """
    return click.option(*names, cls=cls, topic=topic, is_common=is_common, **attributes)


class LongCommand(click.Command):
    """Command whose `--help` shows the common options, and whose `--help-all` shows all, by topic."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.params.append(
            click.Option(
                [_HELP_ALL],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_print_all,
                help="Show all options.",
            )
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the help of the options under the headings of their topics.

        Options without a topic, which are click's own, come last.
        """
        shows_all = _HELP_ALL in ctx.meta
        options = [
            each for each in self.get_params(ctx) if isinstance(each, click.Option) and not each.hidden
        ]
        placed = sorted(
            (each for each in options if isinstance(each, TopicOption)),
            key=lambda each: list(Topic).index(each.topic),
        )
        shown = [each for each in placed if shows_all or each.is_common]
        for heading, alike in itertools.groupby(
            shown, key=lambda each: _heading(each.topic, whole=shows_all)
        ):
            _write(ctx, formatter, heading, alike)
        own = [each for each in options if not isinstance(each, TopicOption)]
        _write(ctx, formatter, "Help", own)
        if not shows_all:
            formatter.write_paragraph()
            formatter.write_text(f"{len(placed) - len(shown)} more options: {ctx.command_path} {_HELP_ALL}")


def _heading(topic: Topic, *, whole: bool) -> str:
    return f"{topic.group}: {topic.part}" if whole and topic.part else topic.group


def _write(
    ctx: click.Context, formatter: click.HelpFormatter, heading: str, options: Iterable[click.Option]
) -> None:
    with formatter.section(heading):
        formatter.write_dl([record for each in options if (record := each.get_help_record(ctx)) is not None])


def _print_all(ctx: click.Context, _param: click.Parameter, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing:
        ctx.meta[_HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
