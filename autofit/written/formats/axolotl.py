"""Configuration of Axolotl; the keys are those of axolotl/utils/schemas of 0.19."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofit.written.files.yaml_file import YamlFile
from autofit.written.formats import hugging_face as hf
from autofit.written.formats.format import Format
from autofit.written.setting import Setting
from autofit.written.told import PARALLEL, Told
from autofit_workers.spec.knobs.adapter import split_adapter
from autofit_workers.spec.knobs.attention import IMPLEMENTATIONS
from autofit_workers.spec.parallel_kinds import CP, DDP, FSDP, REPLICATE, TP

_TOOL = "Axolotl's configuration"
_SIZES = {
    REPLICATE: "dp_replicate_size",
    FSDP: "dp_shard_size",
    TP: "tensor_parallel_size",
    CP: "context_parallel_size",
}
_OWN_OPTIMIZERS = {"muon": "muon", "adamw-kahan": "optimi_adamw"}
_LORA = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "use_dora": "peft_use_dora",
}


def _tell(setting: Setting, _found: Mapping[str, Any]) -> Told:
    told, knobs = Told(), setting.knobs
    hf.tell_batches(told, setting, "micro_batch_size")
    if knobs.seq_len is not None:
        told.say("seq_len", sequence_len=knobs.seq_len)
    hf.tell_precision(told, setting)
    if knobs.precision == "bf16":
        told.say("precision", bf16=False, bfloat16=True)
    if knobs.attention in IMPLEMENTATIONS:
        told.say("attention", attn_implementation=IMPLEMENTATIONS[knobs.attention].name)
    _tell_parallel(told, setting)
    hf.tell_checkpointing(told, setting)
    hf.tell_compile(told, setting)
    hf.tell_optimizer(told, setting, "optimizer")
    if knobs.optimizer in _OWN_OPTIMIZERS:
        told.say("optimizer", optimizer=_OWN_OPTIMIZERS[knobs.optimizer])
    hf.tell_clipping(told, setting)
    _tell_layout(told, setting)
    _tell_adapter(told, setting)
    return told


def _tell_parallel(told: Told, setting: Setting) -> None:
    parallel = setting.parallel
    kinds = {kind for kind, _ in parallel.degrees}
    if hf.starts_as_ranks(setting):
        told.said.add(PARALLEL)
        if DDP in kinds:
            told.values["dp_replicate_size"] = parallel.degree(DDP)
    elif (engine := hf.engine_config(setting)) is not None:
        told.say(PARALLEL, deepspeed=engine)
    elif FSDP in kinds and kinds <= _SIZES.keys():
        config = {"offload_params": parallel.offloads_shards, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
        sizes = {_SIZES[kind]: degree for kind, degree in parallel.degrees}
        told.say(PARALLEL, fsdp_version=2, fsdp_config={**config, "reshard_after_forward": True}, **sizes)
    if setting.num_ranks > 1:
        told.notes.append(f"{setting.num_ranks} ranks are started by axolotl train or another launcher")


def _tell_layout(told: Told, setting: Setting) -> None:
    kind = setting.knobs.batch_layout.partition(":")[0]
    if kind == "packed":
        told.say("batch_layout", sample_packing=True)
    elif kind == "padding-free":
        told.say("batch_layout", batch_flattening=True)


def _tell_adapter(told: Told, setting: Setting) -> None:
    """Says LoRA by the keys that Axolotl has for its options, and weights of few bits by bitsandbytes."""
    knobs = setting.knobs
    if knobs.adapter is None:
        return
    method, options = split_adapter(knobs.adapter)
    options = {
        {"alpha": "lora_alpha", "dropout": "lora_dropout", "targets": "target_modules"}.get(key, key): value
        for key, value in options.items()
    }
    targets = options.pop("target_modules", None)
    method, variant = ("lora", {"use_dora": True}) if method == "dora" else (method, {})
    options |= variant
    if method != "lora" or not options.keys() <= _LORA.keys() or knobs.base not in _BASES:
        return
    told.say("adapter", "base", **{_LORA[key]: value for key, value in options.items()}, **_BASES[knobs.base])
    if targets == "all-linear":
        told.values["lora_target_linear"] = True
    elif targets is not None:
        told.values["lora_target_modules"] = targets if isinstance(targets, list) else [targets]


# `qlora` quantizes the scales too, with the type nf4 (axolotl/loaders/model.py).
_BASES: dict[str | None, dict[str, Any]] = {
    None: {"adapter": "lora"},
    "nf4-dq": {"adapter": "qlora", "load_in_4bit": True},
    "int8": {"adapter": "lora", "load_in_8bit": True},
}

FORMAT = Format(
    name="axolotl",
    tool=_TOOL,
    use="axolotl train FILE",
    file=YamlFile(
        frozenset(("base_model", "micro_batch_size", "datasets", "sequence_len", "sample_packing")), _TOOL
    ),
    tell=_tell,
)
