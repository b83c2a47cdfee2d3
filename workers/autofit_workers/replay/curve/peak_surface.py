"""Peak surface: the peak memory of a step at any batch and sample size, from traces of a few points.

A *size* is the number of tokens of a text, the side of an image, or whatever a workload's `make_batch` takes
as `size`. What a size is rounded to, such as the patches of an image or the blocks of a kernel, makes steps:
a surface is of sizes that leave the same remainder, `remainder + multiple·k`, and in k every dimension is a
polynomial. `surface.at(size)` is the peak curve at one size.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from autofit_workers.replay.curve.lines.forms import Form, Forms
from autofit_workers.replay.curve.lines.step_lines import StepFunctions, StepLines
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.spec.trace import Trace


class PeakSurface:
    """Peak curves of a step at any sample size, such as a sequence length.

    Args:
        traces: of one workload and one knob setting, by batch size and size of a sample. At one batch size
            alone the curves know that size.
        multiple: what the sizes lie apart by.
        degree: of the polynomials of the size: 1 for texts, 2 for images.

    Attributes:
        multiple: as given.
        remainder: of all sizes that the surface covers, when divided by the multiple.

    Raises:
        BatchDependentEventsError: the traces differ in more than sizes that are products of polynomials.
        ValueError: the sizes leave different remainders, or there are too few of them.
    """

    def __init__(self, traces: Mapping[tuple[int, int], Trace], *, multiple: int, degree: int = 1) -> None:
        remainders = {size % multiple for _, size in traces}
        if len(remainders) != 1:
            raise ValueError(f"the sizes of a surface leave one remainder by {multiple}, not {remainders}")
        self.multiple = multiple
        self.remainder = remainders.pop()
        self._forms = Forms([(batch, size // multiple) for batch, size in traces], degree=degree)
        self._functions = StepFunctions[Form].through(list(traces.values()), self._forms.form)
        self._curves: dict[int, PeakCurve] = {}

    def knows(self, size: int) -> bool:
        """Whether the surface covers a sample size: its remainder by `multiple` is the surface's."""
        return size % self.multiple == self.remainder

    def at(self, size: int) -> PeakCurve:
        """Peak curve at a sample size; made once."""
        assert self.knows(size)
        if size not in self._curves:
            line = functools.cache(functools.partial(self._forms.line, step=size // self.multiple))
            lines = self._functions.mapped(line)
            self._curves[size] = PeakCurve.of(StepLines(lines, only_batch_size=self._forms.only_batch_size))
        return self._curves[size]
