"""Peak surface: the peak memory of a step at any batch and sample size, from traces of a few points.

A *size* is the number of tokens of a text, the side of an image, or whatever a workload's `make_batch` takes
as `size`. What a size is rounded to, such as the patches of an image or the blocks of a kernel, makes steps:
a surface is of sizes that leave the same remainder, `remainder + multiple·k`, and in k every dimension is a
polynomial.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from autofit_workers.replay.curve.lines.forms import Form, Forms
from autofit_workers.replay.curve.lines.step_lines import StepFunctions, StepLines
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.spec.trace import Trace


def curves_by_size(
    traces: Mapping[tuple[int, int], Trace], *, multiple: int, degree: int = 1
) -> Callable[[int], PeakCurve]:
    """Peak surface: function from a sample size, such as a sequence length, to the peak curve at it.

    It covers the sizes that leave the remainder of the traced ones; each curve is made once.

    Args:
        traces: traces of one workload and one knob setting, by batch size and size of a sample. With one
            batch size alone the curves cover that size.
        multiple: distance of the sizes.
        degree: degree of the polynomials of the size: 1 for texts, 2 for images.

    Raises:
        BatchDependentEventsError: the traces differ in more than sizes that are products of polynomials.
        ValueError: the sizes leave different remainders, or there are too few of them.
    """
    remainders = {size % multiple for _, size in traces}
    if len(remainders) != 1:
        raise ValueError(f"the sizes of a surface leave one remainder by {multiple}, not {remainders}")
    forms = Forms([(batch, size // multiple) for batch, size in traces], degree=degree)
    functions = StepFunctions[Form].through(list(traces.values()), forms.form)

    @functools.cache
    def curve_at(size: int) -> PeakCurve:
        assert size % multiple in remainders
        line = functools.cache(functools.partial(forms.line, step=size // multiple))
        return PeakCurve.of(StepLines(functions.mapped(line), only_batch_size=forms.only_batch_size))

    return curve_at
