"""FSDP2: PyTorch's `fully_shard` on each repeated block, then on the model; with replicas (HSDP) if asked."""

from __future__ import annotations

from typing import Any

import torch

from autofit_workers.apply.parallel.strategy import (
    KEPT_BY_HOST,
    Followed,
    Placement,
    Spread,
    Strategy,
    require_card,
)
from autofit_workers.apply.setting import AUTOCAST_DTYPES
from autofit_workers.spec.parallel_kinds import CP, FSDP, FSDP_CP, REPLICATE
from autofit_workers.spec.protocol import TrialSpec
from autofit_workers.spec.trace import Category
from autofit_workers.workload.step import ScheduledModel
from autofit_workers.workload.workload import Workload


class FullyShardRanks(Strategy):
    """FSDP2: ranks hold shards of all parameters, and gather a block's parameters while it runs."""

    def require_applicable(self, spec: TrialSpec, _workload: Workload) -> None:
        if self.parallel.offloads_shards:
            require_card(spec)

    def taken(self, model: torch.nn.Module, placement: Placement) -> torch.nn.Module:
        if isinstance(model, ScheduledModel):
            model.casts_to = placement.dtype
        return model

    def spreading(self, part: torch.nn.Module, placement: Placement, *, is_stage: bool) -> Spread:
        """Function that calls `fully_shard` on a module, with mesh, precision and offloading set."""
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

        del is_stage
        dtype = placement.dtype
        policy = MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=None if dtype is None else torch.float32
        )
        offloads = self.parallel.offloads_shards
        keeping = CPUOffloadPolicy(pin_memory=True) if offloads else OffloadPolicy()
        mesh = self._of_shards(placement.mesh)

        def shard(module: torch.nn.Module) -> None:
            # A container such as `ModuleList` has no forward: the model calls its modules one by one.
            if module is part or type(module).forward is not torch.nn.Module.forward:
                fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=keeping)

        return shard

    def _of_shards(self, mesh: Any) -> Any:
        if self.parallel.degree(CP) > 1:
            return mesh[(FSDP, CP)]._flatten(FSDP_CP)  # noqa: SLF001 - as torchtitan does
        return mesh[(REPLICATE, FSDP)] if self.parallel.degree(REPLICATE) > 1 else mesh[FSDP]

    def notes(self, model: torch.nn.Module, precision: str) -> tuple[str, ...]:
        from torch.distributed.fsdp import FSDPModule

        num_parts = len(model.parts) if isinstance(model, ScheduledModel) else 1
        num_blocks = sum(isinstance(module, FSDPModule) for module in model.modules()) - num_parts
        whole = (
            "all its parameters are gathered at once, as no nn.Sequential or nn.ModuleList has repeated "
            "blocks"
        )
        around = "model" if num_parts == 1 else "stages"
        how = f"fully_shard on each of {num_blocks} blocks, then on the {around}" if num_blocks else whole
        casts = f"{precision} is the MixedPrecisionPolicy of fully_shard, without autocast"
        return (
            how,
            *((casts,) if precision in AUTOCAST_DTYPES else ()),
            *((KEPT_BY_HOST,) if self.parallel.offloads_shards else ()),
        )

    @staticmethod
    def followed() -> Followed:
        """Methods of `FSDPParamGroup`, each with the category under which the memory it allocates is listed.

        Gradients that outlive the step get their category later. Source:
        torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py.
        """
        from autofit_workers.pytorch.dtensors import FSDPParamGroup

        return {
            FSDPParamGroup: {
                "unshard": Category.OTHER,
                "wait_for_unshard": Category.PARAMETER,
                "post_backward": Category.OTHER,
            }
        }


STRATEGY = FullyShardRanks
