from __future__ import annotations

import pytest

from autofit.hardware.budget import assumed_context, make_budget
from autofit.hardware.nccl import communicator_interval, communicators_interval

MIB = 1 << 20
GIB = 1 << 30


def high_mib(num_ranks: int, architecture: str | None) -> int:
    return communicator_interval(num_ranks, architecture).high_bytes // MIB


@pytest.mark.parametrize(
    ("architecture", "num_ranks", "more_mib"),
    [
        ("sm_80", 8, 0),
        ("sm_90", 2, 2 * 32),
        ("sm_90", 8, 2 * 16 * 8 * 8 // 8),  # 2 × 16 channels × 8 chunks of 1/8 MiB, for eight cards
        ("sm_90", 64, 256),
        ("sm_100", 8, 768),
        ("sm_100", 72, 2 * 24 * 8 * 32 // 8),  # 24 channels in a domain, in which 32 count
        ("sm_120", 8, 0),
        ("gfx942", 8, 0),
    ],
)
def test_where_switches_may_add_up_the_high_end_has_their_buffers(architecture, num_ranks, more_mib):
    assert high_mib(num_ranks, architecture) - high_mib(num_ranks, None) == more_mib
    known, unknown = (communicator_interval(num_ranks, each) for each in (architecture, None))
    assert (known.low_bytes, known.likely_bytes) == (unknown.low_bytes, unknown.likely_bytes)


def test_each_dimension_of_a_mesh_has_a_communicator_and_the_default_group_may_have_one():
    shards, replicas, all_ranks = (communicator_interval(ranks, "sm_80") for ranks in (4, 2, 8))
    both = communicators_interval((2, 4), "sm_80")
    assert both.low_bytes == shards.low_bytes  # shared
    assert both.likely_bytes == shards.likely_bytes + replicas.likely_bytes
    assert both.high_bytes == shards.high_bytes + replicas.high_bytes + all_ranks.high_bytes
    assert both.basis.startswith("2 communicators, each as others saw it")


def test_one_dimension_is_the_default_group():
    assert communicators_interval((8,), "sm_90") == communicator_interval(8, "sm_90")


def test_a_budget_leaves_room_for_what_switches_take():
    def left_out(architecture: str) -> int:
        alone, ranks = (make_budget(80 * GIB, architecture=architecture, mesh=mesh) for mesh in ((), (8,)))
        return (ranks.context_bytes - alone.context_bytes) // MIB

    assert left_out("sm_90") - left_out("sm_80") == 256


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_the_likely_size_is_for_the_links_that_a_card_is_sold_with(num_ranks):
    unknown = communicator_interval(num_ranks, "sm_89")
    for card in ("rtx-4090", "NVIDIA GeForce RTX 4090"):
        over_pcie = communicator_interval(num_ranks, "sm_89", card)
        assert over_pcie.low_bytes == unknown.low_bytes < over_pcie.likely_bytes < unknown.likely_bytes
        assert over_pcie.high_bytes == unknown.high_bytes
    assert communicator_interval(num_ranks, "sm_80", "a100-80g") == communicator_interval(num_ranks, "sm_80")


def test_two_cards_of_24_gb_leave_what_a_run_reserved_of_them():
    """AnswerDotAI/fsdp_qlora, benchmarks_03_2024.md: 22.69 GiB of the 24217 MiB that drivers of then told."""
    outside, _ = assumed_context("sm_89", "rtx-4090", (2,))
    assert outside.low_bytes < outside.likely_bytes <= 24217 * MIB - int(22.69 * GIB)
