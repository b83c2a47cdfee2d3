"""Classes of FSDP that gather and release parameters; their methods are followed."""

from __future__ import annotations

from torch.distributed.fsdp._flat_param import FlatParamHandle  # of `FullyShardedDataParallel`
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup  # of `fully_shard`

__all__ = ["FSDPParamGroup", "FlatParamHandle"]
