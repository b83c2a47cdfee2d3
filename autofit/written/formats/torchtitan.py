"""Overrides of torchtitan's command line, an argument a line.

The options are those of torchtitan/config/configs.py and torchtitan/trainer.py of 0.3. tyro, which reads
them, wants a choice such as `activation-checkpoint:full` after all options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autofit.written.files.lines import LinesFile
from autofit.written.formats.format import Format
from autofit.written.formats.hugging_face import say_of_ranks
from autofit.written.setting import Setting
from autofit.written.told import BATCH_SIZE, PARALLEL, REMOVED, Told
from autofit_workers.spec.knobs.compile import mode_of
from autofit_workers.spec.parallel_kinds import CP, DDP, EP, FSDP, PP, REPLICATE, TP

_TYPES = {
    "fp32": ("float32", "float32"),
    "amp-bf16": ("float32", "bfloat16"),
    "bf16": ("bfloat16", "bfloat16"),
}
_IMPLEMENTATIONS = {"foreach": "foreach", "fused": "fused", "loop": "for-loop"}
_CHECKPOINTINGS = {"none": "none", "blocks": "full"}
_KINDS = {DDP, REPLICATE, FSDP, TP, PP, CP, EP}


def _tell(setting: Setting, _found: Mapping[str, Any]) -> Told:
    told, knobs = Told(), setting.knobs
    options: dict[str, Any] = {
        "training.local_batch_size": setting.loaded,
        "training.global_batch_size": setting.samples_per_step,
    }
    told.said |= {BATCH_SIZE, "grad_accumulation"}
    if knobs.seq_len is not None:
        options["training.seq_len"] = knobs.seq_len
        told.said.add("seq_len")
    if knobs.precision in _TYPES:
        options["training.dtype"], options["training.mixed_precision_param"] = _TYPES[knobs.precision]
        told.said.add("precision")
    if knobs.clip_grad_norm is not None:
        options["training.max_norm"] = knobs.clip_grad_norm
        told.said.add("clip_grad_norm")
    if knobs.optimizer_impl in _IMPLEMENTATIONS:
        options["optimizer.implementation"] = _IMPLEMENTATIONS[knobs.optimizer_impl]
        told.said.add("optimizer_impl")
    options |= _parallelism(told, setting)
    options |= {
        "compile.enable": None if knobs.compile else REMOVED,
        "compile.no_enable": REMOVED if knobs.compile else None,
    }
    if mode_of(knobs.compile) is None:  # torchtitan has no key for a mode
        told.said.add("compile")
    told.values |= {f"--{key}": value for key, value in options.items()}
    _tell_checkpointing(told, setting)
    say_of_ranks(told, setting, "torchrun")
    return told


def _parallelism(told: Told, setting: Setting) -> dict[str, Any]:
    parallel = setting.parallel
    if not {kind for kind, _ in parallel.degrees} <= _KINDS:
        return {}
    told.said.add(PARALLEL)
    degrees: dict[str, Any] = {
        "data_parallel_replicate_degree": parallel.degree(DDP) * parallel.degree(REPLICATE),
        "data_parallel_shard_degree": parallel.degree(FSDP),
        "tensor_parallel_degree": parallel.degree(TP),
        "context_parallel_degree": parallel.degree(CP),
        "pipeline_parallel_degree": parallel.degree(PP),
        "expert_parallel_degree": parallel.degree(EP),
    }
    if parallel.pipeline is not None:
        degrees["pipeline_parallel_schedule"] = parallel.pipeline.class_name.removeprefix("Schedule")
        degrees["pipeline_parallel_microbatch_size"] = setting.batch_size
    options = {f"parallelism.{key}": value for key, value in degrees.items()}
    if parallel.offloads_shards:
        options["training.enable_cpu_offload"] = None
    return options


def _tell_checkpointing(told: Told, setting: Setting) -> None:
    """Says the choice of activation checkpointing, in place of any that the file has."""
    knobs = setting.knobs
    name = _CHECKPOINTINGS.get(knobs.checkpointing)
    budget = knobs.activation_budget
    if budget is not None and knobs.checkpointing == "none":
        name = "memory-budget"
        told.say("activation_budget")
    choices = ("none", "full", "selective", "memory-budget")
    told.values |= {f"activation-checkpoint:{each}": REMOVED for each in choices}
    if name is None:
        return
    told.say("checkpointing")
    told.values[f"activation-checkpoint:{name}"] = None
    if name == "memory-budget":
        told.values["--activation-checkpoint.memory-budget"] = budget


FORMAT = Format(
    name="torchtitan",
    tool="torchtitan's command line",
    use="./run_train.sh $(cat FILE)",
    file=LinesFile(
        form=re.compile(r"(?P<before>\s*)(?P<key>--[\w.-]+|[\w.-]+:[\w-]+)(?:[= ]\s*(?P<value>.*?))?\s*"),
        example="option, such as --training.seq_len=2048",
        last=re.compile(r"\s*(--)?activation[-_]checkpoint[.:].*"),
    ),
    tell=_tell,
)
