"""Configuration of `accelerate launch`, as `accelerate config` writes it.

The keys are those of `ClusterConfig` in accelerate/commands/config/config_args.py, up to 1.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofit.written.files.yaml_file import YamlFile
from autofit.written.formats.format import Format
from autofit.written.formats.hugging_face import starts_as_ranks
from autofit.written.setting import Setting
from autofit.written.told import PARALLEL, Told
from autofit_workers.spec.knobs.compile import mode_of
from autofit_workers.spec.parallel_kinds import CP, FSDP, REPLICATE, TP

_TOOL = "Accelerate's configuration"
_PRECISIONS = {"fp32": "no", "amp-fp16": "fp16", "amp-bf16": "bf16"}
_SIZES = {REPLICATE: "dp_replicate_size", FSDP: "dp_shard_size", TP: "tp_size", CP: "cp_size"}


def _tell(setting: Setting, found: Mapping[str, Any]) -> Told:
    told = Told()
    if not found:
        told.values |= {"compute_environment": "LOCAL_MACHINE", "main_training_function": "main"}
    knobs, zero = setting.knobs, setting.parallel.zero
    told.values |= {
        "distributed_type": _distributed_type(setting),
        "num_processes": setting.num_ranks,
        "num_machines": setting.num_nodes,
        "use_cpu": not setting.on_gpu,
    }
    if setting.num_nodes > 1 and "machine_rank" not in found:
        told.values["machine_rank"] = 0
        told.notes.append("machine_rank is 0: each other machine needs a file with its own number")
    in_engine = knobs.precision == "bf16" and zero is not None  # DeepSpeed casts the model
    if in_engine or knobs.precision in _PRECISIONS:
        told.said.add("precision")
    told.values["mixed_precision"] = "bf16" if in_engine else _PRECISIONS.get(knobs.precision, "no")
    if knobs.compile or "dynamo_config" in found:
        mode = mode_of(knobs.compile) or "default"
        told.values["dynamo_config"] = (
            {"dynamo_backend": "INDUCTOR", "dynamo_mode": mode} if knobs.compile else {"dynamo_backend": "NO"}
        )
    told.said.add("compile")
    if setting.num_ranks > 1 and not setting.on_gpu:
        told.notes.append("on the CPU accelerate starts several ranks by mpirun alone: torchrun needs none")
    if starts_as_ranks(setting):
        told.said.add(PARALLEL)
    elif zero is not None:
        _tell_zero(told, setting)
    else:
        _tell_shards(told, setting, found)
    return told


def _distributed_type(setting: Setting) -> str:
    parallel = setting.parallel
    if parallel.zero is not None:
        return "DEEPSPEED"
    if parallel.fsdp1 is not None or parallel.degree(FSDP) > 1:
        return "FSDP"
    if setting.num_ranks == 1:
        return "NO"
    return "MULTI_GPU" if setting.on_gpu else "MULTI_CPU"


def _tell_zero(told: Told, setting: Setting) -> None:
    zero, knobs = setting.parallel.zero, setting.knobs
    assert zero is not None
    config: dict[str, Any] = {
        "zero_stage": zero.stage,
        "gradient_accumulation_steps": setting.accumulation,
        "offload_optimizer_device": "cpu" if zero.offloads else "none",
        "offload_param_device": "cpu" if zero.offloads and zero.stage == 3 else "none",
        "zero3_init_flag": zero.stage == 3,
    }
    if knobs.clip_grad_norm is not None:
        config["gradient_clipping"] = knobs.clip_grad_norm
        told.said.add("clip_grad_norm")
    told.say(PARALLEL, "grad_accumulation", deepspeed_config=config)


def _tell_shards(told: Told, setting: Setting, found: Mapping[str, Any]) -> None:
    """Says FSDP, and the sizes of a mesh that has other dimensions beside it."""
    parallel, checkpointing = setting.parallel, setting.knobs.checkpointing
    kinds = {kind for kind, _ in parallel.degrees}
    first = parallel.fsdp1
    if first is None and not (FSDP in kinds and kinds <= _SIZES.keys()):
        return
    config: dict[str, Any] = {"fsdp_version": 2 if first is None else 1}
    if first is None:
        config |= {"fsdp_reshard_after_forward": True, "fsdp_state_dict_type": "SHARDED_STATE_DICT"}
    else:
        config |= {
            "fsdp_reshard_after_forward": first.strategy,
            "fsdp_use_orig_params": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    config |= {
        "fsdp_offload_params": parallel.offloads,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_activation_checkpointing": checkpointing == "blocks",
    }
    if checkpointing in ("none", "blocks"):
        told.said.add("checkpointing")
    told.say(PARALLEL, fsdp_config=config)
    if (kinds - {FSDP} and first is None) or "parallelism_config" in found:
        told.values["parallelism_config"] = {
            f"parallelism_config_{size}": parallel.degree(kind) for kind, size in _SIZES.items()
        }


FORMAT = Format(
    name="accelerate",
    tool=_TOOL,
    use="accelerate launch --config_file FILE train.py",
    file=YamlFile(frozenset(("compute_environment", "distributed_type", "num_processes")), _TOOL),
    tell=_tell,
    of_training=False,
)
