"""Spreads a model over the ranks of a mesh, by PyTorch's own functions and a library's own plans.

    tp      what the model says of itself: transformers' own tensor parallelism, else a plan of PyTorch's
            styles (`tp_plan`), which `parallelize_module` takes
    fsdp    `fully_shard`: each repeated block by itself, then the model around them
    pp      the stages that `pipelining.cut` left to this rank
    hsdp    the same, on a mesh of two dimensions
    fsdp1   `FullyShardedDataParallel`, see `fsdp1`

It is called with a process group that is there; whether its ranks are does not matter here.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from workers.apply import fsdp1, zero
from workers.apply.checkpointing import repeated_blocks
from workers.apply.pipelining import LeftOut, Pipelined
from workers.apply.setting import AUTOCAST_DTYPES
from workers.errors import InapplicableError
from workers.setup import CP, FSDP, FSDP_CP, PP, REPLICATE, TP, Parallel

_Apply = Callable[[torch.nn.Module], Any]


def sharded(
    model: torch.nn.Module, parallel: Parallel, *, device_kind: str, precision: str = "fp32"
) -> torch.nn.Module:
    """This rank's part of a model; what is not on the device yet is brought there part by part.

    Args:
        parallel: has to shard.
        precision: of the knob; with amp both FSDPs cast parameters.

    Raises:
        InapplicableError: the model has no plan for tensor parallelism, or cannot be divided so.
    """
    dtype = AUTOCAST_DTYPES.get(precision)  # both FSDPs cast parameters to what autocast would compute in
    if parallel.fsdp1 is not None:
        return fsdp1.wrapped(model, parallel.fsdp1, device_kind=device_kind, dtype=dtype)
    mesh = mesh_of(parallel, device_kind)
    kinds = mesh.mesh_dim_names
    if isinstance(model, Pipelined):
        model.group = mesh[PP].get_group()
        model.casts_to = dtype if FSDP in kinds else None
    shard = None
    if FSDP in kinds:
        of_shards = mesh[(REPLICATE, FSDP)] if REPLICATE in kinds else mesh[FSDP]
        if CP in kinds:
            of_shards = mesh[(FSDP, CP)]._flatten(FSDP_CP)  # noqa: SLF001 - as torchtitan does
        shard = _sharding(of_shards, dtype, offloads=parallel.offloads_shards)
    for part, blocks in model.parts if isinstance(model, Pipelined) else ((model, _blocks_of(model)),):
        spread = None
        if TP in kinds:
            spread = _spreading(part, mesh[TP], parallel.degree(TP), is_stage=part is not model)
        # Block by block, so that no more than one of them is on the device before it is sharded.
        for module in (*blocks, part):
            if spread:
                spread(module)
            # A container's parts are called by themselves.
            if shard and (module is part or type(module).forward is not torch.nn.Module.forward):
                shard(module)
    return model


def mesh_of(parallel: Parallel, device_kind: str) -> Any:
    """The mesh of all ranks, with a dimension for each kind of parallelism, by its name."""
    from torch.distributed.device_mesh import init_device_mesh

    kinds, degrees = zip(*parallel.degrees, strict=True)
    return init_device_mesh(device_kind, degrees, mesh_dim_names=kinds)


def notes(model: torch.nn.Module, parallel: Parallel, precision: str) -> tuple[str, ...]:
    """How a model was sharded, in sentences for whoever reads the answer."""
    if parallel.zero is not None:
        return zero.notes(parallel.zero, precision)
    said: tuple[str, ...] = model.notes() if isinstance(model, Pipelined) else ()
    if parallel.degree(FSDP) == 1:
        return said
    from torch.distributed.fsdp import FSDPModule

    num_parts = len(model.parts) if isinstance(model, Pipelined) else 1
    num_blocks = sum(isinstance(module, FSDPModule) for module in model.modules()) - num_parts
    whole = (
        "all its parameters are gathered at once, as no nn.Sequential or nn.ModuleList has repeated blocks"
    )
    around = "model" if num_parts == 1 else "stages"
    how = f"fully_shard on each of {num_blocks} blocks, then on the {around}" if num_blocks else whole
    casts = f"{precision} is the MixedPrecisionPolicy of fully_shard, without autocast"
    kept = "parameters, gradients and optimizer states are on the host, where the optimizer steps"
    return (
        *said,
        how,
        *((casts,) if precision in AUTOCAST_DTYPES else ()),
        *((kept,) if parallel.offloads_shards else ()),
    )


def require_one_kind(model: torch.nn.Module, parallel: Parallel) -> None:
    """Checks that an optimizer can take all parameters at once, as PyTorch's do on a GPU by default.

    Raises:
        InapplicableError: tensor parallelism left some of them as they are.
    """
    from torch.distributed.tensor import DTensor

    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    whole = [name for name, each in trained if not isinstance(each, DTensor)]
    if 0 < len(whole) < len(trained):
        raise InapplicableError(
            f"--parallel {parallel} leaves {whole[0]} whole, and PyTorch's optimizers that take several "
            "tensors at once, which is the default on a GPU, refuse a mixture with DTensors: choose "
            f"--optimizer-impl loop, or fsdp:N,{parallel}"
        )


def require_one_mesh(model: torch.nn.Module, parallel: Parallel) -> None:
    """Checks that gradients can be clipped: `clip_grad_norm_` stacks the norms of all, of one mesh.

    Raises:
        InapplicableError: tensor parallelism left some of the parameters off its ranks.
    """
    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    meshes = {name: getattr(each, "device_mesh", None) for name, each in trained}
    num_dims = {name: 0 if mesh is None else mesh.ndim for name, mesh in meshes.items()}
    if len(set(num_dims.values())) > 1:
        left = min(num_dims, key=num_dims.__getitem__)
        raise InapplicableError(
            f"--parallel {parallel} cannot be combined with --clip-grad-norm: tp leaves {left} as it is, and "
            "PyTorch's clip_grad_norm_ takes gradients of one mesh alone: leave out the option, or use fsdp:N"
        )


def _sharding(mesh: Any, dtype: torch.dtype | None, *, offloads: bool) -> _Apply:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=None if dtype is None else torch.float32)
    keeping = CPUOffloadPolicy(pin_memory=True) if offloads else OffloadPolicy()
    return functools.partial(fully_shard, mesh=mesh, mp_policy=policy, offload_policy=keeping)


def _blocks_of(model: torch.nn.Module) -> Sequence[torch.nn.Module]:
    return [block for _, block in repeated_blocks(model)]


def _spreading(model: torch.nn.Module, mesh: Any, degree: int, *, is_stage: bool) -> _Apply:
    """What spreads those tensors of a part of the model that were not spread yet.

    Args:
        is_stage: whether it is a stage of a pipeline, without the modules of others.
    """
    if getattr(model, "_resolve_parallel_plans", None) is not None:  # of transformers
        _require_divided_heads(model, degree)
        return _spreading_by_transformers(model, mesh, degree)
    from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

    plan: Any = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
    styles = plan.values() if isinstance(plan, Mapping) else ()
    if not styles or not all(isinstance(style, ParallelStyle) for style in styles):
        raise InapplicableError(
            f"--parallel tp: {type(model).__name__} has no plan for it: give the model an attribute tp_plan, "
            "a dict of module paths to styles of torch.distributed.tensor.parallel, or use fsdp:N"
        )
    if not is_stage:
        _require_modules(model, plan)
    # Its paths may be patterns, so that the whole model is spread with its first part.
    whole = functools.cache(lambda: parallelize_module(model, mesh, dict(plan)))
    return lambda _part: whole()


def _require_modules(model: torch.nn.Module, plan: Mapping[str, Any]) -> None:
    """Raises `InapplicableError` where a path of a plan is no module's, of which PyTorch only warns."""
    names = [name for name, _ in model.named_modules() if name]
    for path in plan:
        atoms = path.split(".")
        found = (name.split(".") for name in names)
        if any(len(own) == len(atoms) and all(map(fnmatch.fnmatch, own, atoms)) for own in found):
            continue
        near = difflib.get_close_matches(path, names, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(names[:3])}, …"
        raise InapplicableError(
            f"--parallel tp: tp_plan names {path!r}, which is no module of {type(model).__name__}: {hint}"
        )


