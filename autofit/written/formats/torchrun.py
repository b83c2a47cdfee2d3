"""Command line of torchrun, in a shell script; the options are those of torch/distributed/run.py."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from autofit.written.files.command import ARGUMENTS, OPTIONS, REST, CommandFile
from autofit.written.formats.format import Format
from autofit.written.formats.hugging_face import starts_as_ranks
from autofit.written.setting import Setting
from autofit.written.told import BATCH_SIZE, PARALLEL, Told

_NO_SCRIPT = "train.py"


def _tell(setting: Setting, _found: Mapping[str, Any]) -> Told:
    told, script = Told(), setting.script
    told.values[OPTIONS] = {"--nnodes": setting.num_nodes, "--nproc-per-node": setting.ranks_per_node}
    if starts_as_ranks(setting):
        told.said.add(PARALLEL)
    elif setting.num_ranks > 1:
        told.notes.append(f"torchrun starts the ranks; that they train as {setting.parallel} is the script's")
        told.said.add(PARALLEL)
    if script is None:
        told.values[REST] = _NO_SCRIPT
        return told
    told.values[REST] = shlex.join(script.words)
    if script.batch_argument is not None:
        told.values[ARGUMENTS] = {script.batch_argument.rstrip("="): setting.batch_size}
        told.said.add(BATCH_SIZE)
    return told


FORMAT = Format(
    name="torchrun",
    tool="torchrun's command line",
    use="bash FILE",
    file=CommandFile(
        command=re.compile(
            r"(?m)(?<![\w./-])(?:\S*/)?(?:torchrun|python3? -m torch\.distributed\.run)(?![\w.-])"
        ),
        name="torchrun",
    ),
    tell=_tell,
    of_training=False,
)
