"""Wraps a model in `FullyShardedDataParallel`, PyTorch's first FSDP.

Each repeated block is a unit by itself, as in every trainer's policy. So is each layer without
children that is trained while others are frozen, as in peft's `fsdp_auto_wrap_policy`. A model
with another wrapping has an attribute `fsdp_options`: a dict of arguments for `FullyShardedDataParallel`,
such as `auto_wrap_policy`, `mixed_precision` or `use_orig_params`.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import nn

from autofit_workers.apply.checkpointing import repeated_blocks
from autofit_workers.apply.parallel.strategy import KEPT_BY_HOST, Followed, Placement, Strategy, require_card
from autofit_workers.apply.setting import AUTOCAST_DTYPES
from autofit_workers.spec.errors import InapplicableError, text_of
from autofit_workers.spec.knobs.base import is_of_bitsandbytes
from autofit_workers.spec.parallel_kinds import FirstFsdp
from autofit_workers.spec.protocol import TrialSpec
from autofit_workers.spec.trace import Category
from autofit_workers.workload.workload import Workload


class FirstFsdpRanks(Strategy):
    """FSDP1: ranks hold shards of flat parameters, each made of all parameters of one FSDP unit."""

    @property
    def _how(self) -> FirstFsdp:
        assert self.parallel.fsdp1 is not None
        return self.parallel.fsdp1

    def require_applicable(self, spec: TrialSpec, _workload: Workload) -> None:
        if self._how.offloads:
            require_card(spec)

    def takes_base(self, base: str) -> bool:
        return is_of_bitsandbytes(base)

    def taken(self, model: nn.Module, placement: Placement) -> nn.Module:
        return _wrapped(model, self._how, device_kind=placement.device_kind, dtype=placement.dtype)

    def notes(self, model: nn.Module, precision: str) -> tuple[str, ...]:
        adapted = getattr(model, "peft_config", None) is not None
        around = "in autocast, as accelerate has them with an adapter" if adapted else "without autocast"
        casts = f"{precision} is the MixedPrecision of FullyShardedDataParallel, {around}"
        return (
            *((casts,) if precision in AUTOCAST_DTYPES else ()),
            *((KEPT_BY_HOST,) if self._how.offloads else ()),
        )

    @staticmethod
    def followed() -> Followed:
        """Methods of `FlatParamHandle`, each with the category under which the memory it allocates is listed.

        Source: torch/distributed/fsdp/_flat_param.py.
        """
        from autofit_workers.pytorch.dtensors import FlatParamHandle

        return {
            FlatParamHandle: {
                "init_flat_param_attributes": Category.OTHER,
                "pre_unshard": Category.OTHER,
                "unshard": Category.PARAMETER,
            }
        }


STRATEGY = FirstFsdpRanks


def _wrapped(model: nn.Module, how: FirstFsdp, *, device_kind: str, dtype: torch.dtype | None) -> nn.Module:
    """Model in `FullyShardedDataParallel`: this rank's shards, moved to the device unit by unit.

    Args:
        dtype: type that parameters are cast to, with gradients summed in float32; None for no cast.
    """
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy

    policy = None if dtype is None else MixedPrecision(param_dtype=dtype, reduce_dtype=torch.float32)
    options: dict[str, Any] = {
        "auto_wrap_policy": _policy(model),
        "mixed_precision": policy,
        "use_orig_params": True,  # else all parameters of a unit must be trained, or none
        **getattr(model, "fsdp_options", {}),
    }
    device = torch.device(device_kind, 0) if device_kind != "cpu" else torch.device("cpu")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated and warns
            return FullyShardedDataParallel(
                model,
                sharding_strategy=ShardingStrategy[how.strategy],
                cpu_offload=CPUOffload(offload_params=how.offloads),
                device_id=device,
                **options,
            )
    except (ValueError, TypeError) as error:
        raise InapplicableError(
            f"FullyShardedDataParallel does not take this model ({text_of(error)}): use fsdp:N, or ddp:N"
        ) from error


def _policy(model: nn.Module) -> Any:
    from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

    units = {id(block) for _, block in repeated_blocks(model)}
    if not all(parameter.requires_grad for parameter in model.parameters()):
        units.update(id(module) for module in model.modules() if _is_trained_leaf(module))
    return functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda module: id(module) in units)


def _is_trained_leaf(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return not any(True for _ in module.children()) and weight is not None and weight.requires_grad
