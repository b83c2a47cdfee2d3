"""How long collectives take, by bytes, links and ranks."""

from __future__ import annotations

import pytest

from autofit_workers.replay.time.collectives import Exchange, exchange_of, exchanged_bytes, network_of
from autofit_workers.spec.work import Group, Operand, Work

A100 = network_of("NVIDIA A100-SXM4-80GB", "sm_80")
H100 = network_of("NVIDIA H100 80GB HBM3", "sm_90")
PCIE = network_of("NVIDIA A100-PCIE-40GB", "sm_80")
MIB = 2**20


def seconds(exchange, num_bytes, num_ranks, stride=1, network=A100):
    return network.seconds(exchange, num_bytes, Group(num_ranks, stride))


@pytest.mark.parametrize("exchange", list(Exchange))
def test_more_bytes_never_take_less(exchange):
    times = [seconds(exchange, 2**power, 8) for power in range(8, 33)]
    assert times == sorted(times)
    assert times[-1] > 100 * times[0]


@pytest.mark.parametrize("exchange", [each for each in Exchange if each is not Exchange.SEND])
@pytest.mark.parametrize("num_bytes", [1024, 64 * MIB])
def test_more_ranks_never_take_less(exchange, num_bytes):
    times = [seconds(exchange, num_bytes, num_ranks) for num_ranks in (1, 2, 4, 8, 16, 64, 256)]
    assert times[0] == 0.0
    assert times == sorted(times)


def test_large_all_reduces_come_to_the_bus_bandwidth():
    num_bytes, n = 2**34, 8
    for network, within in ((A100, 0.15), (PCIE, 0.01)):
        for times, exchange in ((2, Exchange.ALL_REDUCE), (1, Exchange.ALL_GATHER)):
            bus = times * (n - 1) / n * num_bytes / seconds(exchange, num_bytes, n, network=network)
            assert bus == pytest.approx(network.bus, rel=within), "rings of their own come near to it"


def test_a_small_collective_of_a_step_waits_for_the_last_rank():
    for exchange in (Exchange.ALL_REDUCE, Exchange.ALL_GATHER):
        small, large = (
            {
                is_repeated: A100.seconds(exchange, num_bytes, Group(8), is_repeated=is_repeated)
                for is_repeated in (True, False)
            }
            for num_bytes in (64 * 1024, 64 * MIB)
        )
        assert small[False] == A100.within.apart > small[True]
        assert large[False] == large[True]


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    both = seconds(Exchange.REDUCE_SCATTER, 2**32, 8) + seconds(Exchange.ALL_GATHER, 2**32, 8)
    assert seconds(Exchange.ALL_REDUCE, 2**32, 8) == pytest.approx(both, rel=0.1)


def test_small_all_reduces_of_many_ranks_go_through_trees():
    # A ring would have 2 · 255 steps; doubling the ranks adds two steps to a tree.
    step = seconds(Exchange.ALL_REDUCE, 8, 512) - seconds(Exchange.ALL_REDUCE, 8, 256)
    assert step == pytest.approx(2 * A100.between.protocols[0].hop)
    large, n = 2**36, 256
    on_link = 2 * (n - 1) / n * large
    share = A100.between.protocols[0].share
    assert seconds(Exchange.ALL_REDUCE, large, n) == pytest.approx(on_link / (A100.bus * share), rel=0.01), (
        "and large ones through rings, with all of the bandwidth"
    )


def test_small_messages_take_the_protocol_that_starts_sooner():
    first, second = PCIE.within.protocols
    assert first.start < second.start
    assert first.share < second.share
    tiny = seconds(Exchange.ALL_REDUCE, 8, 2, network=PCIE)
    assert tiny == pytest.approx(first.start + 2 * first.hop, rel=1e-3)


