"""`autofit profile`: memory and time of one configuration by operator, module, line or tensor."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofit import paths
from autofit.cli.commands.profile_views import EXPORTS, VIEWS
from autofit.cli.interruption import print_document
from autofit.cli.options.pages import LongCommand, option
from autofit.cli.options.shared import (
    CONV_ALGO,
    GPU,
    JSON,
    KNOBS,
    MODEL,
    QUIET,
    SCRIPT,
    WARM,
    batch_size,
    combined,
    one_of,
)
from autofit.errors import UsageError
from autofit.explain.views.filters import CATEGORIES, ORDERS, SECONDS, SELECTABLE, parse_filters
from autofit.settings.options import Topic
from autofit.settings.resolve import resolve_one_configuration
from autofit.settings.workloads import refer
from autofit_workers.process.garbage import without_collections

if TYPE_CHECKING:
    from autofit.cli.backend import Backend
    from autofit.explain.profile import Profile
    from autofit.explain.views.filters import Filters

_NUM_ROWS = 40  # default number of rows in a text
_FILE = click.Path(path_type=Path)

_VIEW = combined(
    batch_size(),
    option(
        Topic.MODEL,
        "--trace",
        type=_FILE,
        metavar="FILE",
        is_common=True,
        help="A saved profile, or a real run's memory snapshot (a pickle, or CSV), instead of --model; needs "
        "no torch.",
    ),
    option(
        Topic.VIEW,
        "--view",
        type=click.Choice(tuple(VIEWS)),
        default="ops",
        show_default=True,
        is_common=True,
        help="; ".join(f"{name}: {kind.help}" for name, kind in VIEWS.items()) + ".",
    ),
)

_REGEX: dict[str, Any] = {"multiple": True, "metavar": "REGEX"}
_FILTERS = combined(
    option(
        Topic.VIEW, "--select", metavar="A,B,…", help=f"Columns: {', '.join(SELECTABLE)}.  [default: all]"
    ),
    option(
        Topic.VIEW,
        "--order-by",
        metavar="|".join(ORDERS),
        shell_complete=one_of(ORDERS),
        help=f"Largest first; {SECONDS} are of the predicted step, a timeline along them.  [default: bytes]",
    ),
    option(
        Topic.VIEW,
        "--min-bytes",
        metavar="SIZE",
        help="Hide what asks for less; in a tree with all below it.",
    ),
    option(Topic.VIEW, "--max-depth", type=click.IntRange(min=0), metavar="N", help="Depth of a tree."),
    option(
        Topic.VIEW,
        "--start-name-regex",
        **_REGEX,
        help="Start a tree at nodes of matching names. Repeatable.",
    ),
    option(Topic.VIEW, "--show-name-regex", **_REGEX, help="Show only matching names. Repeatable."),
    option(
        Topic.VIEW,
        "--hide-name-regex",
        **_REGEX,
        help="Hide matching names, but show what is below them. Repeatable.",
    ),
    option(
        Topic.VIEW,
        "--category",
        metavar="A,B,…",
        help=f"Only these: {', '.join(CATEGORIES)}.  [default: all]",
    ),
    option(
        Topic.VIEW,
        "--step",
        type=click.IntRange(min=0),
        metavar="N",
        help="One of the traced steps; 0 is building the model.  [default: the one that reaches the peak]",
    ),
    option(Topic.VIEW, "--device", metavar="REGEX", help="Only devices with matching names."),
    option(
        Topic.VIEW, "--libraries", is_flag=True, help="In the tree of code, show PyTorch's own lines too."
    ),
    option(
        Topic.VIEW,
        "--top",
        type=click.IntRange(min=1),
        metavar="N",
        help="Number of rows; in a tree, the nodes with the most of their own.  "
        f"[default: {_NUM_ROWS}, --json: all]",
    ),
    option(Topic.VIEW, "--all", "show_all", is_flag=True, help="Show all rows."),
)

_OUTPUTS = combined(
    *(
        option(
            Topic.OUTPUT,
            f"--{name}",
            name.replace("-", "_"),
            type=_FILE,
            metavar="FILE",
            help=f"Write {export.help}.",
        )
        for name, export in EXPORTS.items()
    )
)


@click.command(cls=LongCommand)
@MODEL
@SCRIPT
@_VIEW
@_FILTERS
@_OUTPUTS
@CONV_ALGO
@KNOBS
@GPU
@WARM
@QUIET
@JSON
@click.pass_obj
@without_collections()
def profile(
    backend: Backend,
    /,
    *,
    batch_size: int | None,
    trace: Path | None,
    view: str,
    top: int | None,
    show_all: bool,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Show where the memory and the time of one configuration go.

    No GPU is needed. Times are predicted for a named card, in seconds where real runs are behind them and
    else as shares of the step. Bytes are what the allocations of one step asked for, and what earlier ones
    that are alive at its peak asked for, such as parameters. Bytes at the peak belong to the blocks that are
    alive when the step first reaches it: over all rows they add up to what is allocated then.
    """
    outputs = {name: path for name in EXPORTS if (path := given.pop(name.replace("-", "_"))) is not None}
    if show_all and top is not None:
        raise UsageError(f"--all and --top {top} contradict each other: leave one out")
    filters, given = _filters(given, top)
    for name, path in outputs.items():
        EXPORTS[name].require(path)
    if trace is None:
        found = _predicted(backend, batch_size, given, quiet=quiet)
    else:
        _require_nothing_beside_trace(batch_size=batch_size, **given)
        from autofit.explain.snapshots.as_profile import open_profile

        found = open_profile(trace)
    if top is None and not show_all and not as_json:
        filters = dataclasses.replace(filters, top=_NUM_ROWS)
    kind = VIEWS[view]
    made = kind.make(found, filters)
    for name, path in outputs.items():
        _write(path, EXPORTS[name].make(found, filters, path), quiet=quiet)
    if as_json:
        print_document(made.to_json())
    else:
        kind.show(made, filters)


def _filters(given: dict[str, Any], top: int | None) -> tuple[Filters, dict[str, Any]]:
    """Tuple of a profile's filters, made from options such as `--order-by`, and the options left over.

    Args:
        given: values of all options, by parameter name.
        top: number of rows to show; None for all.
    """
    names = (
        "select",
        "order_by",
        "min_bytes",
        "max_depth",
        "start_name_regex",
        "show_name_regex",
        "hide_name_regex",
        "category",
        "step",
        "device",
        "libraries",
    )
    rest = {name: value for name, value in given.items() if name not in names}
    return parse_filters(top=top, **{name: given[name] for name in names}), rest


def _predicted(
    backend: Backend, batch_size: int | None, given: dict[str, str | None], *, quiet: bool
) -> Profile:
    """Profile of the configuration that the command's options name."""
    if (given["model"] or given["script"]) is None or batch_size is None:
        raise UsageError(
            "name what to profile: --model M or --script FILE with --batch-size N, or --trace FILE"
        )
    settings = resolve_one_configuration(given, "a profile")
    workload = refer(settings.model, settings)
    from autofit.cli.text.progress import progress

    with progress(quiet=quiet) as emit:
        return backend.profile(settings, workload, batch_size, emit)


def _require_nothing_beside_trace(**given: object) -> None:
    misplaced = [name for name, value in given.items() if value not in (None, ())]
    if misplaced:
        raise UsageError(
            f"--trace FILE has its configuration already: leave out --{misplaced[0].replace('_', '-')}"
        )


def _write(path: Path, content: bytes, *, quiet: bool) -> None:
    paths.write_atomically(path, content)
    if not quiet:
        click.echo(f"wrote {path} ({len(content):,} bytes)", err=True)
