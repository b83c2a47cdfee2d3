"""Corrections: memory that predictions add besides operators' outputs, each switched off by its name.

`Allocation.correction` has the name of one, and `Conditions.corrections` the names that are switched on.
Convolution workspaces have no name here: the convolution policy decides about them.
"""

from __future__ import annotations

from typing import NamedTuple


class Correction(NamedTuple):
    """Kind of GPU memory that predictions add besides operators' outputs, such as cuBLAS's workspace.

    Attributes:
        name: name by which it is switched on or off.
        explanation: what the memory is for, in words.
    """

    name: str
    explanation: str


CORRECTIONS = (
    Correction(
        "cublas", "the workspace of matrix products, one for the thread of forward and one for backward"
    ),
    Correction("attention", "the scratch memory of flash and memory-efficient attention in backward"),
    Correction("layout_copies", "copies of arguments whose layout or type an operator does not take"),
    Correction("layer_norm", "the partial sums of LayerNorm's parameter gradients where there are many rows"),
    Correction("embedding_backward", "sorted indices and partial sums of an embedding's gradient"),
    Correction("norms", "partial norms of the tensors whose norms are taken together"),
    Correction("kernels", "the scratch memory of operators that are not PyTorch's, as it is registered"),
    Correction("softmax_backward", "the product of softmax's output and its gradient"),
    Correction("sort", "positions, and buffers to sort in, of rows of more than 4096 numbers"),
    Correction("reductions", "what blocks share that sum over many rows, as for the gradient of a bias"),
    Correction("index_backward", "sorted indices where the gradient of indexing is accumulated"),
)

CORRECTION_NAMES = frozenset(correction.name for correction in CORRECTIONS)
