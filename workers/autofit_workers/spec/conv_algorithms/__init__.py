"""Descriptions of the convolution algorithms, in the order they are offered.

    backend policies   cudnn cudnn_benchmark cudnn_deterministic cudnn_capped onednn native
    rewrites           im2col im2col_chunked fft matmul_1x1 chunked
    mixed              one of these for every layer

Policies are switches that hold for all convolutions; the workspace that a backend then takes is in
`autofit_workers.replay.plans.workspace`. A rewrite computes its own memory; `autofit_workers.conv` runs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from autofit_workers.spec.conv_algorithms import (
    chunked,
    cudnn,
    cudnn_benchmark,
    cudnn_capped,
    cudnn_deterministic,
    fft,
    im2col,
    im2col_chunked,
    matmul_1x1,
    mixed,
    native,
    onednn,
)
from autofit_workers.spec.conv_algorithms.algorithm import ConvAlgorithm, Rewrite
from autofit_workers.spec.conv_algorithms.policy import ConvPolicy
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.knobs.conv_algo import split_conv_algo

__all__ = [
    "ConvAlgorithm",
    "ConvPolicy",
    "Rewrite",
    "applicable",
    "defaults",
    "find",
    "offered",
    "policy_of",
    "rank",
]

_PLAIN: dict[str, ConvAlgorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        cudnn.POLICY,
        cudnn_benchmark.POLICY,
        cudnn_deterministic.POLICY,
        onednn.POLICY,
        native.POLICY,
        im2col.ALGORITHM,
        fft.ALGORITHM,
        matmul_1x1.ALGORITHM,
        mixed.ALGORITHM,
    )
}
_WITH_NUMBER: dict[str, Callable[[int], ConvAlgorithm]] = {
    "cudnn-capped": cudnn_capped.policy,
    "im2col-chunked": im2col_chunked.algorithm,
    "chunked": chunked.algorithm,
}
_MOST_NAMES = 1000  # in a cache
# Default numbers of the algorithms that take one, for choices that name no number, such as `all`.
_NUMBERS = {"cudnn-capped": 256, "im2col-chunked": 4096, "chunked": 8}


@functools.lru_cache(maxsize=_MOST_NAMES)
def find(name: str) -> ConvAlgorithm:
    """Convolution algorithm by its name, such as `fft` or `chunked:8`.

    Raises:
        ValueError: there is no such algorithm, or its number is missing or wrong.
    """
    family, number = split_conv_algo(name)
    return _PLAIN[family] if number is None else _WITH_NUMBER[family](number)


def rank(name: str) -> tuple[int, int]:
    """Key that sorts convolution algorithms as they are listed, those of one family by their number."""
    family, number = split_conv_algo(name)
    return [*_PLAIN, *_WITH_NUMBER].index(family), number or 0


def offered() -> tuple[ConvAlgorithm, ...]:
    """One convolution algorithm of each family, with a default number if its family takes a number."""
    return (*_PLAIN.values(), *(make(_NUMBERS[family]) for family, make in _WITH_NUMBER.items()))


def applicable(device_kind: str) -> tuple[str, ...]:
    """Names of the convolution algorithms that apply to a kind of device (`cuda`, `cpu`)."""
    return tuple(algorithm.name for algorithm in offered() if device_kind in algorithm.device_kinds)


def defaults(device_kind: str) -> tuple[str, ...]:
    """Names of the convolution algorithms of a device kind's backend, which searches try by default."""
    return {
        GPU_KIND: ("cudnn", "cudnn-benchmark", "cudnn-deterministic", "native"),
        "cpu": ("onednn",),
    }[device_kind]


def policy_of(algorithm: ConvAlgorithm, device_kind: str) -> ConvPolicy:
    """Switches of the backend (cuDNN or oneDNN) under an algorithm.

    A rewrite of convolutions, and `mixed`, leave the switches as the device's default algorithm has them.

    Args:
        algorithm: the algorithm.
        device_kind: `cuda` or `cpu`.
    """
    found = algorithm if isinstance(algorithm, ConvPolicy) else find(defaults(device_kind)[0])
    assert isinstance(found, ConvPolicy)
    return found
