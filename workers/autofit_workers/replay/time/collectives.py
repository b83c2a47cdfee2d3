"""Predicted seconds of collectives, by bytes, links between ranks, and the algorithm NCCL would choose.

    seconds = start + steps · hop + bytes on a link / (bandwidth · share)

    all-reduce                    2(n−1)/n of the bytes, in 2(n−1) steps of a ring or 2 log2(n) of a tree
    all-gather, reduce-scatter    (n−1)/n, in n−1 steps of a ring
    broadcast, reduce             all of them, in n−1
    all-to-all, gather, scatter   (n−1)/n, in one: each rank to each other
    send, receive                 all of them, in one

Links with rows of an operation have rings of their own for it (`Ring`), in which the bandwidth of a card
with few others to talk to is lower:

    seconds = start + steps · hop + bytes on a link · (1 + fewer_ranks / n²) / bus

They take `apart` at least, unless the same collective is repeated again and again: in a step, ranks come to
it at different times, and the kernel of the first one waits for the last.

NCCL estimates in the same way and takes the algorithm that it expects to be the fastest (src/graph/tuning.cc;
bytes as in PERFORMANCE.md of nccl-tests). Bandwidths and latencies are those of links.toml.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autofit_workers.replay.time.tables import text_of
from autofit_workers.spec.pythons import StrEnum, read_toml
from autofit_workers.spec.work import Group, Operand, Work

SCHEMA = "autofit.links/1"


class Exchange(StrEnum):
    """Kind of a collective operation among ranks, such as all-reduce."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"
    OTHER = "other"  # counts as an all-reduce, the slowest


# Beginnings of operators' names, without underscores: of `torch.distributed`, and of functional collectives.
_BY_NAME = {
    "allreduce": Exchange.ALL_REDUCE,
    "allgather": Exchange.ALL_GATHER,
    "reducescatter": Exchange.REDUCE_SCATTER,
    "broadcast": Exchange.BROADCAST,
    "reduce": Exchange.REDUCE,
    "alltoall": Exchange.ALL_TO_ALL,
    "gather": Exchange.ALL_TO_ALL,
    "scatter": Exchange.ALL_TO_ALL,
    "send": Exchange.SEND,
    "isend": Exchange.SEND,
    "recv": Exchange.SEND,
    "irecv": Exchange.SEND,
    "batchp2p": Exchange.SEND,
}
_NAMES = {"nvlink": "NVLink", "nvlink3": "NVLink", "nvlink4": "NVLink", "nvlink5": "NVLink",
          "pcie": "PCIe", "pcie5": "PCIe"}  # fmt: skip
_FROM_EACH_TO_EACH = frozenset({Exchange.ALL_TO_ALL, Exchange.SEND})
_TIMED = frozenset({Exchange.ALL_GATHER, Exchange.REDUCE_SCATTER, Exchange.ALL_TO_ALL})
# Rings of links.toml by operation; others have no rows.
_RINGS = {
    Exchange.ALL_REDUCE: "all_reduce",
    Exchange.OTHER: "all_reduce",
    Exchange.ALL_GATHER: "gather",
    Exchange.REDUCE_SCATTER: "gather",
    Exchange.ALL_TO_ALL: "to_all",
}
_AS_ALL_REDUCE = frozenset({Exchange.ALL_REDUCE, Exchange.OTHER})


def exchange_of(operator: str) -> Exchange:
    """Kind of collective, such as all-reduce, by PyTorch's operator name."""
    name = operator.partition(".")[2].replace("_", "")
    found = (begin for begin in _BY_NAME if name.startswith(begin))
    longest = max(found, key=len, default="")
    return _BY_NAME.get(longest, Exchange.OTHER)


def exchanged_bytes(work: Work) -> int:
    """Bytes of a collective as nccl-tests count them: the larger of its inputs and its outputs.

    Args:
        work: the collective, with its tensors.
    """
    return max(_bytes(work.inputs), _bytes(work.outputs))


