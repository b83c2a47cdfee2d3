"""Options of `autofit tune` for the workload: a model, or a script with its arguments."""

from __future__ import annotations

from autofit.settings import values
from autofit.settings.options.option import SETUP, Option, Topic
from autofit_workers.spec.knobs.knob import switch, whole_number
from autofit_workers.spec.setup import MOST_RANKS
from autofit_workers.spec.workloads.launcher_commands import LAUNCHERS
from autofit_workers.spec.workloads.tasks import TASK_NAMES

WORKLOAD = (
    Option(
        name="model",
        topic=Topic.MODEL,
        is_common=True,
        field="model",
        read=values.text,
        help="A built-in's name (see `autofit models`), torchvision:NAME, timm:NAME[?KEY=VALUE&...], "
        "hf:NAME-or-config, package.module:attribute or path/file.py:attribute.",
        metavar="MODEL",
        choice="workload",
        decides=False,  # what it refers to decides
    ),
    Option(
        name="input",
        topic=Topic.MODEL,
        field="input_shape",
        read=values.shape,
        help="Shape of one sample, such as 3x224x224, where MODEL is an nn.Module.",
        metavar="SHAPE",
    ),
    Option(
        name="classes",
        topic=Topic.MODEL,
        field="num_classes",
        read=whole_number(minimum=1),
        help="Number of classes of the labels that go with --input.",
        metavar="N",
    ),
    Option(
        name="task",
        topic=Topic.MODEL,
        field="task",
        read=values.one_of(TASK_NAMES),
        help="What a hf: model is trained for, instead of what its configuration's architectures name.",
        metavar="NAME",
        choices=TASK_NAMES,
    ),
    Option(
        name="script",
        topic=Topic.SCRIPT,
        is_common=True,
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
        topic=Topic.SCRIPT,
        field="script_arguments",
        read=values.arguments,
        help="One argument for the script. Repeatable.",
        metavar="ARG",
        of_scripts=True,
    ),
    Option(
        name="batch-arg",
        topic=Topic.SCRIPT,
        field="batch_argument",
        read=values.text,
        help="The script's argument that takes the batch size, such as --batch-size. One that ends in = is "
        "joined with the size.",
        metavar="ARG",
        of_scripts=True,
    ),
    Option(
        name="batch-env",
        topic=Topic.SCRIPT,
        field="batch_variable",
        read=values.text,
        help="The environment variable that takes the batch size, instead of an argument.",
        metavar="NAME",
        of_scripts=True,
    ),
    Option(
        name="batch-name",
        topic=Topic.SCRIPT,
        field="batch_name",
        read=values.text,
        help="The constant in the script's code that is its batch size. With none of the three, the batch "
        "size of its data loader is changed.",
        metavar="NAME",
        of_scripts=True,
    ),
    Option(
        name="nproc",
        topic=Topic.SCRIPT,
        field="num_processes",
        read=whole_number(minimum=1, maximum=MOST_RANKS),
        help="Ranks on each machine: of the script that a launcher starts, one of which is predicted, or of "
        "--search parallel=KIND,…, where hsdp, and kinds joined by + as in fsdp+tp, take every split.",
        metavar="N",
    ),
    Option(
        name="nnodes",
        topic=Topic.SCRIPT,
        field="num_nodes",
        read=whole_number(minimum=1, maximum=MOST_RANKS),
        help="Machines with so many ranks each: where a launcher starts the script, or measured trials run; "
        "hsdp without degrees then shards within one.",
        default="1",
        metavar="N",
    ),
    Option(
        name="launcher",
        topic=Topic.SCRIPT,
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
        topic=Topic.SCRIPT,
        field="keeps_trackers",
        read=switch,
        help="Let the script log to wandb, TensorBoard and other trackers while it is tried.",
        is_switch=True,
        of_scripts=True,
        decides=False,
    ),
    Option(
        name="allow-network",
        topic=Topic.LIMITS,
        field=SETUP + "allows_network",
        read=switch,
        help="Let a workload use the network while it is predicted.",
        is_switch=True,
    ),
    Option(
        name="allow-subprocesses",
        topic=Topic.LIMITS,
        field=SETUP + "allows_subprocesses",
        read=switch,
        help="Let a script start any process while it is predicted, also where nothing keeps what that does "
        "from taking effect.",
        is_switch=True,
    ),
    Option(
        name="keep-env",
        topic=Topic.LIMITS,
        field=SETUP + "kept_variables",
        read=values.names,
        help="A variable of the environment that a workload gets though it may hold a secret, while it is "
        "predicted. Repeatable.",
        metavar="NAME",
    ),
    Option(
        name="max-host-memory",
        topic=Topic.LIMITS,
        field=SETUP + "most_host_bytes",
        read=values.size,
        help="Memory of this machine that a workload may take while it is predicted.",
        default="half of what is available",
        metavar="SIZE",
    ),
)
