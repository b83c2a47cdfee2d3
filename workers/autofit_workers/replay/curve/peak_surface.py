"""Peak surface: the peak memory of a step at any batch and sample size, from traces of a few points.

A *size* is the number of tokens of a text, the side of an image, or whatever a workload's `make_batch` takes
as `size`. Operators may round it up, to whole patches of an image or whole blocks of a kernel. A surface
therefore covers only sizes with one remainder, `remainder + multiple·k`: there every dimension is a
polynomial in k.
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
    """Returns a function from a sample size, such as a sequence length, to the peak curve of the step.

    The peak curve gives the peak memory at any batch size. The function takes only sizes that leave the same
    remainder, divided by `multiple`, as the traced sizes. It makes each curve once.

    Args:
        traces: traces of one workload and one knob setting, by batch size and size of a sample. If all have
            one batch size, the curves cover that batch size only.
        multiple: distance between the sizes that are covered, such as 64 tokens.
        degree: degree of the polynomials in the sample size that are fitted to tensors' dimensions: 1 for
            texts, 2 for images.

    Raises:
        BatchDependentEventsError: the traces' events differ, or a dimension is no such polynomial.
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
