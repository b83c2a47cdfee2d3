"""The settings of `autofit tune`, and where each of them may come from.

    command line (or the call) ─▶ environment ─▶ file ─▶ default

The first that names a setting decides it. All of them go through the same converters, once, so
that what a `TuneSettings` holds is bytes, numbers and cards, never the text that was typed. A
setting has the name of its option everywhere:

    --gpu-mem 16G          option
    gpu_mem                keyword of the call
    AUTOFIT_GPU_MEM=16G    environment; empty counts as not set
    gpu-mem = "16G"        in the table [tune] of a TOML file
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from autofit.dispatch.connect import INLINE, RAY
from autofit.errors import UsageError, did_you_mean
from autofit.hardware.budget import DEFAULT_MARGIN
from autofit.hardware.gpus import Gpu
from autofit.paths import STATE_DIR_VARIABLE, UNVERIFIED_VARIABLE
from autofit.settings import values
from autofit.settings.goals import Objective, Risk
from autofit.settings.options import OPTIONS
from workers.knobs import Knobs
from workers.setup import Setup

_VARIABLE_PREFIX = "AUTOFIT_"
_OTHER_VARIABLES = (STATE_DIR_VARIABLE, UNVERIFIED_VARIABLE)
_TABLE = "tune"
_OF_A_CLUSTER = tuple(option.name for option in OPTIONS.values() if option.of_cluster)


# ── the settings ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings:
    """Everything `autofit tune` can be told, converted and checked.

    Attributes:
        model: a built-in's name, `timm:NAME` and its like, `package.module:attribute` or
            `path/file.py:attribute`; the path of a script.
        script: the path of a training script that is run as it is, in place of a model.
        script_arguments: those of its command line.
        batch_argument, batch_variable: the argument or the environment variable that takes its batch size.
        input_shape: shape of one sample, where the attribute is a module rather than a Workload.
        num_classes: number of classes of the labels that go with it.
        sequence_length: tokens a sample, of a library's language model.
        gpu_mem_bytes: the device's total memory; with `device="cpu"` what the process may use.
        gpu: the card, instead of `gpu_mem_bytes`. With neither, the local card.
        conv_algos: the convolution algorithms to choose from; `ALL_CONV_ALGOS` for all that apply, None
            for those that the device's backend has of itself.
        knobs: those that are not searched; the convolution algorithm is among `conv_algos`.
        searched: knobs, by their names in `Knobs`, with the values to choose from; every combination of
            them and of the algorithms is a setting of its own.
        setup: mode, kind of batches, and ranks.
        margin: share of the device's total that is kept free.
        reserve_bytes: what is left to other processes on the device.
        risk: which level of a predicted peak has to be within the budget.
        objective: what the best has most of: samples a step, or measured samples a second.
        soak_steps: steps of the trial that verifies the winner, 0 for none; None for 20 on CUDA and
            5 on the CPU.
        max_trials: so many measured trials at most, those in the study included; None for no limit.
        max_seconds: so long the search runs at most; None for no limit.
        storage: an Optuna URL; None for a journal file in the state directory.
        storage_wait_seconds: how long a database that went away is waited for; 0 for not at all.
        study: the study's name; None for one that follows from the settings.
        dispatch: what runs measured trials: Ray, or this machine one after another.
        address: a Ray cluster's address; None for a local one.
        resources: amounts of Ray's custom resources that every trial asks its node for.
        node_wait_seconds: how long a trial waits for a node that could run it; 0 for not at all.
        fresh: ignore earlier studies and cached results.
        metrics_port: where Prometheus metrics are served; None for nowhere, 0 for any free port.
        deadline_seconds: how long one trial may take.
        num_threads: intra-op threads of a CPU trial; None for one per core.

    Raises:
        UsageError: when two settings contradict each other.
    """

    model: str
    input_shape: tuple[int, ...] | None = None
    num_classes: int | None = None
    sequence_length: int | None = None
    script: str | None = None
    script_arguments: tuple[str, ...] = ()
    batch_argument: str | None = None
    batch_variable: str | None = None
    gpu_mem_bytes: int | None = None
    gpu: Gpu | None = None
    device: str = "auto"
    probe: str = "auto"
    conv_algos: tuple[str, ...] | None = None
    knobs: Knobs = field(default_factory=Knobs)
    searched: tuple[tuple[str, tuple[str | bool, ...]], ...] = ()
    setup: Setup = field(default_factory=Setup)
    max_batch: int = 65536
    margin: Decimal = DEFAULT_MARGIN
    reserve_bytes: int = 0
    risk: Risk = Risk.SAFE
    objective: Objective = Objective.BATCH
    soak_steps: int | None = None
    max_trials: int | None = None
    max_seconds: float | None = None
    storage: str | None = None
    storage_wait_seconds: float = 60.0
    study: str | None = None
    dispatch: str = RAY
    address: str | None = None
    resources: tuple[tuple[str, float], ...] = ()
    node_wait_seconds: float = 30.0
    fresh: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    deadline_seconds: float = 600.0
    num_threads: int | None = None

    def __post_init__(self) -> None:
        if self.script is None and (self.script_arguments or self.batch_argument or self.batch_variable):
            raise UsageError("--script-arg, --batch-arg and --batch-env need a script: name it with --script")
        if self.gpu is not None and self.gpu_mem_bytes is not None:
            raise UsageError(
                "--gpu and --gpu-mem cannot be combined: a card's name includes its memory; give one of them"
            )
        if self.probe == "predict" and self.objective is Objective.THROUGHPUT:
            raise UsageError(
                "--objective throughput needs measured steps and cannot be combined with --probe predict: "
                "drop one of them"
            )
        if self.setup.parallel:
            self._require_prediction()
        if self.knobs.global_batch is not None and self.setup.parallel:
            raise UsageError(
                "--global-batch counts the samples of one process and cannot be combined with --parallel: "
                "give --grad-accumulation instead"
            )
        if self.device != "cpu":
            return
        if self.knobs.allocator != Knobs().allocator or "allocator" in dict(self.searched):
            raise UsageError(
                "--allocator and --search allocator=… set PyTorch's CUDA allocator and cannot be combined "
                "with --device cpu: drop one of them"
            )
        if self.gpu is not None:
            raise UsageError(
                "--gpu cannot be combined with --device cpu: give --gpu-mem, the memory for the process"
            )
        if self.gpu_mem_bytes is None:
            raise UsageError(
                "--device cpu needs a limit: give the memory that the process may use, such as --gpu-mem 4G"
            )
        if self.probe == "predict":
            raise UsageError(
                "--probe predict predicts GPUs and cannot be combined with --device cpu: drop it, or use "
                "--probe measure"
            )

    def _require_prediction(self) -> None:
        """Refuses what measures, since a trial runs one rank, without its peers."""
        wants = (
            "--device cpu" if self.device == "cpu"
            else "--probe measure" if self.probe == "measure"
            else "--objective throughput" if self.objective is Objective.THROUGHPUT
            else None
        )  # fmt: skip
        if wants is not None:
            raise UsageError(
                f"--parallel is predicted only and cannot be combined with {wants}: drop one of them"
            )

    @property
    def may_compile(self) -> bool:
        """Whether any of the settings compiles the model."""
        return True in dict(self.searched).get("compile", (self.knobs.compile,))

    @property
    def says_of_a_sample(self) -> bool:
        """Whether anything is said of what one sample is."""
        return any(value is not None for value in (self.input_shape, self.num_classes, self.sequence_length))

    def one_conv_algo(self, what: str) -> str:
        """The convolution algorithm of what is about one configuration alone; PyTorch's default unless named.

        Raises:
            UsageError: several are named.
        """
        names = self.conv_algos or (Knobs().conv_algo,)
        if len(names) != 1 or names == values.ALL_CONV_ALGOS:
            raise UsageError(f"--conv-algo: {what} takes one algorithm; name one of them")
        return names[0]

    def configuration(self, what: str) -> Knobs:
        """The one knob setting of what is about one configuration alone.

        Raises:
            UsageError: several algorithms are named, or a knob is to be searched.
        """
        if self.searched:
            raise UsageError(f"--search: {what} takes one value for each knob; give them one by one")
        return replace(self.knobs, conv_algo=self.one_conv_algo(what))


def resolve_settings(cli: Mapping[str, object], env: Mapping[str, str], file: Path | None) -> TuneSettings:
    """Reads the settings from where they were given, the first of them first.

    `--gpu` and `--gpu-mem` are one choice, `--model` and `--script` another: either of them puts both
    aside where they were given further down. Given together in one place they are refused.

    Args:
        cli: the command line's or the call's, by option name with `_` for `-`; None is not given.
        env: the process's environment; variables that do not begin with `AUTOFIT_` are not looked at.
        file: a TOML file with a table `[tune]`.

    Raises:
        UsageError: for an unknown name, a value that does not convert, a file that cannot be read
            or parsed; it says where.
    """
    chosen = _chosen(cli, env, file)
    if {"model", "script"} <= chosen.keys():
        raise UsageError("--model and --script cannot be combined: a script brings its own model; give one")
    if "script" in chosen:
        chosen["model"] = chosen["script"]
    if "model" not in chosen:
        raise UsageError(
            "no model: name one with --model, such as --model davenet (`autofit models` lists them), or a "
            "training script with --script"
        )
    if len(cards := _cards_in(chosen)) > 1:
        raise UsageError(
            f"{', '.join(card.key for card in cards)} are several cards: name one with --gpu, or let "
            "`autofit submit` make a job for each"
        )
    _require_one_place(chosen)
    _require_a_cluster(chosen)
    return _settings({OPTIONS[option].field: converted for option, (_, converted) in chosen.items()})


def resolve_one_configuration(options: Mapping[str, object], what: str) -> TuneSettings:
    """The settings of a call that predicts one configuration: one algorithm, and nothing of a search.

    Args:
        options: those of the call.
        what: what the call makes, for messages: `a check`.

    Raises:
        UsageError: an option is wrong, or means something to a search alone.
    """
    of_search = {option.argument for option in OPTIONS.values() if option.of_search}
    if misplaced := sorted(options.keys() & of_search):
        raise UsageError(
            f"{what} does not take {', '.join(misplaced)}: it only predicts one configuration; leave that out"
        )
    settings = resolve_settings({**options, "probe": "predict"}, {}, None)
    settings.one_conv_algo(what)
    return settings


def _settings(fields: Mapping[str, Any]) -> TuneSettings:
    """The settings of converted values by their fields, those of knobs and setup with a prefix."""
    parts: dict[str, dict[str, Any]] = {"": {}, "knobs": {}, "setup": {}}
    for name, value in fields.items():
        part, _, own = name.rpartition(".")
        parts[part][own] = value
    try:
        return TuneSettings(**parts[""], knobs=Knobs(**parts["knobs"]), setup=Setup(**parts["setup"]))
    except ValueError as error:  # of values that are right by themselves
        raise UsageError(str(error)) from error


def _require_one_place(chosen: Mapping[str, tuple[Any, Any]]) -> None:
    """Refuses a knob that is both set and searched."""
    _, searched = chosen.get("search", ("", ()))
    for option in chosen:
        if OPTIONS[option].is_knob and _field_of(option) in dict(searched):
            raise UsageError(f"--{option} sets what --search {option}=… chooses from: leave one of them out")


def _require_a_cluster(chosen: Mapping[str, tuple[Any, Any]]) -> None:
    """Refuses what is said of a cluster where none is used."""
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
    """What `resolve_settings` reads of the same, by option name: as it was given, not converted."""
    return {option: raw for option, (raw, _) in _chosen(cli, env, file).items()}


def chosen_cards(cli: Mapping[str, object], env: Mapping[str, str], file: Path | None) -> tuple[str, ...]:
    """The keys of the cards that the same name: one, several of a fleet, or none."""
    return tuple(card.key for card in _cards_in(_chosen(cli, env, file)))


def _cards_in(chosen: Mapping[str, tuple[Any, Any]]) -> tuple[Gpu, ...]:
    _, cards = chosen.get("gpu", ("", ()))
    return cards if isinstance(cards, tuple) else (cards,)


def _chosen(
    cli: Mapping[str, object], env: Mapping[str, str], file: Path | None
) -> dict[str, tuple[Any, Any]]:
    """By option: the value of the first place that gives it, raw and converted."""
    chosen: dict[str, tuple[Any, Any]] = {}
    for given in (_given_in_call(cli), _given_in_environment(env), _given_in_file(file)):
        put_aside = _put_aside_by(chosen)
        for option, (label, raw) in given.items():
            converted = _converted(option, raw, label)
            if option == "search":
                converted = tuple(pair for pair in converted if _option_of(pair[0]) not in put_aside)
                raw = _search_text(converted)  # noqa: PLW2901 - without what a higher place sets
            if option not in put_aside and (converted or option != "search"):
                chosen.setdefault(option, (raw, converted))
    return chosen


def _put_aside_by(chosen: Mapping[str, tuple[Any, Any]]) -> frozenset[str]:
    """The options that lower places give in vain: another way to say what is said already."""
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


def _option_of(knob: str) -> str:
    return knob.replace("_", "-")


def _field_of(option: str) -> str:
    return option.replace("-", "_")


def _search_text(searched: Iterable[tuple[str, tuple[Any, ...]]]) -> str:
    """What `--search` says, as it could have been typed."""
    return ";".join(
        f"{_option_of(field)}={','.join(str(value).lower() for value in chosen)}"
        for field, chosen in searched
    )


_Given = dict[str, tuple[str, Any]]  # option → how a message calls it, and the value as it was given


def _converted(option: str, raw: Any, label: str) -> Any:
    try:
        return OPTIONS[option].convert(raw)
    except UsageError as error:
        raise type(error)(f"{label}: {error.message}") from error
    except ValueError as error:
        raise UsageError(f"{label}: {error}") from error


def _given_in_call(cli: Mapping[str, object]) -> _Given:
    labels = {option.replace("-", "_"): (option, f"--{option}") for option in OPTIONS}
    given = {key: value for key, value in cli.items() if value is not None and value != ()}
    return _labelled(given, labels, "", "setting")


def _given_in_environment(env: Mapping[str, str]) -> _Given:
    variables = {_VARIABLE_PREFIX + option.upper().replace("-", "_"): option for option in OPTIONS}
    labels = {variable: (option, f"{variable} in the environment") for variable, option in variables.items()}
    given = {
        key: value
        for key, value in env.items()
        if key.startswith(_VARIABLE_PREFIX) and key not in _OTHER_VARIABLES and value != ""
    }
    return _labelled(given, labels, "the environment: ", "variable")


def _given_in_file(file: Path | None) -> _Given:
    if file is None:
        return {}
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the settings file {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: not TOML: {error}") from error
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
