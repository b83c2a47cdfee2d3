"""Command-line options that commands share, and their shell completions.

Values stay the text that was typed. `resolve_settings` parses them, so that a wrong value has the same error
from the command line, the environment or a file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from autofit.cli.options.pages import Decorator, OptionStandingAlone, option
from autofit.errors import UsageError
from autofit.hardware.gpus import catalogue
from autofit.settings.options import OPTIONS, Option, Topic
from autofit.settings.values import ALL_CARDS, SEARCHABLE
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.knobs import KNOBS as ALL_KNOBS
from autofit_workers.spec.shown import has_secret
from autofit_workers.spec.workloads.builtins import BUILTINS

_Callback = Callable[[click.Context, click.Parameter, str | None], str | None]
_Texts = tuple[str, ...]
_URLS = ("storage", "address")
_Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def setting(
    name: str,
    *,
    help_text: str | None = None,
    metavar: str | None = None,
    complete: _Completer | None = None,
) -> Decorator:
    """Decorator that adds an option of `autofit tune`, as `OPTIONS` describes it, to a command.

    The command gets the value as text, None if it is not given. A switch gives True or False, and
    `--script-arg`, which may be repeated, a tuple.

    Args:
        name: name of the option without dashes, such as `gpu-mem`.
        help_text: help of the option; by default that in `OPTIONS`.
        metavar: placeholder of the value in the help; by default that in `OPTIONS`.
        complete: shell completer; by default that of the option, or its choices.
    """
    row = OPTIONS[name]
    attributes: dict[str, Any] = {"is_common": row.is_common, "help": help_text or row.help_text}
    if row.is_switch:
        return option(row.topic, f"--{name}/--no-{name}", default=None, **attributes)
    if row.may_stand_alone:
        attributes |= {"cls": OptionStandingAlone, "is_value": row.is_value}
    if name in _URLS:
        attributes["callback"] = without_secret(f"AUTOFIT_{name.upper()}")
    if name in _REPEATABLE:
        attributes |= {"multiple": True, "callback": _REPEATABLE[name]}
    complete = complete or _COMPLETERS.get(name) or (one_of(row.choices) if row.choices else None)
    return option(
        row.topic,
        f"--{name}",
        *(f"--{alias}" for alias in row.aliases),
        row.argument,
        metavar=metavar or row.metavar or "|".join(row.choices),
        shell_complete=complete,
        **attributes,
    )


def without_secret(variable: str | None) -> _Callback:
    """Click callback that refuses a URL with a password or token, if it was typed on the command line.

    Other users can read a command line in the list of processes.

    Args:
        variable: environment variable that the error suggests instead; None if it suggests access without a
            secret.
    """

    def refuse(ctx: click.Context, param: click.Parameter, url: str | None) -> str | None:
        """Returns the URL; raises `UsageError` if it was typed with a password or token."""
        is_typed = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
        if url is None or not is_typed or not has_secret(url):
            return url
        instead = (
            "give the cluster's nodes access to the URI instead"
            if variable is None
            else f"set {variable} in the environment instead, here and where jobs run"
        )
        raise UsageError(
            f"{param.opts[0]} contains a password or token, which every user of this machine could read in "
            f"the list of processes: {instead}"
        )

    return refuse


def settings(*names: str) -> Decorator:
    """Decorator that adds several options of `autofit tune`, as `OPTIONS` describes them, to a command.

    Args:
        names: names of the options without dashes, in the order of the help.
    """
    return combined(*(setting(name) for name in names))


def settings_of(
    *topics: Topic, but: Collection[str] = (), where: Callable[[Option], bool] = lambda _row: True
) -> Decorator:
    """Decorator that adds all options of some topics to a command, in the order of `OPTIONS`.

    Args:
        topics: subjects by which `OPTIONS` groups the options of `autofit tune`.
        but: names of options to leave out.
        where: function that returns whether to add an option.
    """
    rows = [row for row in OPTIONS.values() if row.topic in topics and row.name not in but]
    return settings(*(row.name for row in rows if where(row)))


def combined(*decorators: Decorator) -> Decorator:
    """Decorator that applies several option decorators, so that the help lists the options in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def format_and_file(formats: Mapping[str, str], incomplete: str) -> list[CompletionItem]:
    """Shell completions of a value FORMAT=FILE: formats, then files.

    Args:
        formats: a help text, which may be empty, for each name of a format.
        incomplete: what is typed of the value.
    """
    if "=" in incomplete:
        return [CompletionItem(incomplete.partition("=")[2], type="file")]
    return [
        CompletionItem(f"{name}=", help=text or None)
        for name, text in formats.items()
        if name.startswith(incomplete)
    ]


def one_of(values: Iterable[str]) -> _Completer:
    """Shell completer for an option whose value is one of `values`."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(value) for value in values if value.startswith(incomplete)]

    return complete


def complete_model(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completions of a model: built-in names, or if none begins with the typed text, files."""
    names = [
        CompletionItem(builtin.name, help=builtin.description)
        for builtin in BUILTINS.values()
        if builtin.name.startswith(incomplete)
    ]
    return names or [CompletionItem(incomplete, type="file")]


