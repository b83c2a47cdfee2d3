"""Seconds of fused attention in a forward pass: tiles of queries that go through blocks of keys.

    a prompt          each multiprocessor takes tiles of some queries of one head; a tile goes through the
                      keys in blocks of 128: two products of the block, and the exponentials of its pairs
    one token more    a single query has the heads that share keys as its tile; the keys are split among the
                      multiprocessors, and the parts are added afterwards

FlashAttention 2 gives heads that share keys a tile each if a window limits the keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autofit_workers.replay.time.kernels import Attention

_BLOCK = 128
_SHARING = 64  # heads of queries in one tile
_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
_TILES_AT_ONCE = 2  # of single queries, on a multiprocessor


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptConstants:
    """Constants of attention with many queries.

    Attributes:
        efficiency: share of the peak that the products of a block reach.
        softmax: clock cycles that a multiprocessor takes for the exponentials of 100 pairs.
        start: seconds to begin and end a tile.
        tail: share of the idle time in a last, unfilled wave of tiles that counts.
        overlapped: share of the shorter of arithmetic and memory traffic that takes no extra time.
        rows: queries of a tile; half of them where there are no more.
        older: time of FlashAttention 2 over that of the kernels that the constants are of.
    """

    efficiency: float
    softmax: float
    start: float
    tail: float
    overlapped: float
    rows: int = 128
    older: float = 1.0

    def seconds(
        self, attention: Attention, *, flops: float, num_units: int, clock: float, exponentials: float = 1.0
    ) -> float:
        """Seconds of the arithmetic.

        Args:
            attention: what attends to what.
            flops: FLOP per second of the whole device at its peak.
            num_units: number of multiprocessors.
            clock: their clock rate in hertz.
            exponentials: exponentials of a clock cycle, as many times those of the card of the constants.
        """
        rows = self.rows if 2 * attention.queries > self.rows else self.rows // 2
        tiles = math.ceil(attention.queries / rows)
        longest, blocks = _blocks_of_tiles(attention, tiles, rows)
        num_heads = attention.batch * attention.heads
        pairs = rows * _BLOCK
        of_products = 4 * attention.width * num_units / (flops * self.efficiency)
        of_block = pairs * (of_products + self.softmax / 100 / (clock * exponentials))
        slowest = longest * of_block + self.start
        waves = num_heads * tiles / num_units
        evenly = (num_heads * blocks * of_block + num_heads * tiles * self.start) / num_units
        idle = self.tail * slowest * (math.ceil(waves) - waves) / 2
        return max(evenly + idle, slowest) * (self.older if attention.is_older else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConstants:
    """Constants of attention of a single query to the keys of all tokens before it.

    Attributes:
        block: seconds for the products of 128 keys of 128 elements.
        softmax: seconds for 128 keys whatever their width.
        start: seconds to begin and end a tile.
        split: seconds to add the parts of split keys.
        overlapped: share of the shorter of arithmetic and memory traffic that takes no extra time.
    """

    block: float
    softmax: float
    start: float
    split: float
    overlapped: float

    def seconds(self, attention: Attention, *, num_units: int) -> float:
        """Seconds without the traffic of the memory, with the fastest split of the keys.

        Args:
            attention: what attends to what.
            num_units: number of multiprocessors.
        """
        sharing = attention.heads / attention.kv_heads
        is_apart = attention.window and attention.is_older
        tiles = (
            attention.batch * attention.kv_heads * (sharing if is_apart else math.ceil(sharing / _SHARING))
        )
        blocks = math.ceil(_seen_keys(attention) / _BLOCK)
        of_block = self.block * attention.width / _BLOCK + self.softmax
        return min(
            math.ceil(tiles * split / (_TILES_AT_ONCE * num_units))
            * (math.ceil(blocks / split) * of_block + self.start)
            + (self.split if split > 1 else 0.0)
            for split in _SPLITS
            if split == 1 or split <= blocks
        )


def attention_bytes(attention: Attention, element_bytes: int) -> int:
    """Bytes that attention reads and writes; of keys that a window leaves out none, if there is one query."""
    keys = _seen_keys(attention) if attention.queries == 1 else attention.keys
    of_queries = attention.queries * attention.heads
    of_keys = keys * attention.kv_heads
    return 2 * element_bytes * attention.batch * attention.width * (of_queries + of_keys)


def _seen_keys(attention: Attention) -> int:
    return min(attention.keys, attention.window) if attention.window else attention.keys


def _blocks_of_tiles(attention: Attention, tiles: int, rows: int) -> tuple[int, int]:
    """Blocks of keys that the longest tile of a head goes through, and those of all its tiles together."""
    every = math.ceil(attention.keys / _BLOCK)
    most = every
    if attention.window and attention.window < attention.keys:
        most = min(every, math.ceil(attention.window / _BLOCK) + 1)  # a window begins within a block
    if not attention.is_causal:
        return most, tiles * most
    # A tile goes through the keys of earlier tokens and of its own: those of a window at most.
    before = attention.keys - attention.queries
    blocks = sum(min(math.ceil((before + tile * rows) / _BLOCK), most) for tile in range(1, tiles + 1))
    return most, blocks
