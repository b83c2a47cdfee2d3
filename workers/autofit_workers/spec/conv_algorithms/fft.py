"""FFT convolution: products of spectra, whose cost does not grow with the filter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autofit_workers.spec.conv_algorithms.algorithm import (
    Rewrite,
    extents,
    padded_shape,
    peak,
    rewrite_lines,
    tensor_bytes,
)
from autofit_workers.spec.conv_algorithms.spectra import Tiling, tiling
from autofit_workers.spec.devices import DEVICE_KINDS
from autofit_workers.spec.work import Convolution, ConvPass

_DTYPES = ("float32", "float64")
_FLOPS_OF_TRANSFORM = 2.5  # × points × log2 points, of real data: half of the customary 5
_FLOPS_OF_PRODUCT = 8  # a complex multiplication and addition


@dataclass(frozen=True, slots=True, kw_only=True)
class Fft(Rewrite):
    """Rewrite of a convolution into products of spectra (FFT): the whole batch, one image tile at a time."""

    def why_not(self, call: Convolution) -> str | None:
        if call.dtype not in _DTYPES:
            return f"torch.fft has no transforms of {call.dtype}"
        return None

    def own_bytes(self, call: Convolution) -> int:
        """Peak bytes of the spectra that the FFT convolution holds.

        The textbook has 8·H·(W/2+1)·(N·C + K·C + N·K) bytes in fp32, for N samples of H×W pixels, C input and
        K output channels. The peak is higher, because the inverse transform of `torch.fft` copies spectra.
        """
        return peak(self._changes(call))

    def flops(self, call: Convolution) -> int:
        tiles = self._tiling(call)
        images, filters, outputs = _counts(call)
        transforms = _FLOPS_OF_TRANSFORM * tiles.num_points * math.log2(max(2, tiles.num_points))
        per_tile = (images + outputs) * transforms + (
            _FLOPS_OF_PRODUCT * call.output_shape[0] * filters * tiles.num_frequencies
        )
        return int(len(tiles.corners) * per_tile + filters * transforms)

    def moved_bytes(self, call: Convolution) -> int:
        """Bytes read and written: the tensors, the spectra, and the sums over channels once per channel."""
        tiles = self._tiling(call)
        _, filters, _ = _counts(call)
        sums = 3 * call.output_shape[0] * filters * tiles.num_frequencies * 2 * call.element_bytes
        return tensor_bytes(call) + 2 * self.own_bytes(call) + len(tiles.corners) * sums

    def num_portions(self, call: Convolution) -> int:
        return len(self._tiling(call).corners) * call.weight_shape[1]

    def _tiling(self, call: Convolution) -> Tiling:
        return tiling(padded_shape(call), extents(call), call.stride)

    def _changes(self, call: Convolution) -> Iterator[int]:
        """Yields the bytes that each step of the FFT convolution allocates (positive) or frees (negative).

        The steps are those of `autofit_workers.conv.fft`.
        """
        tiles = self._tiling(call)
        images, filters, outputs = _counts(call)
        if call.conv_pass is ConvPass.WGRAD:
            for number in range(min(2, len(tiles.corners))):
                yield from self._transformed(call, tiles, images)
                yield from self._transformed(call, tiles, outputs)
                if number == 0:
                    yield self._spectra(call, tiles, filters)
                yield -self._spectra(call, tiles, images + outputs)
            yield from self._back(call, tiles, filters)
            return
        taken, made = (outputs, images) if call.conv_pass is ConvPass.DGRAD else (images, outputs)
        yield from self._transformed(call, tiles, filters)
        yield from self._transformed(call, tiles, taken)
        yield self._spectra(call, tiles, made)
        yield -self._spectra(call, tiles, taken)
        yield from self._back(call, tiles, made)

    def _spectra(self, call: Convolution, tiles: Tiling, count: int) -> int:
        return count * tiles.num_frequencies * 2 * call.element_bytes

    def _points(self, call: Convolution, tiles: Tiling, count: int) -> int:
        return count * tiles.num_points * call.element_bytes

    def _transformed(self, call: Convolution, tiles: Tiling, count: int) -> Iterator[int]:
        yield self._points(call, tiles, count)
        yield self._spectra(call, tiles, count)
        yield -self._points(call, tiles, count)

    def _back(self, call: Convolution, tiles: Tiling, count: int) -> Iterator[int]:
        """Yields the bytes that an inverse transform allocates (positive) and frees (negative).

        Over several dimensions complex transforms come first, in copies, and then one more copy.

        Args:
            call: the convolution.
            tiles: tiles of its output.
            count: number of one-channel images that are transformed.
        """
        spectra, points = self._spectra(call, tiles, count), self._points(call, tiles, count)
        yield from [points] if len(tiles.lengths) == 1 else [spectra, spectra, -spectra, points, spectra]


def _counts(call: Convolution) -> tuple[int, int, int]:
    """Number of one-channel images in the input, in the filters and in the output: N·C, K·C and N·K."""
    return tuple(math.prod(s[:2]) for s in (call.input_shape, call.weight_shape, call.output_shape))  # type: ignore[return-value]


ALGORITHM = Fft(
    name="fft",
    explanation="products of spectra (FFT), in tiles where images are large; a large filter costs no more",
    takes="spectra, 8·H·(W/2+1)·(N·C + K·C + N·K) bytes of fp32",
    device_kinds=DEVICE_KINDS,
    python_lines=rewrite_lines("fft"),
    source="Mathieu, Henaff and LeCun, Fast training of convolutional networks through FFTs, 2013",
)
