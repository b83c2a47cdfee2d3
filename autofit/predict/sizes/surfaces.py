"""Peaks of one workload over batch and sample size, derived from traces at a few sample sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from autofit_workers.replay.curve.lines.step_lines import BatchDependentEventsError
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES, PeakCurve
from autofit_workers.replay.curve.peak_surface import curves_by_size
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import SampleSize, Trace

Point = tuple[int, int]  # batch size, size of a sample
PeakSurface = Callable[[int], PeakCurve]  # the curve at a sample size
_DEGREES = (1, 2)  # of the polynomials in the sample size: for texts, and for images
USUAL_SIZES = (128, 256)  # tokens at which a surface is traced; sizes of texts are usually multiples of 64
_MULTIPLES = (2, 4, 6, 8)  # sizes, as multiples, at which a surface is traced that is needed at one size only
_SHORT_MULTIPLES = (1, 2, 3, 4)  # likewise for a model that supports no longer samples


class Surfaces:
    """Finds peak curves (memory over the batch size) at any sample size, from traces at a few sizes.

    Args:
        trace: returns the trace of a knob setting at a batch size.
        expect: called with a knob setting and the batch sizes whose traces will be needed next.
    """

    def __init__(
        self,
        trace: Callable[[Knobs, int], Trace],
        expect: Callable[[Knobs, Sequence[int]], None],
    ) -> None:
        self._trace = trace
        self._say_expected = expect
        self._wanted: dict[Knobs, set[int]] = {}
        self._samples: dict[Knobs, SampleSize | None] = {}
        self._made: dict[tuple[object, ...], PeakSurface | None] = {}  # by setting and traced points

    def want(self, settings: Iterable[Knobs]) -> None:
        """Announces all knob settings that will need curves, in place of those announced before.

        Settings that differ only in the sample size will share traces.
        """
        self._wanted.clear()
        for knobs in settings:
            if knobs.seq_len is not None:
                self._wanted.setdefault(_of_any_size(knobs), set()).add(knobs.seq_len)

    def is_wanted(self, knobs: Knobs) -> bool:
        """Whether a knob setting is one of several announced ones that differ only in the sample size."""
        return knobs.seq_len is not None and len(self._wanted.get(_of_any_size(knobs), ())) > 1

    def expect(self, knobs: Knobs, batch_size: int) -> None:
        """Announces that traces at the usual sample sizes will be needed, at one batch size."""
        for size in USUAL_SIZES:
            self._say_expected(dataclasses.replace(knobs, seq_len=size), [batch_size])

    def curve(self, knobs: Knobs) -> PeakCurve | None:
        """Peak curve of an announced knob setting, from traces shared with settings of other sample sizes.

        Returns:
            The curve; None if no such traces are shared, or if the step does not just scale with the sample
            size.
        """
        if not self.is_wanted(knobs):
            return None
        assert knobs.seq_len is not None
        own = knobs.seq_len
        wanted = self._wanted[_of_any_size(knobs)]
        multiple = self.sample(knobs, 1).multiple
        sizes = sorted(size for size in wanted if (size - own) % multiple == 0)
        surface = self._surface(knobs, multiple, TRACED_BATCH_SIZES, tuple(sizes))
        return None if surface is None else surface(own)

    def around(
        self, knobs: Knobs, batch_sizes: tuple[int, ...], *, is_checked: bool = True
    ) -> PeakSurface | None:
        """Peak curves at all sample sizes that differ from that of `knobs` by multiples of a step.

        Args:
            knobs: knob setting with a sample size.
            batch_sizes: three batch sizes to trace at, for results at any batch size; or one, for results at
                this batch size only.
            is_checked: whether an additional trace has to confirm the result.

        Returns:
            Function from sample size to peak curve; None if the step does not just scale with the sample
            size.
        """
        sample = self.sample(_of_any_size(knobs), batch_sizes[0])
        assert knobs.seq_len is not None
        multiple, remainder = sample.multiple, knobs.seq_len % sample.multiple
        is_short = sample.longest is not None and sample.longest < multiple * _MULTIPLES[-1] + remainder
        places = _SHORT_MULTIPLES if is_short else _MULTIPLES
        sizes = tuple(multiple * place + remainder for place in places)
        return self._surface(knobs, multiple, batch_sizes, sizes, is_checked=is_checked)

    def is_too_long(self, knobs: Knobs, batch_size: int) -> bool:
        """Whether samples of the size in a knob setting are longer than the model supports."""
        longest = self.sample(_of_any_size(knobs), batch_size).longest
        return longest is not None and knobs.seq_len is not None and knobs.seq_len > longest

    def sample(self, knobs: Knobs, batch_size: int) -> SampleSize:
        """Size of a knob setting's samples and its limits, from the first trace made for the setting."""
        sample = self.sample_if_sized(knobs, batch_size)
        assert sample is not None, "a workload without sizes refuses to be traced at one"
        return sample

    def sample_if_sized(self, knobs: Knobs, batch_size: int) -> SampleSize | None:
        """Size of a knob setting's samples and its limits; None if all its samples have one size."""
        key = _of_any_size(knobs)
        if key not in self._samples:
            self._samples[key] = self._trace(knobs, batch_size).sample
        return self._samples[key]

    def _surface(
        self,
        knobs: Knobs,
        multiple: int,
        batch_sizes: tuple[int, ...],
        sizes: tuple[int, ...],
        *,
        is_checked: bool = True,
    ) -> PeakSurface | None:
        """Peak curves by sample size from traces on a grid; None if the step follows no polynomial."""
        grids = [_grid(batch_sizes, sizes, degree) for degree in _DEGREES if len(sizes) > degree]
        checks = [_check(batch_sizes, sizes, degree) for degree in _DEGREES] if is_checked else [()] * 2
        key = _of_any_size(knobs), multiple, tuple(grids), tuple(checks)
        if key not in self._made:
            found = (
                self._through(knobs, multiple, tuple(dict.fromkeys((*grid, *check))), degree)
                for grid, check, degree in zip(grids, checks, _DEGREES, strict=False)
            )
            self._made[key] = next((surface for surface in found if surface is not None), None)
        return self._made[key]

    def _through(
        self, knobs: Knobs, multiple: int, points: Sequence[Point], degree: int
    ) -> PeakSurface | None:
        settings = {size: dataclasses.replace(knobs, seq_len=size) for _, size in points}
        for batch_size, size in points:
            self._say_expected(settings[size], [batch_size])
        traces = {point: self._trace(settings[point[1]], point[0]) for point in points}
        try:
            return curves_by_size(traces, multiple=multiple, degree=degree)
        except BatchDependentEventsError:
            return None


def _of_any_size(knobs: Knobs) -> Knobs:
    return dataclasses.replace(knobs, seq_len=None)


def _grid(batch_sizes: tuple[int, ...], sizes: tuple[int, ...], degree: int) -> tuple[Point, ...]:
    """Pairs of batch size and sample size to trace, from which a polynomial surface is computed.

    Args:
        degree: degree of tensor sizes as polynomials in the sample size.
    """
    return tuple((batch_size, size) for size in sizes[: degree + 1] for batch_size in batch_sizes[:2])


def _check(batch_sizes: tuple[int, ...], sizes: tuple[int, ...], degree: int) -> tuple[Point, ...]:
    """Pair of batch size and sample size whose trace checks a polynomial surface, in a tuple.

    Args:
        degree: degree of tensor sizes as polynomials in the sample size.
    """
    is_last = len(sizes) <= degree + 1 or len(batch_sizes) > 1
    return ((batch_sizes[-1], sizes[-1] if is_last else sizes[degree + 1]),)
