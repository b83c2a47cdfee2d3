"""Groups the ranks of a sharded model by the sizes of their shards and the stage that they run.

Shards differ if a dimension is not a multiple of the number of ranks that share it. Their sizes follow from
shapes and placements alone, so one rank can compute the sizes of all.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from typing import Any

import torch

from autofit_workers.spec.parallel_kinds import PARALLEL_KINDS
from autofit_workers.spec.setup import Parallel
from autofit_workers.spec.trace import AlikeRanks


def alike_ranks(model: torch.nn.Module, parallel: Parallel) -> tuple[AlikeRanks, ...]:
    """Groups of ranks that hold equally large shards and run the same stage; one of each is predicted.

    The groups are in the order of their first ranks; the result is empty if all ranks are alike. It takes
    about 100 seconds for a million ranks, and proportionally less for fewer.

    Args:
        model: any rank's part of the model.
        parallel: parallelism of the ranks.
    """
    ranks_of = collections.defaultdict(list)
    sizes = _sizes_of_shards(model)
    apart = [kind for kind, _ in parallel.degrees if PARALLEL_KINDS[kind].runs_apart]
    for rank in range(parallel.num_ranks):
        place = parallel.place(rank)
        parts = tuple(place[kind] for kind in apart)
        ranks_of[parts, tuple(size(place) for size in sizes)].append(rank)
    if len(ranks_of) == 1:
        return ()
    return tuple(AlikeRanks(first=ranks[0], num_ranks=len(ranks)) for ranks in ranks_of.values())


def _sizes_of_shards(model: torch.nn.Module) -> list[Callable[[dict[str, int]], int]]:
    """Functions from a rank's mesh coordinates to the number of a parameter's elements that it holds.

    There is one for each combination of shape and placement among the sharded parameters.
    """
    from torch.distributed.tensor import DTensor

    specs: dict[Any, Any] = {}
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            spec: Any = parameter._spec  # noqa: SLF001 - where it lies
            specs.setdefault((tuple(parameter.shape), spec.placements, spec.mesh), spec)
    return [_size_of_shard(shape, spec) for (shape, _, _), spec in specs.items()]


def _size_of_shard(shape: tuple[int, ...], spec: Any) -> Callable[[dict[str, int]], int]:
    from autofit_workers.pytorch.dtensors import local_shape

    names = spec.mesh.mesh_dim_names

    def size(place: dict[str, int]) -> int:
        coordinate = [place[name] for name in names]
        return math.prod(local_shape(shape, spec.mesh.shape, coordinate, spec.placements))

    return size