def _bytes(operands: tuple[Operand, ...]) -> int:
    return sum(operand.num_bytes for operand in operands)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """Transfer protocol of NCCL (such as LL or Simple), with its latencies and its share of the bandwidth.

    Attributes:
        start: seconds that a collective takes whatever its number of bytes.
        hop: seconds for each step of the algorithm from one rank to the next.
        share: share of the bandwidth that it reaches.
    """

    start: float
    hop: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way in which NCCL runs an operation over links: a protocol with its algorithm.

    Attributes:
        start: seconds that it takes whatever its number of bytes.
        hop: seconds for each step from one rank to the next.
        bus: bytes per second on a link.
    """

    start: float
    hop: float
    bus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Speeds of operations over links, fitted to rows of them.

    Attributes:
        ways: ways that NCCL can take; the fastest counts.
        fewer_ranks: how much slower a link is with few ranks: by this over the square of their number.
    """

    ways: tuple[Way, ...]
    fewer_ranks: float

    def seconds(self, num_bytes: float, steps: int, num_ranks: int) -> float:
        """Seconds of a collective.

        Args:
            num_bytes: bytes that pass each link.
            steps: steps from rank to rank.
            num_ranks: number of ranks.
        """
        on_link = num_bytes * (1 + self.fewer_ranks / num_ranks**2)
        return min(way.start + steps * way.hop + on_link / way.bus for way in self.ways)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Link between cards or between nodes, with its speeds under NCCL.

    Attributes:
        protocols: protocols that NCCL can take; the fastest counts.
        tree: the share of the bandwidth that NCCL's tree algorithm reaches.
        units: multiprocessors that a collective takes from kernels that run beside it.
        peer_start: seconds that a send from rank to rank or an all-to-all takes whatever its number of bytes.
        rings: by operation, its speeds over links with rows of their own; empty for others.
        apart: seconds between the first and the last rank that comes to a collective; 0 if the constants of
            the protocols have them already.
    """

    protocols: tuple[Protocol, ...]
    tree: float
    units: int
    peer_start: float
    rings: Mapping[str, Ring] = dataclasses.field(default_factory=dict)
    apart: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Links between the cards of a node and between nodes, with their bandwidths in bytes per second.

    Attributes:
        name: name of the links within a node, as in links.toml.
        within, between: link between cards of a node, and between nodes.
        bus: bus bandwidth of large all-reduces in a node, as nccl-tests define it, in bytes per second.
        peer: bytes per second from one card to another.
        nic: bytes per second between nodes, for each card of a node.
        num_cards: number of cards in a node.
        num_rows: number of measured all-reduces in a node that the values are fitted to; 0 if assumed.
    """

    name: str
    within: Link
    between: Link
    bus: float
    peer: float
    nic: float
    num_cards: int
    num_rows: int = 0

    def spans_nodes(self, group: Group) -> bool:
        """Whether the ranks of a group are on more than one node."""
        return (group.num_ranks - 1) * group.stride >= self.num_cards

    def has_rows(self, exchange: Exchange, group: Group) -> bool:
        """Whether rows of an operation over the links of a group are behind its prediction."""
        if self.spans_nodes(group) or not self.num_rows:
            return False
        return exchange is Exchange.ALL_REDUCE or (exchange in _TIMED and bool(self.within.rings))

    def in_words(self, groups: Iterable[Group]) -> str:
        """Sentence about the links that are assumed to join the ranks of `groups`."""
        said = f"ranks are joined by {_NAMES[self.name]} in nodes of {self.num_cards} cards"
        if any(map(self.spans_nodes, groups)):
            said += f", and nodes by {self.nic / 1e9:.3g} GB/s for each card"
        return f"{said}, as is assumed; no step of several ranks was ever compared with a real one"

    def link(self, group: Group) -> Link:
        """Slowest link that a collective of a group of ranks uses: between nodes if it spans several."""
        return self.between if self.spans_nodes(group) else self.within

    def seconds(
        self, exchange: Exchange, num_bytes: int, group: Group, *, is_repeated: bool = False
    ) -> float:
        """Seconds of a collective, without the launch of its kernel; 0 for a single rank.

        Args:
            exchange: kind of the collective.
            num_bytes: bytes as `exchanged_bytes` counts them.
            group: the ranks that take part.
            is_repeated: whether it follows on itself, so that the ranks come to it at the same time.
        """
        if group.num_ranks < 2:
            return 0.0
        seconds = self._together(exchange, num_bytes, group)
        waits = not is_repeated and exchange is not Exchange.SEND
        return max(seconds, self.link(group).apart) if waits else seconds

    def _together(self, exchange: Exchange, num_bytes: int, group: Group) -> float:
        """Seconds of a collective to which all ranks come at the same time."""
        n = group.num_ranks
        bandwidth, link = self._bandwidth(exchange, group), self.link(group)
        ring = link.rings.get(_RINGS.get(exchange, ""))
        if ring is not None:
            times = 2 if exchange in _AS_ALL_REDUCE else 1
            return ring.seconds(times * (n - 1) / n * num_bytes, times * (n - 1), n)
        if exchange in _FROM_EACH_TO_EACH:
            share_of_bytes = 1.0 if exchange is Exchange.SEND else (n - 1) / n
            return link.peer_start + share_of_bytes * num_bytes / bandwidth
        return min(
            protocol.start
            + steps * protocol.hop
            + share_of_bytes * num_bytes / (bandwidth * protocol.share * share)
            for steps, share_of_bytes, share in _algorithms(exchange, n, link.tree)
            for protocol in link.protocols
        )

    def _bandwidth(self, exchange: Exchange, group: Group) -> float:
        # NVSwitch adds up the parts of an all-reduce, which may so exceed the speed at which one card sends.
        within = self.bus if exchange in _AS_ALL_REDUCE else min(self.bus, self.peer)
        if exchange in _FROM_EACH_TO_EACH:
            within = self.peer
        if not self.spans_nodes(group):
            return within
        if exchange in _FROM_EACH_TO_EACH:
            return min(within, self.nic)
        num_on_node = min(group.num_ranks, max(1, self.num_cards // group.stride))
        return min(within, num_on_node * self.nic)


def _algorithms(exchange: Exchange, n: int, tree: float) -> tuple[tuple[float, float, float], ...]:
    """Properties of the NCCL algorithms (ring, tree) that can run a collective of `n` ranks.

    Args:
        exchange: kind of the collective.
        n: number of ranks.
        tree: share of the bandwidth that trees reach.

    Returns:
        For each algorithm: the number of steps from rank to rank, the bytes that pass each link over the
        bytes of the collective, and the share of the bandwidth that it reaches.
    """
    if exchange in _AS_ALL_REDUCE:
        on_link = 2 * (n - 1) / n
        return (2 * (n - 1), on_link, 1.0), (2 * math.log2(n), on_link, tree)
    if exchange in (Exchange.ALL_GATHER, Exchange.REDUCE_SCATTER):
        return ((n - 1, (n - 1) / n, 1.0),)
    return ((n - 1, 1.0, 1.0),)


def network_of(name: str, architecture: str) -> Network | None:
    """Network that is assumed to join cards of a model; None if neither name nor architecture is known.

    Args:
        name: the cards' name in CUDA.
        architecture: `sm_XY`.
    """
    table = _table()
    found = table["cards"].get(name) or table["cards"].get(architecture)
    if found is None:
        return None
    return Network(
        name=found["link"],
        within=_link(table["links"][found["link"]]),
        between=_link(table["links"]["network"]),
        num_cards=table["num_cards"],
        **{key: found[key] for key in ("bus", "peer", "nic", "num_rows")},
    )


def _link(data: Mapping[str, Any]) -> Link:
    return Link(
        protocols=tuple(Protocol(**each) for each in data["protocols"]),
        tree=data["tree"],
        units=data["units"],
        peer_start=data["peer_start"],
        apart=data.get("apart", 0.0),
        rings={
            name: Ring(ways=tuple(Way(**way) for way in ring["ways"]), fewer_ranks=ring["fewer_ranks"])
            for name, ring in data.get("rings", {}).items()
        },
    )


@functools.cache
def _table() -> dict[str, Any]:
    data = read_toml(text_of("links.toml"))
    if data.get("schema") != SCHEMA:
        raise ValueError(f"expected links of schema {SCHEMA}, got {data.get('schema')!r}")
    return data
