"""Keys that transformers' TrainingArguments have, and tools that are built on them."""

from __future__ import annotations

from typing import Any

from autofit.written.setting import Setting
from autofit.written.told import PARALLEL, Told
from autofit_workers.spec.knobs.compile import mode_of
from autofit_workers.spec.knobs.deepspeed_config import deepspeed_config
from autofit_workers.spec.knobs.optimizer import NAMED
from autofit_workers.spec.parallel_kinds import DDP, FSDP, SCRIPT

# Names of `OptimizerNames` in transformers/training_args.py, for the optimizers that run the same class.
OPTIMIZERS = {
    "adamw": "adamw_torch",
    "rmsprop": "rmsprop",
    "adagrad": "adagrad",
    "sgd": "sgd",
    "lion": "lion_32bit",
    "lion8bit": "lion_8bit",
    "adamw8bit": "adamw_bnb_8bit",
    "paged-adamw8bit": "paged_adamw_8bit",
    "adamw8bit-torchao": "adamw_torch_8bit",
    "adamw4bit-torchao": "adamw_torch_4bit",
}
_PROJECTING = "galore-adamw"


def tell_precision(told: Told, setting: Setting) -> None:
    """Says mixed precision and TF32; a model that is bfloat16 itself has no key."""
    precision = setting.knobs.precision
    in_engine = precision == "bf16" and setting.parallel.zero is not None  # DeepSpeed casts the model
    told.values |= {"bf16": precision == "amp-bf16" or in_engine, "fp16": precision == "amp-fp16"}
    if precision in ("tf32", "ieee-fp32"):
        told.values["tf32"] = precision == "tf32"
    if precision != "bf16" or in_engine:
        told.said.add("precision")


def tell_checkpointing(told: Told, setting: Setting) -> None:
    """Says activation checkpointing of each block, under the name that all releases up to 5.x know."""
    kind = setting.knobs.checkpointing
    is_on = kind in ("blocks", "blocks-reentrant")
    in_fsdp = is_on and "fsdp_config" in told.values  # else a block's parameters are gathered twice
    told.values["gradient_checkpointing"] = is_on and not in_fsdp
    if in_fsdp:
        told.values["fsdp_config"]["activation_checkpointing"] = True
    elif is_on:
        told.values["gradient_checkpointing_kwargs"] = {"use_reentrant": kind == "blocks-reentrant"}
    if is_on or kind == "none":
        told.said.add("checkpointing")


def tell_optimizer(told: Told, setting: Setting, key: str) -> None:
    """Says the optimizer by transformers' name for it, if it has one.

    Args:
        key: key of the optimizer's name.
    """
    knobs = setting.knobs
    name = OPTIMIZERS.get(knobs.optimizer or "")
    if knobs.optimizer == _PROJECTING:
        hidden = NAMED[_PROJECTING].hidden
        told.values |= {
            key: "galore_adamw",
            "optim_args": ", ".join(f"{option}={value}" for option, value in hidden.items()),
            "optim_target_modules": "all-linear",
        }
        told.said.add("optimizer")
    if name is None:
        return
    if name == "adamw_torch" and knobs.optimizer_impl == "fused":
        name = "adamw_torch_fused"
        told.said.add("optimizer_impl")
    told.say("optimizer", **{key: name})


def tell_clipping(told: Told, setting: Setting) -> None:
    """Says the norm that gradients are clipped to; without one, the tool's own default stays."""
    if setting.knobs.clip_grad_norm is not None:
        told.say("clip_grad_norm", max_grad_norm=setting.knobs.clip_grad_norm)


def tell_batches(told: Told, setting: Setting, key: str) -> None:
    """Says the batch size of a rank, and the accumulated batches.

    Args:
        key: key of the batch size.
    """
    told.say("batch_size", "grad_accumulation", **{key: setting.loaded})
    told.values["gradient_accumulation_steps"] = setting.accumulation


def tell_compile(told: Told, setting: Setting) -> None:
    """Says whether the model is compiled, and in which mode."""
    told.say("compile", torch_compile=bool(setting.knobs.compile))
    if (mode := mode_of(setting.knobs.compile)) is not None:
        told.values["torch_compile_mode"] = mode


def engine_config(setting: Setting) -> dict[str, Any] | None:
    """DeepSpeed's configuration within one of transformers, which fills in `auto`; None without ZeRO."""
    zero = setting.parallel.zero
    if zero is None:
        return None
    config = deepspeed_config(zero, setting.knobs, setting.batch_size, setting.accumulation)
    for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"):
        config[key] = "auto"
    return config


def starts_as_ranks(setting: Setting) -> bool:
    """Whether ranks need no key beside the launcher's: replicas, or what a script does itself."""
    return all(kind in (DDP, SCRIPT) for kind, _ in setting.parallel.degrees)


def shards_alone(setting: Setting) -> bool:
    """Whether `fully_shard` alone shares the work, without replicas or other kinds."""
    return [kind for kind, _ in setting.parallel.degrees] == [FSDP]


def say_of_ranks(told: Told, setting: Setting, starter: str) -> None:
    """Notes how many ranks are to be started, as no key of the file starts them.

    Args:
        starter: command that starts them.
    """
    if setting.num_ranks > 1:
        told.notes.append(
            f"{setting.num_ranks} ranks are started by {starter}, not by this file: the formats "
            "torchrun and accelerate start them"
        )


def tell_parallel(told: Told, setting: Setting) -> None:
    """Says sharding by FSDP or ZeRO as TrainingArguments do; ranks themselves are their launcher's."""
    parallel = setting.parallel
    if starts_as_ranks(setting):
        told.said.add(PARALLEL)
    elif (engine := engine_config(setting)) is not None:
        told.say(PARALLEL, deepspeed=engine)
    elif shards_alone(setting):
        offload = " offload" if parallel.offloads_shards else ""
        told.say(PARALLEL, fsdp=f"full_shard auto_wrap{offload}", fsdp_config={"version": 2})
    elif (first := parallel.fsdp1) is not None and first.strategy != "NO_SHARD":
        strategy = first.strategy.lower()
        offload = " offload" if first.offloads else ""
        told.say(PARALLEL, fsdp=f"{strategy} auto_wrap{offload}", fsdp_config={"version": 1})
    say_of_ranks(told, setting, "a launcher")
