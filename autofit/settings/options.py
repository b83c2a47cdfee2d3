"""Every option of `autofit tune`, once: how its value is read, and what else must be known of it.

The command line, settings files, the environment, jobs and earlier answers read this table. An option that
is a knob comes from the knob's own file in `workers/knobs`.
"""

from __future__ import annotations

from dataclasses import dataclass

from autofit.dispatch.connect import DISPATCHES
from autofit.settings import values
from autofit.settings.goals import Batching, Maximized, Objective, Risk
from autofit.settings.lengths_file import lengths
from workers.knobs import KNOBS, Knob
from workers.knobs.knob import Read, switch, whole_number
from workers.parallel_kinds import PARALLEL_FORMS
from workers.scripts.launcher_commands import LAUNCHERS
from workers.setup import MODES, MOST_RANKS, Parallel

DEVICES = ("auto", "cuda", "cpu")
PROBES = ("auto", "predict", "measure")
_KNOBS, _SETUP = "knobs.", "setup."


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        name: as it is typed, without the dashes in front.
        field: where `TuneSettings` holds it; `knobs.NAME` and `setup.NAME` are fields of those.
        read: makes of an option's text or a TOML value what the field holds; raises `ValueError`, saying
            what was expected.
        help: what it is for, one or two sentences.
        default: what holds without it, as the help shows it; empty where the sentence says so.
        metavar: what stands for the value in the help; None for the choices.
        choices: all values, or examples of them, which the shell completes.
        is_switch: whether it takes no value on the command line.
        choice: options of one choice exclude each other: one given in a higher place puts the others aside.
        of_scripts: whether it says how a script is called.
        of_cluster: whether it means something to a Ray cluster alone.
        of_search: whether a question about one configuration has no use for it.
        of_job: whether a job takes it along; else the cluster decides it.
        decides: whether the answer depends on it; else it says where and for how long to look.
    """

    name: str
    field: str
    read: Read
    help: str
    default: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    is_switch: bool = False
    choice: str | None = None
    aliases: tuple[str, ...] = ()
    of_scripts: bool = False
    of_cluster: bool = False
    of_search: bool = False
    of_job: bool = True
    decides: bool = True

    @property
    def argument(self) -> str:
        """Its name as a keyword argument."""
        return self.name.replace("-", "_")

    @property
    def is_knob(self) -> bool:
        return self.field.startswith(_KNOBS)

    @property
    def help_text(self) -> str:
        """The help with its default."""
        return f"{self.help}  [default: {self.default}]" if self.default else self.help


def _knob_option(knob: Knob) -> Option:
    default = knob.default
    return Option(
        name=knob.option,
        field=_KNOBS + knob.name,
        read=values.knob_value(knob),
        help=knob.help,
        default="" if default is None or knob.is_switch else str(default).lower(),
        metavar=knob.metavar or "|".join(knob.values),
        choices=knob.values if knob.examples is None else knob.examples,
        is_switch=knob.is_switch,
        choice=knob.choice,
        aliases=knob.aliases,
    )


_MODEL = (
    Option(
        name="model",
        field="model",
        read=values.text,
        help="A built-in's name (see `autofit models`), torchvision:NAME, timm:NAME, hf:NAME-or-config, "
        "package.module:attribute or path/file.py:attribute.",
        metavar="MODEL",
        choice="workload",
        decides=False,  # what it refers to decides
    ),
    Option(
        name="input",
        field="input_shape",
        read=values.shape,
        help="Shape of one sample, such as 3x224x224, where MODEL is an nn.Module.",
        metavar="SHAPE",
    ),
    Option(
        name="classes",
        field="num_classes",
        read=whole_number(minimum=1),
        help="Number of classes of the labels that go with --input.",
        metavar="N",
    ),
    Option(
        name="script",
        field="script",
        read=values.text,
        help="A training script, run as it is until some optimizer steps are done, instead of --model; or a "
        "program beside autofit, such as tune, or '-m MODULE'.",
        metavar="FILE",
        choice="workload",
        decides=False,
    ),
    Option(
        name="script-arg",
        field="script_arguments",
        read=values.arguments,
        help="One argument for the script. Repeatable.",
        metavar="ARG",
        of_scripts=True,
    ),
    Option(
        name="batch-arg",
        field="batch_argument",
        read=values.text,
        help="The script's argument that takes the batch size, such as --batch-size. One that ends in = is "
        "joined with the size.",
        metavar="ARG",
        of_scripts=True,
    ),
    Option(
        name="batch-env",
        field="batch_variable",
        read=values.text,
        help="The environment variable that takes the batch size, instead of an argument.",
        metavar="NAME",
        of_scripts=True,
    ),
    Option(
        name="batch-name",
        field="batch_name",
        read=values.text,
        help="The constant in the script's code that is its batch size. With none of the three, the batch "
        "size of its data loader is changed.",
        metavar="NAME",
        of_scripts=True,
    ),
    Option(
        name="nproc",
        field="num_processes",
        read=whole_number(minimum=1, maximum=MOST_RANKS),
        help="Ranks on each machine: of the script that a launcher starts, one of which is predicted, or of "
        "--search parallel=KIND,…, where hsdp, and kinds joined by + as in fsdp+tp, take every split.",
        metavar="N",
    ),
    Option(
        name="nnodes",
        field="num_nodes",
        read=whole_number(minimum=1, maximum=MOST_RANKS),
        help="Machines with so many ranks each: where a launcher starts the script, or measured trials run; "
        "hsdp without degrees then shards within one.",
        default="1",
        metavar="N",
    ),
    Option(
        name="launcher",
        field="launcher",
        read=values.launcher,
        help="What starts the script: torchrun, accelerate or deepspeed, and options of its own, as in "
        "'accelerate --config_file fsdp.yaml'.",
        default="torchrun, with --nproc",
        metavar="LAUNCHER",
        choices=LAUNCHERS,
        of_scripts=True,
    ),
    Option(
        name="keep-trackers",
        field="keeps_trackers",
        read=switch,
        help="Let the script log to wandb, TensorBoard and other trackers while it is tried.",
        is_switch=True,
        of_scripts=True,
        decides=False,
    ),
)
_CARD = (
    Option(
        name="gpu-mem",
        field="gpu_mem_bytes",
        read=values.size,
        help="Total memory of the device: 16G is 16 × 1024³ bytes, 16GB is 16 × 1000³.",
        metavar="SIZE",
        choice="card",
    ),
    Option(
        name="gpu",
        field="gpu",
        read=values.cards,
        help="The card, such as rtx-3090; `autofit gpus` lists them.",
        metavar="CARD",
        choice="card",
    ),
    Option(
        name="device",
        field="device",
        read=values.one_of(DEVICES),
        help="Where to measure. cpu counts the memory of the process.",
        default="auto",
        choices=DEVICES,
        of_search=True,
    ),
    Option(
        name="probe",
        field="probe",
        read=values.one_of(PROBES),
        help="auto measures where the device is here or at --address, and predicts elsewhere.",
        default="auto",
        choices=PROBES,
        of_search=True,
    ),
)
_VARIED = (
    Option(
        name="conv-algo",
        field="conv_algos",
        read=values.conv_algos,
        help="Convolution algorithms to choose from; `autofit conv-algos` lists them.",
        default="what the device's backend has",
        metavar="A,B,…|all",
    ),
    *(_knob_option(knob) for knob in KNOBS.values() if knob.name != "conv_algo"),
    Option(
        name="search",
        field="searched",
        read=values.searched,
        help=f"Search this knob too, one of {', '.join(values.SEARCHABLE)}. Repeatable: every combination "
        "is a setting, and settings that cannot win are pruned. Of parallel=ddp,fsdp,… the largest batch of "
        "all ranks together wins.",
        metavar="KNOB=A,B,…",
        of_search=True,
    ),
    Option(
        name="mode",
        field=_SETUP + "mode",
        read=values.one_of(MODES),
        help="Train, infer, or generate tokens, instead of the workload's own mode.",
        choices=MODES,
    ),
    Option(
        name="worst-case",
        field=_SETUP + "batch_kind",
        read=values.batch_kind,
        help="Use the largest batches that the data can make, for a workload whose make_batch takes a kind.",
        is_switch=True,
    ),
    Option(
        name="allow-long",
        field=_SETUP + "allows_long",
        read=switch,
        help="Let --seq-len go beyond the positions that the model was made for.",
        is_switch=True,
    ),
    Option(
        name="parallel",
        field=_SETUP + "parallel",
        read=lambda value: Parallel.parse(str(value)),
        help="One rank of several is predicted; where trials are measured, all run together. "
        + "; ".join(f"{form}: {what}" for form, what in PARALLEL_FORMS.items())
        + ". The batch size is that of one rank, of a pipeline that of a microbatch.",
        metavar="KIND:N",
    ),
    Option(
        name="rank",
        field=_SETUP + "rank",
        read=values.rank,
        help="Which rank is predicted, of --parallel or of those that a script's launcher starts; all, of "
        "--parallel: those that differ, and the answer is of the one that needs the most.",
        default="0; all of a pipeline",
        metavar="K|all",
    ),
    Option(
        name="assume",
        field=_SETUP + "nonzero_share",
        read=values.nonzero_share,
        help="How much of a tensor a mask is assumed to select whose values nobody has; the range goes up to "
        "all of it.",
        default="nonzero=0.5",
        metavar="nonzero=SHARE",
    ),
)
_SEARCH = (
    Option(
        name="maximize",
        field="maximize",
        read=values.maximized,
        help="What to make as large as fits: the batch, or at --batch-size the size of a sample.",
        default="batch-size",
        choices=tuple(Maximized),
        of_search=True,
    ),
    Option(
        name="batch-size",
        field="batch_size",
        read=whole_number(minimum=1),
        help="The batch size at which --maximize seq-len looks for the longest samples.",
        default="1",
        metavar="N",
        of_search=True,
    ),
    Option(
        name="lengths",
        field="lengths",
        read=lengths,
        help="The tokens of each sample of the data, one number a line, or FILE:COLUMN of a CSV, JSON lines "
        "or Parquet table: the batch is made for the longest, and it is told when a larger one would fail.",
        metavar="FILE",
        of_search=True,
    ),
    Option(
        name="batching",
        field="batching",
        read=values.batching,
        help="How batches are made of samples of different lengths: shuffled and padded, grouped by length, "
        "or packed.",
        default="shuffled",
        choices=tuple(Batching),
        of_search=True,
    ),
    Option(
        name="max-batch",
        field="max_batch",
        read=whole_number(minimum=1),
        help="Largest batch size to consider.",
        default="65536",
        metavar="N",
        of_search=True,
    ),
    Option(
        name="margin",
        field="margin",
        read=values.margin,
        help="Share of the device's memory to keep free.",
        default="3%",
        metavar="PERCENT",
    ),
    Option(
        name="reserve",
        field="reserve_bytes",
        read=values.size_or_zero,
        help="Memory to leave to other processes on the device.",
        metavar="SIZE",
    ),
    Option(
        name="risk",
        field="risk",
        read=values.risk,
        help="Which level of a prediction has to fit: safe, the high end of its 95 % interval; likely, its "
        "likely peak; worst, the largest workspace of every convolution.",
        default="safe",
        choices=tuple(Risk),
        of_search=True,
    ),
    Option(
        name="objective",
        field="objective",
        read=values.objective,
        help="What the best has most of: samples per batch, or samples per second, measured or predicted.",
        default="batch",
        choices=tuple(Objective),
        of_search=True,
    ),
    Option(
        name="samples",
        field="epoch_samples",
        read=whole_number(minimum=1),
        help="Samples of an epoch: tells how long one takes, where the time of a step is predicted.",
        metavar="N",
    ),
    Option(
        name="soak-steps",
        field="soak_steps",
        read=whole_number(minimum=0),
        help="Steps for which the winner runs again in a fresh process; 0 for none.",
        default="20 on CUDA, 5 on the CPU",
        metavar="N",
        of_search=True,
    ),
    Option(
        name="max-trials",
        field="max_trials",
        read=whole_number(minimum=1),
        help="End after this many measured trials, including those of earlier runs.",
        metavar="N",
        of_search=True,
        decides=False,
    ),
    Option(
        name="max-seconds",
        field="max_seconds",
        read=values.seconds,
        help="End after this long; trials that are running then are stopped.",
        metavar="SECONDS",
        of_search=True,
        decides=False,
    ),
)
_PLACES = (
    Option(
        name="storage",
        field="storage",
        read=values.text,
        help="Where the study is kept: an Optuna URL, or a file ending in .journal.",
        default="in the state directory",
        metavar="URL",
        of_search=True,
        of_job=False,
        decides=False,
    ),
    Option(
        name="storage-wait",
        field="storage_wait_seconds",
        read=values.seconds_or_zero,
        help="How long to wait for a database that went away; 0 for not at all.",
        default="60",
        metavar="SECONDS",
        of_search=True,
        decides=False,
    ),
    Option(
        name="study",
        field="study",
        read=values.text,
        help="Name of the study to begin or resume.",
        default="follows from the settings",
        metavar="NAME",
        of_search=True,
    ),
    Option(
        name="dispatch",
        field="dispatch",
        read=values.one_of(DISPATCHES),
        help="What runs measured trials: Ray, or inline, this machine one after another without Ray.",
        default="ray; inline, with a note, where Ray cannot start",
        choices=DISPATCHES,
        of_search=True,
        of_job=False,
        decides=False,  # wherever a trial runs, its process is fresh
    ),
    Option(
        name="address",
        field="address",
        read=values.text,
        help="A Ray cluster to measure on.",
        default="a local one",
        metavar="ADDRESS",
        of_search=True,
        of_cluster=True,
        of_job=False,
        decides=False,  # which devices it leads to decides
    ),
    Option(
        name="resources",
        field="resources",
        read=values.resources,
        help="Custom Ray resources that every trial asks its node for.",
        metavar="NAME=NUM,…",
        of_search=True,
        of_cluster=True,
    ),
    Option(
        name="node-wait",
        field="node_wait_seconds",
        read=values.seconds_or_zero,
        help="How long to wait for a node that could run a trial; 0 for not at all.",
        default="30",
        metavar="SECONDS",
        of_search=True,
        of_cluster=True,
        decides=False,
    ),
    Option(
        name="fresh",
        field="fresh",
        read=switch,
        help="Ignore earlier answers, and begin the study anew.",
        is_switch=True,
        of_search=True,
        decides=False,
    ),
    Option(
        name="metrics-port",
        field="metrics_port",
        read=whole_number(minimum=0, maximum=65535),
        help="Serve Prometheus metrics on this port while it runs; 0 for any free port.",
        metavar="PORT",
        of_search=True,
        of_job=False,
        decides=False,
    ),
    Option(
        name="metrics-host",
        field="metrics_host",
        read=values.text,
        help="Address to serve metrics on.",
        default="127.0.0.1",
        metavar="HOST",
        of_search=True,
        of_job=False,
        decides=False,
    ),
    Option(
        name="deadline",
        field="deadline_seconds",
        read=values.seconds,
        help="How long one trial may take.",
        default="600",
        metavar="SECONDS",
        of_search=True,
        decides=False,
    ),
    Option(
        name="threads",
        field="num_threads",
        read=whole_number(minimum=1),
        help="Intra-op threads of a trial on the CPU.",
        default="one per core",
        metavar="N",
        of_search=True,
    ),
)
OPTIONS: dict[str, Option] = {
    option.name: option for option in (*_MODEL, *_CARD, *_VARIED, *_SEARCH, *_PLACES)
}
