"""How a `DTensor` propagates shapes, draws random numbers, and is split among ranks."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import _utils
from torch.distributed.tensor._random import OffsetBasedRNGTracker
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from autofit_workers.pytorch.private_name import PrivateName

__all__ = ["DEVICE_STATE", "PROPAGATE_SHAPES", "clear_sharding_cache", "local_shape_and_offset"]

# State of the GPU's generator; replaced, as there is no generator.
DEVICE_STATE = PrivateName(OffsetBasedRNGTracker, "_get_device_state")
# Runs an operator on tensors without memory to learn the whole's shape; replaced to run outside of modes.
PROPAGATE_SHAPES = PrivateName(ShardingPropagator, "_propagate_tensor_meta_non_cached")
# Shape and offset of the shard of any rank.
local_shape_and_offset: Any = _utils._compute_local_shape_and_global_offset


def clear_sharding_cache() -> None:
    """Forgets how operators are sharded, which PyTorch remembers by meshes that compare as equal."""
    # Its package imports the compiler.
    from torch.distributed.tensor import debug

    clear: Any = debug._clear_sharding_prop_cache
    clear()
