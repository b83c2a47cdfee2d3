"""The knob `conv_algo`: the algorithm of the model's convolutions.

`autofit_workers.spec.conv_algorithms` describes each algorithm.
"""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Knob, number_after, one_of

# Backend policies on CUDA, then all algorithms by name, then those that take a number.
CUDA_POLICIES = ("cudnn", "cudnn-benchmark", "cudnn-deterministic", "native")
CONV_ALGOS = (*CUDA_POLICIES, "onednn", "im2col", "fft", "matmul-1x1", "mixed")
CONV_ALGOS_WITH_NUMBER = {"cudnn-capped": "MiB", "im2col-chunked": "pixels", "chunked": "samples"}
CONV_ALGO_NAMES = (*CONV_ALGOS, *(f"{family}:N" for family in CONV_ALGOS_WITH_NUMBER))


def split_conv_algo(name: str) -> tuple[str, int | None]:
    """Splits the name of a convolution algorithm, such as `chunked:8`, at its number.

    Returns:
        The family of the algorithm, and the number; None if there is no number.

    Raises:
        ValueError: there is no such algorithm, or its number is missing or wrong.
    """
    family, _, digits = name.partition(":")
    unit = CONV_ALGOS_WITH_NUMBER.get(family)
    if unit is None:
        return one_of(CONV_ALGO_NAMES)(name), None
    return family, number_after(name, digits, unit, example=64)


def _read(value: object) -> str:
    family, number = split_conv_algo(str(value))
    return family if number is None else f"{family}:{number}"


KNOB = Knob(
    name="conv_algo",
    default="cudnn",
    read=_read,
    help="Convolution algorithm; `autofit conv-algos` lists them.",
    values=CONV_ALGO_NAMES,
    metavar="A",
)