def test_links_with_rows_take_the_quickest_of_their_own_ways():
    ring = H100.within.rings["gather"]
    num_bytes, n = 2**30, 4
    on_link = (n - 1) / n * num_bytes * (1 + ring.fewer_ranks / n**2)
    quickest = min(way.start + (n - 1) * way.hop + on_link / way.bus for way in ring.ways)
    assert seconds(Exchange.REDUCE_SCATTER, num_bytes, n, network=H100) == pytest.approx(quickest)
    tiny = H100.seconds(Exchange.REDUCE_SCATTER, 8, Group(2), is_repeated=True)
    assert tiny == pytest.approx(min(way.start + way.hop for way in ring.ways), rel=1e-3)


def test_few_ranks_reach_less_of_an_nvlink_than_many():
    def bus(n):
        return (n - 1) / n * 2**30 / seconds(Exchange.ALL_GATHER, 2**30, n, network=H100)

    assert bus(2) < bus(4) < bus(8)


def test_operations_have_rows_within_a_node_over_links_with_rings_alone():
    assert H100.has_rows(Exchange.ALL_TO_ALL, Group(8))
    assert not H100.has_rows(Exchange.ALL_TO_ALL, Group(2, 8)), "between nodes"
    assert not H100.has_rows(Exchange.SEND, Group(2))
    assert PCIE.has_rows(Exchange.ALL_REDUCE, Group(4))
    assert not PCIE.has_rows(Exchange.ALL_GATHER, Group(4)), "all-reduces alone were timed over them"


def test_ranks_on_several_nodes_share_the_network():
    within, between = seconds(Exchange.ALL_REDUCE, 2**32, 8), seconds(Exchange.ALL_REDUCE, 2**32, 2, 8)
    assert not A100.spans_nodes(Group(8))
    assert A100.spans_nodes(Group(2, 8))
    assert A100.spans_nodes(Group(9))
    assert between == pytest.approx(2**32 / (A100.nic * A100.between.protocols[0].share), rel=0.01)
    assert between > within
    assert "25 GB/s for each card" in A100.in_words([Group(2, 8)])
    assert "GB/s" not in A100.in_words([Group(8)])


def test_cards_without_links_of_their_own_have_pcie():
    pcie = network_of("NVIDIA A40", "sm_86")
    assert seconds(Exchange.ALL_REDUCE, 2**30, 2, network=pcie) > 5 * seconds(Exchange.ALL_REDUCE, 2**30, 2)
    assert "PCIe" in pcie.in_words([])
    assert network_of("a card", "gfx942") is None


@pytest.mark.parametrize(
    ("operator", "exchange"),
    [
        ("c10d.allreduce_", Exchange.ALL_REDUCE),
        ("_c10d_functional.all_reduce_coalesced", Exchange.ALL_REDUCE),
        ("c10d._allgather_base_", Exchange.ALL_GATHER),
        ("_c10d_functional.all_gather_into_tensor", Exchange.ALL_GATHER),
        ("c10d._reduce_scatter_base_", Exchange.REDUCE_SCATTER),
        ("_c10d_functional.reduce_scatter_tensor", Exchange.REDUCE_SCATTER),
        ("c10d.reduce_", Exchange.REDUCE),
        ("c10d.broadcast_", Exchange.BROADCAST),
        ("c10d.alltoall_base_", Exchange.ALL_TO_ALL),
        ("_c10d_functional.all_to_all_single", Exchange.ALL_TO_ALL),
        ("c10d.send", Exchange.SEND),
        ("c10d.recv_", Exchange.SEND),
        ("c10d.something_new", Exchange.OTHER),
        ("c10d.barrier", Exchange.OTHER),
    ],
)
def test_what_operators_do(operator, exchange):
    assert exchange_of(operator) is exchange


def test_a_gathered_tensor_counts_whole():
    shard, whole = Operand((8,), "float32"), Operand((64,), "float32")
    gather = Work("c10d._allgather_base_", (shard,), (whole,), group=Group(8))
    scatter = Work("c10d._reduce_scatter_base_", (whole,), (shard,), group=Group(8))
    assert exchanged_bytes(gather) == exchanged_bytes(scatter) == 256
