"""KV cache divided into blocks: the tokens that fit in it, and the blocks that a sequence takes.

one kind of layers     a block holds a number of tokens in all layers
several kinds          a block holds a number of tokens in one group of layers; all groups are equally large
                       (vllm/v1/core/kv_cache_utils.py, `_get_kv_cache_groups_uniform_page_size`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autofit.serving.architecture import Layer, LayerKind
from autofit_workers.spec.pythons import Self

# If the kind with most layers has less than this many times those of the kind with fewest, each group has as
# many layers as the former; else as the latter.
_ALIKE = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers that share blocks of the KV cache; a block holds some tokens of all of them.

    Attributes:
        blocks_of: takes the length of a sequence in tokens, and returns the number of blocks that it needs.
    """

    kind: LayerKind
    num_layers: int
    blocks_of: Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """KV cache of one rank, divided into blocks of equal size.

    Attributes:
        block_size: tokens of a block.
        block_bytes: bytes of a block in all layers of a group.
        num_blocks: number of blocks of all groups together.
    """

    block_size: int
    block_bytes: int
    num_blocks: int
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, available_bytes: int, block_size: int, block_bytes: int, groups: Sequence[Group]) -> Self:
        """KV cache with as many blocks as fit into `available_bytes`."""
        num_blocks = max(0, available_bytes) // block_bytes if block_bytes else 0
        return cls(
            block_size=block_size, block_bytes=block_bytes, num_blocks=num_blocks, groups=tuple(groups)
        )

    def with_bytes(self, available_bytes: int) -> Self:
        """Copy of the KV cache with as many blocks as fit into `available_bytes`."""
        return replace(self, num_blocks=max(0, available_bytes) // self.block_bytes)

    @property
    def num_tokens(self) -> int:
        """Number of cached tokens as the engine reports it, assuming that all groups keep every token."""
        return self.num_blocks // len(self.groups) * self.block_size if self.groups else 0

    def blocks_of(self, length: int) -> int:
        """Number of blocks, of all groups, that one sequence of `length` tokens takes."""
        return sum(group.blocks_of(length) for group in self.groups)

    def num_requests(self, length: int) -> int:
        """Largest number of sequences of `length` tokens that fit at once."""
        return self.num_blocks // self.blocks_of(length) if self.groups else 0

    def longest(self, most: int | None) -> int:
        """Length in tokens of the longest sequence that fits alone; 0 if no token fits.

        Args:
            most: length up to which to look; None for no limit.
        """
        if not self.num_blocks or self.blocks_of(1) > self.num_blocks:
            return 0
        low, high = 1, most or self.num_blocks * self.block_size
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.blocks_of(middle) <= self.num_blocks else (low, middle - 1)
        return low


def _cut(length: int, block_size: int) -> int:
    return -(-length // block_size)


def uniform(
    layers: Sequence[Layer], available_bytes: int, *, block_size: int, num_ranks: int, element_bytes: int
) -> Pool:
    """KV cache without groups of layers: each block holds some tokens of all layers.

    Layers with a sliding window keep all tokens too.

    Args:
        available_bytes: memory for the KV cache.
        block_size: tokens of a block.
        num_ranks: number of ranks that share the heads.
        element_bytes: bytes of a cached element.
    """
    block_bytes = block_size * sum(layer.token_bytes(num_ranks, element_bytes) for layer in layers)
    kept = [layer for layer in layers if layer.kind is not LayerKind.STATE]
    groups = [Group(kind=LayerKind.FULL, num_layers=len(kept), blocks_of=lambda n: _cut(n, block_size))]
    return Pool.of(available_bytes, block_size, block_bytes, groups if kept else [])


def grouped(
    layers: Sequence[Layer],
    available_bytes: int,
    *,
    block_size: int,
    num_ranks: int,
    element_bytes: int,
    state_bytes: int,
    num_batched_tokens: int,
    num_encoder_tokens: int,
) -> Pool:
    """KV cache with groups of layers: each block belongs to the layers of one kind, such as sliding window.

    Args:
        available_bytes: memory for the KV cache.
        block_size: tokens of a block; it is enlarged if a state needs larger blocks.
        num_ranks: number of ranks that share the heads.
        element_bytes: bytes of a cached element of keys and values.
        state_bytes: bytes of an element of a state.
        num_batched_tokens: tokens that are processed at once; a sliding window keeps so many in addition to
            its own.
        num_encoder_tokens: length in tokens of the sequence that cross attention attends to.
    """
    by_kind: dict[Layer, int] = {}
    for layer in layers:
        by_kind[layer] = by_kind.get(layer, 0) + 1
    states = [each.state_bytes(num_ranks, state_bytes) for each in by_kind if each.kind is LayerKind.STATE]
    of_token = [each.token_bytes(num_ranks, element_bytes) for each in by_kind]
    widest = max(of_token, default=0)
    if states and widest:
        # vllm/platforms/interface.py, `_align_hybrid_block_size`: a block of keys and values grows until it
        # is as large as a state, in steps of 16 tokens.
        block_size = max(block_size, 16 * -(-max(states) // (16 * widest)))
    if not widest:
        return _of_states(by_kind, available_bytes, states)
    page_bytes = block_size * widest
    group_size = _group_size(list(by_kind.values()))
    groups = [
        Group(
            kind=layer.kind,
            num_layers=group_size,
            # Layers with narrower keys have blocks of more tokens, so that all blocks have the same size.
            blocks_of=_rule(
                layer, page_bytes // width if width else block_size, num_batched_tokens, num_encoder_tokens
            ),
        )
        for (layer, number), width in zip(by_kind.items(), of_token, strict=True)
        for _ in range(-(-number // group_size))
    ]
    return Pool.of(available_bytes, block_size, page_bytes * group_size, groups)


def _group_size(counts: Sequence[int]) -> int:
    fewest, most = min(counts), max(counts)
    return most if most < fewest * _ALIKE else fewest


def _of_states(by_kind: dict[Layer, int], available_bytes: int, states: Sequence[int]) -> Pool:
    """KV cache of a model without attention: a block holds one sequence's state in all layers.

    Args:
        by_kind: number of layers of each kind.
        states: bytes of the state of a layer of each kind, in the same order.
    """
    block_bytes = sum(number * size for number, size in zip(by_kind.values(), states, strict=True))
    group = Group(kind=LayerKind.STATE, num_layers=sum(by_kind.values()), blocks_of=lambda _: 1)
    return Pool.of(available_bytes, 1, block_bytes, [group])


def _rule(
    layer: Layer, block_size: int, num_batched_tokens: int, num_encoder_tokens: int
) -> Callable[[int], int]:
    """Makes the function from a sequence's length to the number of blocks that a layer takes for it.

    Source: vllm/v1/kv_cache_interface.py of 0.20.2, `max_memory_usage_bytes` of each kind.
    """
    window = layer.window - 1 + num_batched_tokens
    rules: dict[LayerKind, Callable[[int], int]] = {
        LayerKind.SLIDING: lambda length: _cut(min(window, length), block_size) + 1,
        LayerKind.CROSS: lambda _: _cut(num_encoder_tokens, block_size),
        LayerKind.STATE: lambda _: 1,
    }
    return rules.get(layer.kind, lambda length: _cut(length, block_size))
