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
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from autofit.errors import UsageError, did_you_mean
from autofit.hardware.budget import DEFAULT_MARGIN
from autofit.hardware.gpus import Gpu
from autofit.paths import STATE_DIR_VARIABLE, UNVERIFIED_VARIABLE
from autofit.settings import values
from autofit.settings.goals import Objective, Risk
from workers.protocol import (
    MODES,
    Knobs,
)

DEVICES = ("auto", "cuda", "cpu")
PROBES = ("auto", "predict", "measure")

_VARIABLE_PREFIX = "AUTOFIT_"
_OTHER_VARIABLES = (STATE_DIR_VARIABLE, UNVERIFIED_VARIABLE)
_TABLE = "tune"
# Of each of these one is chosen: the first place that gives any puts the others aside.
_CHOICES = (
    frozenset({"gpu", "gpu-mem"}),
    frozenset({"model", "script"}),
    frozenset({"global-batch", "grad-accumulation"}),
)
_OF_SCRIPTS = frozenset({"script-arg", "batch-arg", "batch-env"})


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
        precision, memory_format, optimizer, optimizer_impl, set_to_none, checkpointing, allocator,
            grad_accumulation, global_batch, compile: see `workers.protocol.Knobs`.
        searched: knobs, by their names in `Knobs`, with the values to choose from; every combination of
            them and of the algorithms is a setting of its own.
        mode: None leaves the workload's own.
        worst_case: with the worst batches that a workload's data can make.
        num_ranks: what is predicted is one of so many ranks of `DistributedDataParallel`; 1 for none.
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
    precision: str = "fp32"
    memory_format: str = "contiguous"
    optimizer: str | None = None
    optimizer_impl: str = "default"
    set_to_none: bool = True
    checkpointing: str = "none"
    allocator: str = "default"
    grad_accumulation: int = 1
    global_batch: int | None = None
    compile: bool = False
    searched: tuple[tuple[str, tuple[str | bool, ...]], ...] = ()
    mode: str | None = None
    worst_case: bool = False
    num_ranks: int = 1
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
            raise UsageError(
                "--script-arg, --batch-arg and --batch-env say how a script is called: name it with --script"
            )
        if self.gpu is not None and self.gpu_mem_bytes is not None:
            raise UsageError(
                "--gpu and --gpu-mem contradict each other: the card's name says its memory; give one"
            )
        if self.probe == "predict" and self.objective is Objective.THROUGHPUT:
            raise UsageError(
                "--objective throughput needs measured steps: leave out --probe predict, or the objective"
            )
        if self.num_ranks > 1:
            self._require_prediction()
        if self.global_batch is not None and self.grad_accumulation != 1:
            raise UsageError(
                "--global-batch and --grad-accumulation contradict each other: the batch size decides how "
                "often a global batch is accumulated; give one"
            )
        if self.global_batch is not None and self.num_ranks > 1:
            raise UsageError(
                "--global-batch is of one process: with --parallel give --grad-accumulation, or leave "
                "either out"
            )
        if self.device != "cpu":
            return
        if self.allocator != Knobs().allocator or "allocator" in dict(self.searched):
            raise UsageError(
                "the allocator's settings are of PyTorch's CUDA allocator, which the CPU has not: leave "
                "--allocator and its --search out, or --device cpu"
            )
        if self.gpu is not None:
            raise UsageError(
                "--gpu names a card, --device cpu uses none: give --gpu-mem, what the process may use"
            )
        if self.gpu_mem_bytes is None:
            raise UsageError(
                "--device cpu needs a limit: give what the process may use, such as --gpu-mem 4G"
            )
        if self.probe == "predict":
            raise UsageError(
                "--probe predict predicts GPUs; with --device cpu leave it out or say --probe measure"
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
                f"--parallel predicts one rank of several and {wants} measures one alone: leave out either"
            )

    @property
    def may_compile(self) -> bool:
        """Whether any of the settings compiles the model."""
        return True in dict(self.searched).get("compile", (self.compile,))

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
            raise UsageError(f"--conv-algo: {what} is of one algorithm; name one of them")
        return names[0]

    def knobs(self, conv_algo: str = "cudnn") -> Knobs:
        """The knob setting that these settings and one of the algorithms make."""
        return Knobs(
            conv_algo=conv_algo,
            precision=self.precision,
            memory_format=self.memory_format,
            optimizer=self.optimizer,
            optimizer_impl=self.optimizer_impl,
            set_to_none=self.set_to_none,
            checkpointing=self.checkpointing,
            allocator=self.allocator,
            grad_accumulation=self.grad_accumulation,
            global_batch=self.global_batch,
            compile=self.compile,
        )


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
        raise UsageError("--model and --script contradict each other: a script brings its model; give one")
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
    return TuneSettings(**{_OPTIONS[option][0]: converted for option, (_, converted) in chosen.items()})