def _complete_file(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def gpu_completions(incomplete: str) -> list[CompletionItem]:
    """Shell completions with the GPU models in the catalogue whose keys begin with a text.

    Args:
        incomplete: text that was typed so far.
    """
    return [
        CompletionItem(gpu.key, help=gpu.name)
        for gpu in catalogue().values()
        if gpu.key.startswith(incomplete)
    ]


def _complete_gpu(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return gpu_completions(incomplete)


def _complete_conv_algo(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Shell completions of a list such as `cudnn,na`: names of convolution algorithms for its last entry.

    The name `all` is only offered for the first entry.
    """
    before, comma, last = incomplete.rpartition(",")
    known = [algorithm.name for algorithm in conv.offered()]
    names = known if comma else ["all", *known]
    return [CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(last)]


def complete_gpus(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completions of a list such as `t4,a1`: keys of GPU models for its last entry.

    The name `all` is only offered for the first entry.
    """
    before, comma, last = incomplete.rpartition(",")
    every = [] if comma or not ALL_CARDS.startswith(last) else [CompletionItem(ALL_CARDS)]
    named = gpu_completions(last)
    return every + [CompletionItem(f"{before}{comma}{card.value}", help=card.help) for card in named]


def model_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that adds an argument MODEL to a command, as another way to give `--model`.

    The decorated function gets the model as `model`, however it is given.

    Raises:
        UsageError: by the decorated function, if the argument and `--model` differ.
    """

    @functools.wraps(function)
    def with_model(*args: Any, named_model: str | None, model: str | None, **given: Any) -> Any:
        if named_model is not None and model not in (None, named_model):
            raise UsageError(f"two models are named, {named_model} and --model {model}: leave one out")
        return function(*args, model=named_model if model is None else model, **given)

    argument = click.argument("named_model", metavar="[MODEL]", required=False, shell_complete=complete_model)
    return argument(with_model)


def _complete_search(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completions of `--search KNOB=A,B`: names of knobs, then values of the named knob."""
    knob, equals, values = incomplete.partition("=")
    if not equals:
        return [CompletionItem(f"{name}=") for name in SEARCHABLE if name.startswith(knob)]
    before, comma, last = values.rpartition(",")
    field = knob.replace("-", "_")
    known = ALL_KNOBS[field].values if knob in SEARCHABLE and field in ALL_KNOBS else ()
    return [CompletionItem(f"{knob}={before}{comma}{name}") for name in known if name.startswith(last)]


def _joined(separator: str) -> Callable[[click.Context, click.Parameter, _Texts], str | None]:
    """Click callback that joins the values of a repeated option into one text; None if it was not given.

    Args:
        separator: text between two values.
    """
    return lambda _ctx, _param, texts: separator.join(texts) if texts else None


_COMPLETERS: dict[str, _Completer] = {
    "model": complete_model,
    "script": _complete_file,
    "gpu": _complete_gpu,
    "conv-algo": _complete_conv_algo,
    "search": _complete_search,
}
# Options that may be given several times, and the callbacks that join their values into one text.
_REPEATABLE = {"script-arg": None, "keep-env": _joined(","), "search": _joined(";")}

SAMPLE = settings_of(Topic.MODEL, but=("model",))
SEQ_LEN = setting("seq-len")
# Permissions and limits of a workload's code while it is predicted.
ISOLATION = settings_of(Topic.LIMITS)
MODEL_OPTION = settings_of(Topic.MODEL, Topic.LIMITS)
MODEL = combined(model_argument, MODEL_OPTION)
SCRIPT = settings_of(Topic.SCRIPT)
GPU = setting("gpu")
GPUS = setting(
    "gpu",
    help_text="The card, such as rtx-3090; several, or all, make one table with a row each. `autofit gpus` "
    "lists them.",
    metavar="CARD,…|all",
    complete=complete_gpus,
)
GPU_MEM = setting("gpu-mem")
# Options of the card other than its name and memory, for commands about one configuration.
KEPT_FREE = settings_of(Topic.CARD, but=("gpu", "gpu-mem"), where=lambda row: not row.of_search)
SAMPLES = settings_of(Topic.SEARCH, where=lambda row: not row.of_search)


def batch_size(*, required: bool = False, help_text: str = "Samples a step.") -> Decorator:
    """Decorator that adds `--batch-size` to a command on one configuration."""
    return option(
        Topic.MODEL,
        "--batch-size",
        type=click.IntRange(min=1),
        required=required,
        metavar="N",
        help=help_text,
        is_common=True,
    )


BATCH_SIZE = batch_size(required=True)
BATCH_SIZE_OR_OWN = batch_size(help_text="Samples a step.  [default: of a script its own]")

CONV_ALGO = setting(
    "conv-algo",
    help_text=f"{ALL_KNOBS['conv_algo'].help}  [default: cudnn]",
    metavar=ALL_KNOBS["conv_algo"].metavar,
)
# Options of a configuration other than its batch size and convolution algorithm, and of its traces.
KNOBS = combined(
    settings_of(Topic.SETTINGS, but=("conv-algo",), where=lambda row: not row.of_search),
    setting("fresh", help_text="Make all traces anew, instead of using kept ones."),
)

REPORT = option(
    Topic.OUTPUT,
    "--report",
    is_common=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write there a page, one HTML file, with the answer and figures of where the memory goes.",
)
JSON = option(
    Topic.OUTPUT,
    "--json",
    "as_json",
    is_flag=True,
    help="Print exactly one JSON document.",
    is_common=True,
)
WARM = option(
    Topic.OUTPUT,
    "--warm/--no-warm",
    default=None,
    expose_value=False,  # read before the command is: see `autofit.cli`
    help="Use a process that has PyTorch imported already, and leave one for five minutes.  "
    "[default: at a terminal]",
)
QUIET = option(Topic.OUTPUT, "--quiet", "-q", is_flag=True, help="Show no progress.")
