"""How a `DTensor` propagates shapes, draws random numbers, and is split among ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed.tensor import _utils
from torch.distributed.tensor._random import OffsetBasedRNGTracker
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from autofit_workers.pytorch.private_name import PrivateName

__all__ = ["DEVICE_STATE", "PROPAGATE_SHAPES", "clear_sharding_cache", "local_shape"]

# State of the GPU's generator; replaced, as there is no generator.
DEVICE_STATE = PrivateName(OffsetBasedRNGTracker, "_get_device_state")
# Runs an operator on tensors without memory to learn the whole's shape; replaced to run outside of modes.
PROPAGATE_SHAPES = PrivateName(ShardingPropagator, "_propagate_tensor_meta_non_cached")


@dataclass(frozen=True, slots=True)
class _RankOfMesh:
    """Rank of a device mesh, for the function of releases before 2.7, which asks a mesh for its own rank."""

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
        local, _ = of_any_rank(shape, mesh_shape, coordinate, placements)
    return tuple(local)


def clear_sharding_cache() -> None:
    """Forgets how operators are sharded, which PyTorch remembers by meshes that compare as equal."""
    # Its package imports the compiler.
    from torch.distributed.tensor import DTensor, debug

    dispatcher: Any = DTensor._op_dispatcher
    # Since 2.11 there is a cache in C++ too. Before, the only one is a `LocalLRUCache`.
    clear: Any = getattr(debug, "_clear_sharding_prop_cache", None)
    (clear or dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear)()
