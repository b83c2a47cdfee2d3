"""Reads the settings of `autofit tune` from the command line, the environment and a file.

    command line (or the call) ─▶ environment ─▶ file ─▶ default

The first that names a setting decides it. All of them go through the same readers, once. A
setting has the name of its option everywhere:

    --gpu-mem 16G          option
    gpu_mem                keyword of the call
    AUTOFIT_GPU_MEM=16G    environment; empty counts as not set
    gpu-mem = "16G"        in the table [tune] of a TOML file
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from autofit.dispatch.requests import INLINE
from autofit.errors import UsageError, did_you_mean
from autofit.hardware.gpus import Gpu
from autofit.paths import KEY_VARIABLE, STATE_DIR_VARIABLE, UNVERIFIED_VARIABLE
from autofit.settings import values
from autofit.settings.options import OPTIONS
from autofit.settings.parallels import NAME as PARALLEL
from autofit.settings.parallels import parallels_of
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.spec.documents import DocumentError, parse_toml, read_file
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import MOST_RANKS, Setup

_VARIABLE_PREFIX = "AUTOFIT_"
_OTHER_VARIABLES = (KEY_VARIABLE, STATE_DIR_VARIABLE, UNVERIFIED_VARIABLE)
_TABLE = "tune"
_NUM_NAMED = 5  # cards that a message lists by name
_OF_A_CLUSTER = tuple(option.name for option in OPTIONS.values() if option.of_cluster)


def resolve_settings(cli: Mapping[str, object], env: Mapping[str, str], file: Path | None) -> TuneSettings:
    """Settings from the command line, the environment and a file; for each option the first source decides.

    `--gpu` and `--gpu-mem` exclude each other, and so do `--model` and `--script`: if one source gives either
    option, both are ignored in later sources. Both in one source are an error.

    Args:
        cli: options of the command line or call, by name with `_` for `-`; None counts as not given.
        env: environment of the process; variables that do not begin with `AUTOFIT_` are ignored.
        file: a TOML file with a table `[tune]`; None for no file.

    Raises:
        UsageError: a name is unknown, a value cannot be parsed, options contradict each other, or the file
            cannot be read or parsed; the message says where.
    """
    chosen = _chosen(cli, env, file)
    if {"model", "script"} <= chosen.keys():
        raise UsageError("--model and --script cannot be combined: a script brings its own model; give one")
    if "script" in chosen:
        chosen["model"] = chosen["script"]
    if "model" not in chosen:
        raise UsageError(
            "no model: name one, such as davenet (`autofit models` lists them), or a "
            "training script with --script"
        )
    if len(cards := _cards_in(chosen)) > 1:
        named = ", ".join(card.key for card in cards) if len(cards) <= _NUM_NAMED else f"{len(cards)} names"
        raise UsageError(f"{named} are several cards: name one with --gpu")
    _require_one_place(chosen)
    _require_a_cluster(chosen)
    return _settings({OPTIONS[option].field: value for option, (_, value) in chosen.items()})


def resolve_one_configuration(
    options: Mapping[str, object], what: str, *, also: Collection[str] = ()
) -> TuneSettings:
    """Settings of a command that predicts one configuration, from its options alone.

    Args:
        options: options of the command line or call, by name with `_` for `-`; None counts as not given.
        what: result of the command, for error messages, such as `a check`.
        also: options of a search that this command takes too.

    Raises:
        UsageError: an option is wrong, only a search takes it, or it names several convolution algorithms.
    """
    of_search = {option.argument for option in OPTIONS.values() if option.of_search} - set(also)
    given = _said(options)
    if misplaced := ", ".join(sorted(given.keys() & of_search)):
        raise UsageError(
            f"{what} does not take {misplaced}, as it only predicts one configuration: leave out {misplaced}"
        )
    settings = resolve_settings({**given, "probe": "predict"}, {}, None)
    settings.one_conv_algo(what)
    return settings


def names_workload(options: Mapping[str, object]) -> bool:
    """Whether options of a command line, by name, name a model or a script."""
    return options["model"] is not None or options["script"] is not None


def resolve_workload_beside(
    options: Mapping[str, object], batch_size: int | None, what: str
) -> TuneSettings | None:
    """Settings of a model or script that is named beside the file of a real run; None if none is named.

    Args:
        options: options of the command line, as for `resolve_one_configuration`.
        batch_size: samples a batch, which a script may decide itself.
        what: result of the command, for error messages.

    Raises:
        UsageError: an option is wrong, a model comes without a batch size, or a batch size without a model.
    """
    if not names_workload(options):
        if batch_size is not None:
            raise UsageError("--batch-size is of a model: name it too, or leave both out")
        return None
    settings = resolve_one_configuration(options, what)
    if settings.script is None and batch_size is None:
        raise UsageError("Missing option '--batch-size'.")
    return settings


def _settings(fields: Mapping[str, Any]) -> TuneSettings:
    """`TuneSettings` made from parsed option values.

    Args:
        fields: values by the field that they set; a field within `knobs` or `setup` has that prefix, as in
            `knobs.precision`.

    Raises:
        UsageError: the values do not go together.
    """
    parts: dict[str, dict[str, Any]] = {"": {}, "knobs": {}, "setup": {}}
    for name, value in fields.items():
        part, _, own = name.rpartition(".")
        parts[part][own] = value
    searched = dict(parts[""].pop("searched", ()))
    forms = searched.pop(PARALLEL, ())
    num_processes, num_nodes = parts[""].get("num_processes"), parts[""].get("num_nodes", 1)
    num_ranks = None if num_processes is None else num_processes * num_nodes
    if num_ranks is not None and num_ranks > MOST_RANKS:
        raise UsageError(
            f"--nproc {num_processes} on --nnodes {num_nodes} are {num_ranks} ranks: ask for at most "
            f"{MOST_RANKS} in all"
        )
    try:
        settings = TuneSettings(
            searched=tuple(searched.items()),
            parallels=parallels_of(forms, num_ranks, num_nodes),
            **parts[""],
            knobs=Knobs(**parts["knobs"]),
            given_knobs=tuple(sorted(parts["knobs"])),
            setup=Setup(**parts["setup"]),
        )
    except ValueError as error:  # values that are valid alone, but not together
        raise UsageError(str(error)) from error
    return settings if "rank" in parts["setup"] else settings.with_deciding_rank()


def _require_one_place(chosen: Mapping[str, tuple[Any, Any]]) -> None:
    """Checks that no knob is both given a single value and searched over several.

    Args:
        chosen: raw and parsed value of each option in effect.

    Raises:
        UsageError: a knob is, as by `--precision` together with `--search precision=…`.
    """
    _, searched = chosen.get("search", ("", ()))
    for option in chosen:
        if OPTIONS[option].argument in dict(searched):
            raise UsageError(f"--{option} sets what --search {option}=… chooses from: leave one of them out")


def _require_a_cluster(chosen: Mapping[str, tuple[Any, Any]]) -> None:
    """Checks that no option for a Ray cluster is given together with `--dispatch inline`, this machine.

    Args:
        chosen: raw and parsed value of each option in effect.

    Raises:
        UsageError: such an option is given together with `--dispatch inline`.
    """
    said = [f"--{option}" for option in _OF_A_CLUSTER if option in chosen]
    if said and _is_inline(chosen):
        verb = "are" if len(said) > 1 else "is"
        raise UsageError(
            f"{' and '.join(said)} {verb} for a Ray cluster and cannot be combined with --dispatch inline: "
            "drop one of them"
        )


def _is_inline(chosen: Mapping[str, tuple[Any, Any]]) -> bool:
    _, dispatch = chosen.get("dispatch", ("", ""))
    return bool(dispatch == INLINE)


def chosen_options(cli: Mapping[str, object], env: Mapping[str, str], file: Path | None) -> dict[str, Any]:
    """Values of the options in effect by option name, as they were given (not parsed).

    The arguments are those of `resolve_settings`.
    """
    return {option: raw for option, (raw, _) in _chosen(cli, env, file).items()}


def chosen_cards(cli: Mapping[str, object], env: Mapping[str, str], file: Path | None) -> tuple[str, ...]:
    """Catalogue keys of all GPU models that `--gpu` names, from the first source that gives it; may be empty.

    The arguments are those of `resolve_settings`.
    """
    return tuple(card.key for card in _cards_in(_chosen(cli, env, file)))


def _cards_in(chosen: Mapping[str, tuple[Any, Any]]) -> tuple[Gpu, ...]:
    _, cards = chosen.get("gpu", ("", ()))
    return cards if isinstance(cards, tuple) else (cards,)


def _chosen(
    cli: Mapping[str, object], env: Mapping[str, str], file: Path | None
) -> dict[str, tuple[Any, Any]]:
    """Raw and parsed value of each option, from the first source that gives it.

    The sources are the command line or call, the environment, and the settings file, in this order. An
    option is ignored in a later source if it contradicts an earlier one.
    """
    chosen: dict[str, tuple[Any, Any]] = {}
    for given in (_given_in_call(cli), _given_in_environment(env), _given_in_file(file)):
        put_aside = _put_aside_by(chosen)
        for option, (label, raw) in given.items():
            value = _read(option, raw, label)
            if option == "search":
                value = tuple(pair for pair in value if _option_of(pair[0]) not in put_aside)
                raw = _search_text(value)  # noqa: PLW2901 - drops knobs that an earlier source sets
            if option not in put_aside and (value or option != "search"):
                chosen.setdefault(option, (raw, value))
    return chosen


def _put_aside_by(chosen: Mapping[str, tuple[Any, Any]]) -> frozenset[str]:
    """Names of the options to ignore in later sources, because earlier ones exclude them.

    Args:
        chosen: raw and parsed value of each option of the earlier sources.
    """
    made = {OPTIONS[option].choice for option in chosen} - {None}
    put_aside = frozenset(option.name for option in OPTIONS.values() if option.choice in made)
    if "model" in chosen:
        put_aside |= {option.name for option in OPTIONS.values() if option.of_scripts}
    if _is_inline(chosen):
        put_aside |= set(_OF_A_CLUSTER)
    if chosen.keys() & set(_OF_A_CLUSTER):
        put_aside |= {"dispatch"}
    _, searched = chosen.get("search", ("", ()))
    return put_aside | {_option_of(field) for field, _ in searched} | (chosen.keys() & set(values.SEARCHABLE))


def _option_of(field: str) -> str:
    """Name of the option that sets a knob, made from the knob's field: `seq-len` from `seq_len`."""
    return field.replace("_", "-")


