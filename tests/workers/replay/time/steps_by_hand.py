"""Steps made by hand, for the tests of step times."""

from __future__ import annotations

from collections.abc import Sequence

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import HostWait, Mark, Repetition, Trace
from autofit_workers.spec.work import ELEMENT_BYTES, Convolution, ConvPass, Operand, Work, WorkCall

MARKS = ("model", "step 1 input", "step 1 forward", "step 1 backward", "step 1 optimizer")


def elementwise(*shape: int, operator: str = "aten.relu", dtype: str = "float32") -> Work:
    """Work of an operator that reads a tensor and writes one."""
    operand = Operand(shape, dtype)
    return Work(operator, (operand,), (operand,), flags=("pointwise",))


def product(rows: int, columns: int, inner: int, dtype: str = "float16") -> Work:
    """Work of a product of matrices."""
    return Work(
        "aten.mm",
        (Operand((rows, inner), dtype), Operand((inner, columns), dtype)),
        (Operand((rows, columns), dtype),),
    )


def trace_of_works(
    works: Sequence[Work],
    batch_size: int = 4,
    *,
    marks: Sequence[int] = (0, 0, 0, 1_000, 1_000),
    waits: Sequence[int] = (),
    repetition: Repetition | None = None,
) -> Trace:
    """Trace of one step without allocations, whose calls are at the positions 0, 1, 2, …

    Args:
        marks: the positions of `MARKS`.
        waits: the positions at which the host waits.
    """
    shared: dict[Work, Work] = {}
    calls = [WorkCall(shared.setdefault(work, work), "", number) for number, work in enumerate(works)]
    return Trace(
        workload="by hand",
        batch_size=batch_size,
        mode="train",
        optimizer="sgd",
        knobs=Knobs(),
        allocations=(),
        events=(),
        marks=tuple(Mark(position=at, name=name) for at, name in zip(marks, MARKS, strict=True)),
        host_waits=tuple(HostWait(position=at, stream=None, up_to=at) for at in waits),
        repetition=repetition,
        work=tuple(calls),
    )


def conv(
    inputs: int, outputs: int, *, size: int, filter_size: int, batch_size: int, dtype: str = "float32"
) -> Convolution:
    """Forward convolution of square images, whose outputs are as large as the inputs."""
    return Convolution(
        conv_pass=ConvPass.FPROP,
        input_shape=(batch_size, inputs, size, size),
        weight_shape=(outputs, inputs, filter_size, filter_size),
        output_shape=(batch_size, outputs, size, size),
        stride=(1, 1),
        padding=(filter_size // 2,) * 2,
        dilation=(1, 1),
        groups=1,
        dtype=dtype,
        element_bytes=ELEMENT_BYTES[dtype],
    )