def _require_one_place(chosen: Mapping[str, tuple[Any, Any]]) -> None:
    """Refuses a knob that is both set and searched."""
    _, searched = chosen.get("search", ("", ()))
    for option in chosen:
        if _OPTIONS[option][0] in dict(searched):
            raise UsageError(f"--{option} sets what --search {option}=… chooses from: leave one of them out")


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
    put_aside = frozenset[str]().union(*(choice for choice in _CHOICES if choice & chosen.keys()))
    if "model" in chosen:
        put_aside |= _OF_SCRIPTS
    _, searched = chosen.get("search", ("", ()))
    return put_aside | {_option_of(field) for field, _ in searched} | (chosen.keys() & set(values.SEARCHABLE))


def _option_of(field: str) -> str:
    return field.replace("_", "-")


def _search_text(searched: Iterable[tuple[str, tuple[Any, ...]]]) -> str:
    """What `--search` says, as it could have been typed."""
    return ";".join(
        f"{_option_of(field)}={','.join(str(value).lower() for value in chosen)}"
        for field, chosen in searched
    )


_OPTIONS: dict[str, tuple[str, values.Convert]] = {  # option → the field, and how its value is read
    "model": ("model", values.text),
    "input": ("input_shape", values.shape),
    "classes": ("num_classes", values.whole_number(minimum=1)),
    "seq-len": ("sequence_length", values.whole_number(minimum=1)),
    "script": ("script", values.text),
    "script-arg": ("script_arguments", values.arguments),
    "batch-arg": ("batch_argument", values.text),
    "batch-env": ("batch_variable", values.text),
    "gpu-mem": ("gpu_mem_bytes", values.size),
    "gpu": ("gpu", values.cards),
    "device": ("device", values.one_of(DEVICES)),
    "probe": ("probe", values.one_of(PROBES)),
    "conv-algo": ("conv_algos", values.conv_algos),
    "grad-accumulation": ("grad_accumulation", values.whole_number(minimum=1)),
    "global-batch": ("global_batch", values.whole_number(minimum=1)),
    **{name: (name.replace("-", "_"), convert) for name, convert in values.SEARCHABLE.items()},
    "search": ("searched", values.searched),
    "mode": ("mode", values.one_of(MODES)),
    "worst-case": ("worst_case", values.switch),
    "parallel": ("num_ranks", values.parse_parallel),
    "max-batch": ("max_batch", values.whole_number(minimum=1)),
    "margin": ("margin", values.margin),
    "reserve": ("reserve_bytes", values.size_or_zero),
    "risk": ("risk", values.risk),
    "objective": ("objective", values.objective),
    "soak-steps": ("soak_steps", values.whole_number(minimum=0)),
    "max-trials": ("max_trials", values.whole_number(minimum=1)),
    "max-seconds": ("max_seconds", values.seconds),
    "storage": ("storage", values.text),
    "storage-wait": ("storage_wait_seconds", values.seconds_or_zero),
    "study": ("study", values.text),
    "address": ("address", values.text),
    "resources": ("resources", values.resources),
    "node-wait": ("node_wait_seconds", values.seconds_or_zero),
    "fresh": ("fresh", values.switch),
    "metrics-port": ("metrics_port", values.whole_number(minimum=0, maximum=65535)),
    "metrics-host": ("metrics_host", values.text),
    "deadline": ("deadline_seconds", values.seconds),
    "threads": ("num_threads", values.whole_number(minimum=1)),
}
_Given = dict[str, tuple[str, Any]]  # option → how a message calls it, and the value as it was given


def _converted(option: str, raw: Any, label: str) -> Any:
    try:
        return _OPTIONS[option][1](raw)
    except UsageError as error:
        raise type(error)(f"{label}: {error.message}") from error
    except ValueError as error:
        raise UsageError(f"{label}: {error}") from error


def _given_in_call(cli: Mapping[str, object]) -> _Given:
    labels = {option.replace("-", "_"): (option, f"--{option}") for option in _OPTIONS}
    given = {key: value for key, value in cli.items() if value is not None and value != ()}
    return _labelled(given, labels, "", "setting")


def _given_in_environment(env: Mapping[str, str]) -> _Given:
    variables = {_VARIABLE_PREFIX + option.upper().replace("-", "_"): option for option in _OPTIONS}
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
        {option: (option, f"{file}, [{_TABLE}] {option}") for option in _OPTIONS},
        f"{file}, [{_TABLE}]: ",
        "key",
    )


def _labelled(
    given: Mapping[str, Any], labels: Mapping[str, tuple[str, str]], where: str, what: str
) -> _Given:
    if unknown := sorted(given.keys() - labels.keys()):
        raise UsageError(f"{where}unknown {what} {unknown[0]!r}.{did_you_mean(unknown[0], labels)}")
    return {labels[key][0]: (labels[key][1], value) for key, value in given.items()}
