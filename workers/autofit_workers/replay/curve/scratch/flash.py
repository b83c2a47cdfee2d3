"""Sizes of the scratch memory of FlashAttention's kernels on NVIDIA's cards.

From github.com/Dao-AILab/flash-attention, release 2.8.3: csrc/flash_attn/flash_api.cpp for FlashAttention 2,
hopper/flash_api.cpp for 3. Sizes that do not depend on the card are computed as the trace is made
(`autofit_workers.tracing.kernels.flash_attn2`).
"""

from __future__ import annotations

from collections.abc import Callable

from autofit_workers.spec.trace import Scratch

# Bits of a mask in FlashAttention 3, which chooses its tiles by them: no mask, causal, local, and
# soft-capped.
FULL, CAUSAL, LOCAL, CAPPED = 0, 1, 2, 4
_FLOAT_BYTES = 4
_MOST_SPLITS = 128


def _ceil(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _forward_splits(scratch: Scratch, _capability: int, multiprocessors: int) -> int:
    """Bytes of FlashAttention's partial results, if it splits the keys among thread blocks; else 0.

    `set_params_splitkv` of csrc/flash_attn/flash_api.cpp.
    """
    batch, heads, rows, keys, head_size, numbers = scratch.dimensions
    block = 256 if head_size <= 64 else 128 if head_size <= 128 else 64
    splits = _num_splits(batch * heads * -(-rows // 64), 2 * multiprocessors, -(-keys // block))
    return splits * batch * heads * rows * numbers * _FLOAT_BYTES if splits > 1 else 0


def _num_splits(blocks: int, multiprocessors: int, key_blocks: int) -> int:
    """Number of splits of the keys that FlashAttention chooses (`num_splits_heuristic`).

    It is the smallest number at which the multiprocessors are at least 85 % as busy as at the best number.

    Args:
        blocks: thread blocks of the kernel without splits.
        multiprocessors: number of thread blocks that the card runs at the same time.
        key_blocks: blocks into which the kernel divides the keys.
    """
    if blocks >= 0.8 * multiprocessors:
        return 1
    efficiency = {}
    for splits in range(1, min(_MOST_SPLITS, multiprocessors, key_blocks) + 1):
        if splits > 1 and -(-key_blocks // splits) == -(-key_blocks // (splits - 1)):
            continue  # each split gets as many blocks of keys as with one split less
        waves = blocks * splits / multiprocessors
        efficiency[splits] = waves / -(-waves // 1)
    best = max(efficiency.values(), default=0)
    return next((splits for splits, each in efficiency.items() if each >= 0.85 * best), 1)


def _query_gradient_splits(scratch: Scratch, _capability: int, multiprocessors: int) -> int:
    """Bytes of the query gradient's partial sums in FlashAttention's deterministic backward (`mha_bwd`).

    There are as many as multiprocessors divided by batch · heads, rounded up.
    """
    batch, heads, rows, width = scratch.dimensions
    return -(-multiprocessors // (batch * heads)) * rows * heads * width * _FLOAT_BYTES


# FlashAttention 3. `mha_bwd` pads rows and keys to the tiles of its kernels, `kBlockM` and `kBlockN`.


def _row_tile(capability: int, width: int, mask: int) -> int:
    if capability in (86, 89):
        return 64 if width <= 192 else 32
    if capability < 90:
        return 128 if width <= 64 else 64
    if width <= 64:
        return 96 if mask == CAUSAL | CAPPED else 128
    return 80 if 96 < width <= 128 and mask == FULL else 64


def _key_tile(capability: int, width: int) -> int:
    if capability in (86, 89):
        return 128 if width <= 96 else 96 if width <= 128 else 64
    if width <= 128:
        return 128
    if capability < 90:
        return 80 if width <= 192 else 64
    return 96 if width <= 192 else 80


def _rows(scratch: Scratch, capability: int, _multiprocessors: int) -> int:
    batch, heads, rows, width, mask, numbers = scratch.dimensions
    return batch * heads * _ceil(rows, _row_tile(capability, width, mask)) * numbers * _FLOAT_BYTES


def _packed_rows(scratch: Scratch, capability: int, _multiprocessors: int) -> int:
    """Bytes of buffers of FlashAttention 3's backward that hold numbers for each row, with packed sequences.

    Rows are padded to the kernel's tiles, and each packed sequence may begin a new tile.
    """
    batch, heads, rows, width, mask, numbers = scratch.dimensions
    tile = _row_tile(capability, width, mask)
    return heads * _ceil(rows + batch * tile, tile) * numbers * _FLOAT_BYTES


def _keys(scratch: Scratch, capability: int, _multiprocessors: int) -> int:
    batch, heads, keys, width = scratch.dimensions
    return batch * heads * _ceil(keys, _key_tile(capability, width)) * width * _FLOAT_BYTES


def _packed_keys(scratch: Scratch, capability: int, _multiprocessors: int) -> int:
    batch, heads, keys, width = scratch.dimensions
    tile = _key_tile(capability, width)
    return heads * _ceil(keys + batch * tile, tile) * width * _FLOAT_BYTES


# Bytes by the formula's name, from a scratch allocation, the card's compute capability and multiprocessors.
FORMULAS: dict[str, Callable[[Scratch, int, int], int]] = {
    "flash2_forward_splits": _forward_splits,
    "flash2_query_gradient_splits": _query_gradient_splits,
    "flash3_rows": _rows,
    "flash3_packed_rows": _packed_rows,
    "flash3_keys": _keys,
    "flash3_packed_keys": _packed_keys,
}
