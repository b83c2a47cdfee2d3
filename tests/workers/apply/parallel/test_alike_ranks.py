"""Which ranks differ follows from shapes and placements, whatever rank is asked."""

from __future__ import annotations

import pytest
import torch

from autofit_workers.apply.parallel.alike_ranks import alike_ranks
from autofit_workers.spec.setup import Parallel
from autofit_workers.spec.trace import AlikeRanks


def kinds_of(parallel: str, *rows: int) -> tuple[AlikeRanks, ...]:
    """The kinds of ranks of a model whose layers have so many rows, on a group that is not there."""
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from autofit_workers.apply.parallel.ranks import Ranks

    parsed = Parallel.parse(parallel)
    distributed.init_process_group("fake", rank=0, world_size=parsed.num_ranks, store=FakeStore())
    try:
        model = torch.nn.Sequential(*(torch.nn.Linear(4, each, bias=False) for each in rows))
        return alike_ranks(Ranks(parsed).spread(model, device_kind="cpu"), parsed)
    finally:
        distributed.destroy_process_group()


def test_ranks_with_shards_of_one_size_are_alike() -> None:
    assert kinds_of("fsdp:4", 8, 16) == ()


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        ("fsdp:4", [(0, 2), (2, 1), (3, 1)]),  # 2 2 1 0 rows of the one, 4 each of the other
        ("hsdp:2x4", [(0, 4), (2, 2), (3, 2)]),
    ],
)
def test_ranks_differ_where_rows_do_not_divide(parallel: str, expected: list[tuple[int, int]]) -> None:
    assert [(each.first, each.num_ranks) for each in kinds_of(parallel, 5, 16)] == expected
