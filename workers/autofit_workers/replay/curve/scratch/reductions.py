"""Scratch memory of a sum over outer dimensions by several blocks: `ReduceConfig::global_memory_size`.

The formulas repeat PyTorch's (2.13, aten/src/ATen/native/cuda/Reduce.cuh: `setReduceConfig`,
`set_block_dimension`, `get_output_vec_size`). Every block gets room for the partial results of its threads,
up to four numbers each: a sum over many rows, such as the gradient of a bias, takes 64 KiB for each block
that the card runs at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

from autofit_workers.spec.trace import Scratch

_MAX_THREADS = 512
_MOST_VALUES_PER_THREAD = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """Multiprocessors of a card and their limits, as far as reductions depend on them.

    Attributes:
        num: number of multiprocessors, or of AMD's compute units.
        threads: most threads that one multiprocessor holds at the same time.
        warp: number of threads that run together.
        fewest_values: fewest inputs that a thread sums when several thread blocks share an output.
        fewest_shares: fewest thread blocks that share an output, if any do.
    """

    num: int
    threads: int
    warp: int = 32
    fewest_values: int = 16
    fewest_shares: int = 1


def reduction_bytes(scratch: Scratch, processors: Processors) -> int:
    """Scratch bytes of one reduction, such as a sum over rows; 0 if no output is shared by thread blocks.

    Args:
        scratch: its dimensions are inputs per output, number of outputs, and outputs in a dense row.
        processors: the card's multiprocessors.
    """
    num_inputs, num_outputs, width = scratch.dimensions
    vector = next(size for size in (4, 2, 1) if width % size == 0)  # outputs per thread
    columns, rows = _block(num_outputs // vector, num_inputs, _MAX_THREADS // vector, processors.warp)
    if num_inputs < min(rows * 16, _MOST_VALUES_PER_THREAD):
        return 0
    values = -(-num_inputs // rows)  # inputs per thread
    num_blocks = -(-(num_outputs // vector) // columns)
    at_once = processors.num * (processors.threads // (rows * columns))
    if values < _MOST_VALUES_PER_THREAD or num_blocks > at_once:
        return 0
    shares = max(
        min(-(-at_once // num_blocks), -(-values // processors.fewest_values)),
        -(-values // _MOST_VALUES_PER_THREAD),
    )
    if shares <= 1:
        return 0
    shares = max(shares, processors.fewest_shares)
    return scratch.element_bytes * num_outputs * shares * columns * vector


def _block(across: int, along: int, most: int, warp: int) -> tuple[int, int]:
    across, along = min(_power_of_two(across), most), min(_power_of_two(along), most)
    rows = min(along, most // min(across, warp))
    return min(across, most // rows), rows


def _power_of_two(number: int) -> int:
    """Largest power of two that is not above `number`."""
    return 1 << (max(number, 1).bit_length() - 1)
