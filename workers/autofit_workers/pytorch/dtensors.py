"""How a `DTensor` propagates shapes, draws random numbers, and is split; and what FSDP shards by."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.fsdp._flat_param import FlatParamHandle  # of `FullyShardedDataParallel`
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup  # of `fully_shard`
from torch.distributed.tensor import Shard, _utils
from torch.distributed.tensor._random import OffsetBasedRNGTracker
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from autofit_workers.pytorch.private_name import PrivateName

__all__ = [
    "PROPAGATE_SHAPES",
    "SPLIT_OFF_SHARD",
    "FSDPParamGroup",
    "FlatParamHandle",
    "clear_sharding_cache",
    "local_shape",
    "replace_device_state",
    "split_off_view",
]

# Runs an operator on tensors without memory to learn the whole's shape; replaced to run outside of modes.
PROPAGATE_SHAPES = PrivateName(ShardingPropagator, "_propagate_tensor_meta_non_cached")

# Splits a rank's shard off a tensor, as a copy; replaced to follow releases that split off a view.
SPLIT_OFF_SHARD = PrivateName(Shard, "_select_split_tensor")


def split_off_view(
    placement: Shard,
    tensor: torch.Tensor,
    num_chunks: int,
    index: int,
    *,
    with_padding: bool = True,
    contiguous: bool = True,
    **_: object,
) -> torch.Tensor:
    """Shard of a tensor, split off as PyTorch does up to 2.9: a view where that is contiguous.

    Args:
        placement: dimension that is split.
        num_chunks, index: number of shards, and which of them is returned.
        with_padding: whether shards get the same size.
        contiguous: whether shards are made contiguous, all of them.
    """
    shards, _sizes = placement._split_tensor(
        tensor, num_chunks, with_padding=with_padding, contiguous=contiguous
    )
    shard: torch.Tensor = shards[index]
    return shard


def replace_device_state(state: Callable[[], torch.Tensor]) -> None:
    """Makes `DTensor` read the GPU generator's state from a function, as there is no generator.

    Args:
        state: returns the 16 bytes of a GPU's generator, seed and offset.
    """
    tracker: Any = OffsetBasedRNGTracker
    if hasattr(tracker, "_get_device_state"):  # since 2.9
        tracker._get_device_state = lambda _self: state()
        return
    initialize = tracker.__init__

    def initialized(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)  # copies the state to the GPU and back, where its values are lost
        for name in self.rng_states:
            self.rng_states[name] = state()

    tracker.__init__ = initialized


@dataclass(frozen=True, slots=True)
class _RankOfMesh:
    """Device mesh that reports a given rank as its own, for releases before 2.8, which ask the mesh."""

    shape: tuple[int, ...]
    coordinate: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def get_coordinate(self) -> tuple[int, ...]:
        return self.coordinate


def local_shape(
    shape: Sequence[int], mesh_shape: Sequence[int], coordinate: Sequence[int], placements: Sequence[Any]
) -> tuple[int, ...]:
    """Shape of the shard of a tensor that the rank at a coordinate of a device mesh holds.

    Args:
        shape: shape of the whole tensor.
        mesh_shape: ranks along each dimension of the mesh.
        coordinate: the rank's index along each dimension of the mesh.
        placements: `Placement` of the tensor along each dimension of the mesh.
    """
    of_any_rank: Any = getattr(_utils, "_compute_local_shape_and_global_offset", None)
    if of_any_rank is None:
        of_own_rank: Any = _utils.compute_local_shape_and_global_offset
        local, _ = of_own_rank(shape, _RankOfMesh(tuple(mesh_shape), tuple(coordinate)), placements)
    else:
        # The offsets take most of the time, and would be left out.
        options = {"skip_offset": True} if _skips_offsets() else {}
        local, _ = of_any_rank(shape, mesh_shape, coordinate, placements, **options)
    return tuple(local)


@functools.cache
def _skips_offsets() -> bool:
    of_any_rank: Any = getattr(_utils, "_compute_local_shape_and_global_offset", None)
    return "skip_offset" in inspect.signature(of_any_rank).parameters


def clear_sharding_cache() -> None:
    """Clears PyTorch's cache of how operators are sharded, whose keys are meshes that compare equal."""
    # Its package imports the compiler.
    from torch.distributed.tensor import DTensor, debug

    dispatcher: Any = DTensor._op_dispatcher
    # Since 2.10 there is a cache in C++ too, and since 2.11 a function that clears both.
    if (clear_both := getattr(debug, "_clear_sharding_prop_cache", None)) is not None:
        clear_both()
        return
    dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
    if (clear := getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)) is not None:
        clear()
