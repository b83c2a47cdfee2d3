"""Settings of the workload: a model, or a script with its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from autofit.settings import values
from autofit.settings.options.option import Option, Topic
from autofit_workers.spec.knobs.knob import switch, whole_number
from autofit_workers.spec.setup import MOST_RANKS
from autofit_workers.spec.workloads.launcher_commands import LAUNCHERS
from autofit_workers.spec.workloads.tasks import TASK_NAMES

_of_script = partial(Option, topic=Topic.SCRIPT, of_scripts=True)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class WorkloadSettings:
    """Settings of the workload: a model, or a script with its arguments and ranks (processes).

    All are options of `autofit tune`. With a `script`, `model` is the script's path too. Without a
    `launcher`, torchrun starts the script's ranks.
    """

    model: str = Option(
        values.text,
        "A built-in's name (see `autofit models`), torchvision:NAME, timm:NAME[?KEY=VALUE&...], "
        "hf:NAME-or-config, package.module:attribute or path/file.py:attribute.",
        topic=Topic.MODEL,
        is_common=True,
        metavar="MODEL",
        choice="workload",
        decides=False,  # the answer depends on the model's code, not on its name
    ).required()
    input_shape: tuple[int, ...] | None = Option(
        values.shape,
        "Shape of one sample, such as 3x224x224, where MODEL is an nn.Module.",
        name="input",
        topic=Topic.MODEL,
        metavar="SHAPE",
    ).with_default(None)
    num_classes: int | None = Option(
        whole_number(minimum=1),
        "Number of classes of the labels that go with --input.",
        name="classes",
        topic=Topic.MODEL,
        metavar="N",
    ).with_default(None)
    task: str | None = Option(
        values.one_of(TASK_NAMES),
        "What a hf: model is trained for, instead of what its configuration's architectures name.",
        topic=Topic.MODEL,
        metavar="NAME",
        choices=TASK_NAMES,
    ).with_default(None)
    script: str | None = Option(
        values.text,
        "A training script, run as it is until some optimizer steps are done, instead of --model; or a "
        "program beside autofit, such as tune, or '-m MODULE'.",
        topic=Topic.SCRIPT,
        is_common=True,
        metavar="FILE",
        choice="workload",
        decides=False,
    ).with_default(None)
    script_arguments: tuple[str, ...] = _of_script(
        values.arguments, "One argument for the script. Repeatable.", name="script-arg", metavar="ARG"
    ).with_default(())
    batch_argument: str | None = _of_script(
        values.text,
        "The script's argument that takes the batch size, such as --batch-size. One that ends in = is "
        "joined with the size.",
        name="batch-arg",
        metavar="ARG",
    ).with_default(None)
    batch_variable: str | None = _of_script(
        values.text,
        "The environment variable that takes the batch size, instead of an argument.",
        name="batch-env",
        metavar="NAME",
    ).with_default(None)
    batch_name: str | None = _of_script(
        values.text,
        "The constant in the script's code that is its batch size. With none of the three, the batch "
        "size of its data loader is changed.",
        metavar="NAME",
    ).with_default(None)
    keeps_trackers: bool = _of_script(
        switch,
        "Let the script log to wandb, TensorBoard and other trackers while it is tried.",
        name="keep-trackers",
        is_switch=True,
        decides=False,
    ).with_default(False)
    num_processes: int | None = Option(
        whole_number(minimum=1, maximum=MOST_RANKS),
        "Ranks on each machine: of the script that a launcher starts, one of which is predicted, or of "
        "--search parallel=KIND,…, where hsdp, and kinds joined by + as in fsdp+tp, take every split.",
        name="nproc",
        topic=Topic.SCRIPT,
        metavar="N",
    ).with_default(None)
    num_nodes: int = Option(
        whole_number(minimum=1, maximum=MOST_RANKS),
        "Machines with so many ranks each: where a launcher starts the script, or measured trials run; "
        "hsdp without degrees then shards within one.",
        name="nnodes",
        topic=Topic.SCRIPT,
        metavar="N",
    ).with_default(1)
    launcher: str | None = _of_script(
        values.launcher,
        "What starts the script: torchrun, accelerate or deepspeed, and options of its own, as in "
        "'accelerate --config_file fsdp.yaml'.",
        default="torchrun, with --nproc",
        metavar="LAUNCHER",
        choices=LAUNCHERS,
    ).with_default(None)

    @property
    def num_ranks_of_script(self) -> int:
        """Number of ranks (processes) that `--nproc` and `--nnodes` ask for; 1 without a script.

        A launcher of the script's own may start another number, which is known only in the run.
        """
        return 1 if self.script is None else (self.num_processes or 1) * self.num_nodes

    @property
    def num_nodes_of_trials(self) -> int:
        """Number of nodes over which the ranks of a measured run are spread.

        It is 1 for a script, which is only predicted if it has several ranks.
        """
        return self.num_nodes if self.script is None else 1

    @property
    def says_of_a_sample(self) -> bool:
        """Whether an option describes a sample: `--input` (its shape), `--classes` or `--task`."""
        return any(value is not None for value in (self.input_shape, self.num_classes, self.task))
