"""Environment variables, a `KEY=value` a line, as `.env` files and shells have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autofit.written.files.lines import LinesFile
from autofit.written.formats.format import Format
from autofit.written.setting import Setting
from autofit.written.told import BATCH_SIZE, Told
from autofit_workers.spec.knobs.allocator import allocator_conf, conf_variable

# Overrides what PyTorch takes matrix products of fp32 in (aten/src/ATen/Context.cpp).
_TF32 = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"


def _tell(setting: Setting, found: Mapping[str, Any]) -> Told:
    told, knobs = Told(), setting.knobs
    conf, variable = allocator_conf(knobs.allocator), conf_variable(setting.torch_release)
    before = found.get(variable, "").strip("\"'")
    if conf:
        told.say("allocator", **{variable: _with(before, conf)})
    elif before:
        told.notes.append(
            f"{variable}={before} stays, but the setting was found with the allocator's defaults"
        )
    if knobs.precision == "tf32":
        told.say("precision", **{_TF32: 1})
    script = setting.script
    if script is not None and script.batch_variable is not None:
        told.values[script.batch_variable] = setting.batch_size
        told.said.add(BATCH_SIZE)
    return told


def _with(before: str, conf: str) -> str:
    """Options of the allocator, `NAME:VALUE,…`, with one of them changed or added."""
    name = conf.partition(":")[0]
    kept = (each for each in before.split(",") if each and each.partition(":")[0] != name)
    return ",".join((*kept, conf))


FORMAT = Format(
    name="env",
    tool="The environment",
    use="set -a; . ./FILE",
    file=LinesFile(
        form=re.compile(r"(?P<before>\s*(?:export\s+)?)(?P<key>[A-Za-z_]\w*)=(?P<value>.*)"),
        example="variable, such as PYTORCH_ALLOC_CONF=expandable_segments:True",
    ),
    tell=_tell,
    of_training=False,
)
