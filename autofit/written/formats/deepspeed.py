"""DeepSpeed's ds_config.json; the keys are those of deepspeed/runtime/config.py, up to 0.19."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofit.written.files.json_file import JsonFile
from autofit.written.formats.format import Format
from autofit.written.formats.hugging_face import say_of_ranks, starts_as_ranks
from autofit.written.setting import Setting
from autofit.written.told import PARALLEL, REMOVED, Told
from autofit_workers.spec.knobs.deepspeed_config import PRECISION_SECTIONS, deepspeed_config
from autofit_workers.spec.parallel_kinds import Zero

_TOOL = "DeepSpeed's configuration"
_OFF = {"enabled": False}
_WITHOUT_ZERO = Zero(stage=0)
# Without ZeRO its engine keeps no weights in float32 beside those in bfloat16.
_ALWAYS_SAID = ("fp32", "amp-fp16", "amp-bf16")


def _tell(setting: Setting, found: Mapping[str, Any]) -> Told:
    told, knobs, zero = Told(), setting.knobs, setting.parallel.zero
    config = deepspeed_config(zero or _WITHOUT_ZERO, knobs, setting.loaded, setting.accumulation)
    for section in ("fp16", "bf16"):
        if section in found and section not in config:
            config[section] = dict(_OFF)
    if zero is None and knobs.precision not in _ALWAYS_SAID:
        config.pop("bf16", None)
    elif knobs.precision in PRECISION_SECTIONS or knobs.precision == "fp32":
        told.said.add("precision")
    if "train_batch_size" in found:
        config["train_batch_size"] = REMOVED
        told.notes.append(
            "train_batch_size is taken out: DeepSpeed multiplies the batch of a GPU, the accumulated batches "
            "and the ranks itself, and stops where a number differs"
        )
    told.say("batch_size", "grad_accumulation", "clip_grad_norm", **config)
    if zero is not None or starts_as_ranks(setting):
        told.said.add(PARALLEL)
    if knobs.optimizer is not None:
        told.said.add("optimizer")
        told.notes.append(
            f"the optimizer {knobs.optimizer} is left to the script, to deepspeed.initialize(optimizer=…)"
            + (f": the file names {found['optimizer']}" if "optimizer" in found else "")
        )
    say_of_ranks(told, setting, "the deepspeed command or another launcher")
    return told


FORMAT = Format(
    name="deepspeed",
    tool=_TOOL,
    use='deepspeed.initialize(model=model, optimizer=optimizer, config="FILE")',
    file=JsonFile(
        frozenset(("train_micro_batch_size_per_gpu", "train_batch_size", "zero_optimization")), _TOOL
    ),
    tell=_tell,
)
