"""Configuration of LLaMA-Factory; the keys are those of llamafactory/hparams of 0.9.5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofit.written.files.yaml_file import YamlFile
from autofit.written.formats import hugging_face as hf
from autofit.written.formats.format import Format
from autofit.written.setting import Setting
from autofit.written.told import Told
from autofit_workers.spec.knobs.adapter import split_adapter

_TOOL = "LLaMA-Factory's configuration"
_ATTENTIONS = {"eager": "disabled", "fa2": "fa2", "fa3": "fa3"}
_LORA = {
    "r": "lora_rank",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "targets": "lora_target",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target",
    "use_dora": "use_dora",
    "use_rslora": "use_rslora",
}
_VARIANTS = {"dora": {"use_dora": True}, "rslora": {"use_rslora": True}}
_BASES: dict[str, dict[str, Any]] = {
    "nf4": {"quantization_bit": 4, "quantization_type": "nf4", "double_quantization": False},
    "nf4-dq": {"quantization_bit": 4, "quantization_type": "nf4", "double_quantization": True},
    "fp4": {"quantization_bit": 4, "quantization_type": "fp4", "double_quantization": False},
    "int8": {"quantization_bit": 8},
}


def _tell(setting: Setting, _found: Mapping[str, Any]) -> Told:
    told, knobs = Told(), setting.knobs
    hf.tell_batches(told, setting, "per_device_train_batch_size")
    if knobs.seq_len is not None:
        told.say("seq_len", cutoff_len=knobs.seq_len)
    hf.tell_precision(told, setting)
    if knobs.precision == "bf16":
        told.say("precision", bf16=True, pure_bf16=True)
    if knobs.attention in _ATTENTIONS:
        told.say("attention", flash_attn=_ATTENTIONS[knobs.attention])
    hf.tell_parallel(told, setting)
    _tell_checkpointing(told, setting)
    hf.tell_compile(told, setting)
    hf.tell_optimizer(told, setting, "optim")
    hf.tell_clipping(told, setting)
    if knobs.kernels == "liger":
        told.say("kernels", enable_liger_kernel=True)
    if knobs.batch_layout.startswith("packed"):
        told.say("batch_layout", packing=True, neat_packing=True)
    _tell_adapter(told, setting)
    return told


def _tell_checkpointing(told: Told, setting: Setting) -> None:
    """Says checkpointing by LLaMA-Factory's own keys: it checkpoints each block unless it is told not to."""
    kind = setting.knobs.checkpointing
    is_on = kind in ("blocks", "blocks-reentrant")
    told.values["disable_gradient_checkpointing"] = not is_on
    if is_on:
        told.values["use_reentrant_gc"] = kind == "blocks-reentrant"
    if is_on or kind == "none":
        told.said.add("checkpointing")


def _tell_adapter(told: Told, setting: Setting) -> None:
    knobs = setting.knobs
    if knobs.base in _BASES:
        told.say("base", **_BASES[knobs.base])
    if knobs.adapter is None:
        told.values["finetuning_type"] = "full"  # its default is LoRA
        return
    method, options = split_adapter(knobs.adapter)
    options = {**options, **_VARIANTS.get(method, {})}
    if method not in ("lora", *_VARIANTS) or not options.keys() <= _LORA.keys():
        return
    values = {_LORA[key]: value for key, value in options.items()}
    targets = values.get("lora_target")
    if targets is not None:
        values["lora_target"] = "all" if targets == "all-linear" else _joined(targets)
    told.say("adapter", finetuning_type="lora", **values)


def _joined(targets: object) -> str:
    return ",".join(map(str, targets)) if isinstance(targets, list) else str(targets)


FORMAT = Format(
    name="llama-factory",
    tool=_TOOL,
    use="llamafactory-cli train FILE",
    file=YamlFile(
        frozenset(("model_name_or_path", "stage", "finetuning_type", "template", "cutoff_len", "do_train")),
        _TOOL,
    ),
    tell=_tell,
)