def _spreading_by_transformers(model: Any, mesh: Any, degree: int) -> _Apply:
    from transformers.distributed.configuration_utils import DistributedConfig
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    if not model.supports_tp_plan:
        raise InapplicableError(
            f"--parallel tp: transformers has no plan for {type(model).__name__}: use fsdp:N"
        )
    plan, _, _ = model._resolve_parallel_plans(DistributedConfig(tp_size=degree))  # noqa: SLF001 - how it loads
    modules = dict(model.named_modules())
    elsewhere = {name for name, module in modules.items() if isinstance(module, LeftOut)}
    remaining = {name: style for name, style in plan.items() if name not in elsewhere}

    def spread(part: torch.nn.Module) -> None:
        inside = set(part.modules())
        # A plan names modules and parameters of modules.
        named = [
            name for name in remaining if modules.get(name, modules.get(name.rpartition(".")[0])) in inside
        ]
        apply_tensor_parallelism(model, mesh, {name: remaining.pop(name) for name in named})

    return spread


def _require_divided_heads(model: Any, degree: int) -> None:
    """Raises `InapplicableError` where a rank would get a part of an attention head."""
    config = model.config.get_text_config()
    named = {"attention heads": "num_attention_heads", "heads of keys and values": "num_key_value_heads"}
    numbers: dict[str, int] = {
        what: getattr(config, name) for what, name in named.items() if getattr(config, name, None)
    }
    for what, number in numbers.items():
        if number % degree:
            common = math.gcd(*numbers.values())
            fine = ", ".join(f"tp:{each}" for each in range(2, common + 1) if common % each == 0)
            raise InapplicableError(
                f"--parallel tp:{degree} does not divide the model's {number} {what}: use {fine or 'fsdp:N'}"
            )
