"""Releases of PyTorch that predictions support, and the libraries that their wheels bring.

A release is the first two parts of a version, such as `2.13` of `2.13.0+cpu`.
"""

from __future__ import annotations

import re

# Predictions rely on PyTorch's internals. With the first of these releases the tests of prediction are run;
# tests/versions compares the others with it, configuration by configuration. Any other release predicts too
# where it passes the self-test, and answers say that it was not tried. Measuring relies on no internals.
SUPPORTED_RELEASES = ("2.13", "2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.14", "2.15")


# cuDNN of the Linux wheels on PyPI, by `Requires-Dist`: nvidia-cudnn-cu12 up to 2.10, then nvidia-cudnn-cu13.
# Builds for other versions of CUDA, which PyPI does not serve, may bring others.
CUDNN_OF_WHEELS = {
    "2.6": "9.1.0.70",
    "2.7": "9.5.1.17",
    "2.8": "9.10.2.21",
    "2.9": "9.10.2.21",
    "2.10": "9.10.2.21",
    "2.11": "9.19.0.56",
    "2.12": "9.20.0.48",
    "2.13": "9.20.0.48",
    "2.14": "9.24.0.43",
    "2.15": "9.26.0.51",
}

# CUDA 13 compiles for Turing and later. Besides its builds, releases up to 2.14 have one for CUDA 12.6 with
# kernels for Maxwell, Pascal and Volta, and 2.15 is to have none (pytorch/pytorch#172352, #190385).
_OLDEST_CAPABILITY = 75
_LAST_WITH_OLDER = "2.14"


def wheel_for(capability: int, version: str) -> str | None:
    """Text that names a PyTorch wheel with kernels for a card; None if the wheel on PyPI has them.

    Args:
        capability: compute capability of the card, 61 for 6.1.
        version: version of PyTorch.
    """
    if capability >= _OLDEST_CAPABILITY:
        return None
    has_one = parse_release(version) <= parse_release(_LAST_WITH_OLDER)
    release = release_of(version) if has_one else f"a release up to {_LAST_WITH_OLDER}"
    return (
        f"PyTorch for CUDA 12.6: others have no kernels for compute capability {capability / 10}; install "
        f"{release} from https://download.pytorch.org/whl/cu126"
    )


def supported_releases() -> str:
    """Text that names the releases which predictions were tested with, such as `2.6 to 2.15`."""
    oldest, *_, newest = sorted(SUPPORTED_RELEASES, key=parse_release)
    return f"{oldest} to {newest}"


def release_of(version: str) -> str:
    """Release of PyTorch, such as `2.13`, that a version such as `2.13.0+cpu` belongs to.

    Raises:
        ValueError: `version` does not begin with two numbers joined by a dot.
    """
    parts = re.match(r"(\d+)\.(\d+)", version)
    if parts is None:
        raise ValueError(f"not a version of PyTorch: {version!r}")
    return f"{parts[1]}.{parts[2]}"


def parse_release(version: str) -> tuple[int, int]:
    """Release of PyTorch as a pair of numbers: (2, 13) for `2.13.0+cpu`.

    Raises:
        ValueError: `version` does not begin with two numbers joined by a dot.
    """
    major, minor = release_of(version).split(".")
    return int(major), int(minor)


def is_supported(version: str) -> bool:
    """Whether predictions support a version of PyTorch."""
    return release_of(version) in SUPPORTED_RELEASES