def _search_text(searched: Iterable[tuple[str, tuple[Any, ...]]]) -> str:
    """Text for `--search` such as `precision=fp32,tf32`, made from its parsed value.

    Args:
        searched: searched knobs by field, each with its values.
    """
    return ";".join(
        f"{_option_of(field)}={','.join(str(value).lower() for value in chosen)}"
        for field, chosen in searched
    )


_Given = dict[str, tuple[str, Any]]  # option → its name in messages, and the value as it was given


def _read(option: str, raw: Any, label: str) -> Any:
    try:
        return OPTIONS[option].read(raw)
    except UsageError as error:
        raise type(error)(f"{label}: {error.message}") from error
    except ValueError as error:
        raise UsageError(f"{label}: {error}") from error


def _said(call: Mapping[str, object]) -> dict[str, object]:
    """Options of a call that have a value, without those that are None or an empty tuple."""
    return {name: value for name, value in call.items() if value is not None and value != ()}


def _given_in_call(cli: Mapping[str, object]) -> _Given:
    labels = {option.argument: (name, f"--{name}") for name, option in OPTIONS.items()}
    return _labelled(_said(cli), labels, "", "setting")


def _given_in_environment(env: Mapping[str, str]) -> _Given:
    variables = {_VARIABLE_PREFIX + option.argument.upper(): name for name, option in OPTIONS.items()}
    labels = {variable: (option, f"{variable} in the environment") for variable, option in variables.items()}
    given = {
        key: value
        for key, value in env.items()
        if key.startswith(_VARIABLE_PREFIX) and key not in _OTHER_VARIABLES and value != ""
    }
    return _labelled(given, labels, "the environment: ", "variable")


def _given_in_file(file: Path | None) -> _Given:
    """Settings given in a TOML file, by option; raises `UsageError` if the file is malformed."""
    if file is None:
        return {}
    try:
        document = parse_toml(read_file(file))
    except OSError as error:
        raise UsageError(f"cannot read the settings file {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except DocumentError as error:
        raise UsageError(f"{file} {error}") from error
    _labelled(document, {_TABLE: (_TABLE, _TABLE)}, f"{file}: ", "table or key")
    table = document.get(_TABLE, {})
    if not isinstance(table, dict):
        raise UsageError(f"{file}: {_TABLE} is not a table: begin the settings with a line [{_TABLE}]")
    return _labelled(
        table,
        {option: (option, f"{file}, [{_TABLE}] {option}") for option in OPTIONS},
        f"{file}, [{_TABLE}]: ",
        "key",
    )


def _labelled(
    given: Mapping[str, Any], labels: Mapping[str, tuple[str, str]], where: str, what: str
) -> _Given:
    if unknown := sorted(given.keys() - labels.keys()):
        raise UsageError(f"{where}unknown {what} {unknown[0]!r}.{did_you_mean(unknown[0], labels)}")
    return {labels[key][0]: (labels[key][1], value) for key, value in given.items()}
