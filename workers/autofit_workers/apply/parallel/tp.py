"""Tensor parallelism: ranks hold parts of the same tensors, and compute on the same batch.

Transformers' own tensor parallelism distributes its models; other models need a plan of
PyTorch's styles (`tp_plan`), which `parallelize_module` applies.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch

from autofit_workers.apply.parallel.model_copies import LeftOut
from autofit_workers.apply.parallel.strategy import Placement, Spread, Strategy, taken_out
from autofit_workers.spec.errors import InapplicableError, UnsupportedError
from autofit_workers.spec.parallel_kinds import TP
from autofit_workers.workload.libraries.transformers_releases import require_newer, text_config_of


class TensorParallelRanks(Strategy):
    """Tensor parallelism: ranks hold parts of the model's tensors, as the model's plan divides them."""

    def spreading(self, part: torch.nn.Module, placement: Placement, *, is_stage: bool) -> Spread:
        return _spreading(part, placement.mesh[TP], self.parallel.degree(TP), is_stage=is_stage)


STRATEGY = TensorParallelRanks


def _spreading(model: torch.nn.Module, mesh: Any, degree: int, *, is_stage: bool) -> Spread:
    """Function that splits a module's tensors over the ranks of tensor parallelism.

    It leaves tensors that an earlier call of it split.

    Args:
        model: the model, or a stage of a pipeline.
        mesh: device mesh of the ranks that share the tensors.
        degree: number of these ranks.
        is_stage: whether `model` is a stage of a pipeline, without the modules of other stages.

    Raises:
        InapplicableError: the model has no plan for tensor parallelism, or its plan cannot divide it.
    """
    if getattr(model, "_resolve_parallel_plans", None) is not None:  # a model of transformers
        _require_splits_without_source()
        _require_divided_heads(model, degree)
        return _spreading_by_transformers(model, mesh, degree)
    require_newer(model, "_resolve_parallel_plans", "--parallel tp:N of a model of transformers")
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
    # The plan's paths may be patterns, so the whole model is split when its first part is.
    whole = functools.cache(lambda: parallelize_module(model, mesh, dict(plan)))
    return lambda _part: whole()


def _require_modules(model: torch.nn.Module, plan: Mapping[str, Any]) -> None:
    """Raises `InapplicableError` if a path of a plan names no module; PyTorch would only warn."""
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


def _spreading_by_transformers(model: Any, mesh: Any, degree: int) -> Spread:
    """Function that splits a module's tensors by transformers' own plan for tensor parallelism."""
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
        apply_tensor_parallelism(model, mesh, taken_out(remaining, modules, part))

    return spread


def _require_splits_without_source() -> None:
    """Raises `UnsupportedError` where `DTensor` cannot split a tensor without a rank that sends it.

    Transformers splits so. `DTensor` can since PyTorch 2.7.
    """
    from torch.distributed.tensor import distribute_tensor

    if "src_data_rank" not in inspect.signature(distribute_tensor).parameters:
        raise UnsupportedError(
            "--parallel tp:N of a model of transformers needs PyTorch 2.7 or newer, and this is "
            f"{torch.__version__}: install a newer one, or use fsdp:N"
        )


def _require_divided_heads(model: Any, degree: int) -> None:
    """Raises `InapplicableError` if `degree` does not divide the numbers of attention heads."""
    config = text_config_of(model.config)
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
