"""Finds the lowering, the PyTorch code that computes a rewritten convolution, for each rewrite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autofit_workers.conv.chunked import Chunked
from autofit_workers.conv.fft import Fft
from autofit_workers.conv.im2col import ChunkedIm2col, Im2col
from autofit_workers.conv.lowering import Lowering
from autofit_workers.conv.matmul_1x1 import Matmul1x1
from autofit_workers.spec.conv_algorithms import chunked, fft, im2col, im2col_chunked, matmul_1x1
from autofit_workers.spec.conv_algorithms.algorithm import Rewrite

_LOWERINGS: dict[type[Rewrite], Callable[[Any], Lowering]] = {
    chunked.Chunked: lambda rewrite: Chunked(rewrite.num_samples),
    fft.Fft: lambda _: Fft(),
    im2col.Im2col: lambda _: Im2col(),
    im2col_chunked.ChunkedIm2col: lambda rewrite: ChunkedIm2col(rewrite.num_pixels),
    matmul_1x1.Matmul1x1: lambda _: Matmul1x1(),
}


def lowering_of(rewrite: Rewrite) -> Lowering:
    """Returns the lowering that computes the convolutions of a rewrite, such as im2col."""
    return _LOWERINGS[type(rewrite)](rewrite)
