"""A convolution algorithm for the user's own training: what `autofit tune` answers, in use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from autofit.errors import UsageError
from autofit.settings import resolve_settings
from workers.errors import InapplicableError, UnsupportedError
from workers.knobs import conv


@contextmanager
def apply_conv_algo(model: Any, conv_algo: str) -> Iterator[Mapping[str, str]]:
    """Works out a model's convolutions by an algorithm, forward and backward, for the length of a block.

    A rewrite (`im2col`, `fft`, `chunked:8`, …) concerns this model alone, in this thread, and runs the
    backward pass of what ran forward in the block wherever that is called. A backend's policy (`native`,
    `cudnn-benchmark`, …) is a switch of the whole process. Afterwards everything is as before.

        >>> with autofit.apply_conv_algo(model, "fft"):
        ...     loss = criterion(model(images), labels)
        >>> loss.backward()

    Args:
        model: an `nn.Module`, where it is to run.
        conv_algo: one of those that `autofit conv-algos` lists.

    Returns:
        A context manager; it gives the layers that the algorithm cannot work out, which are left to
        the backend, each with the reason, as they are met.

    Raises:
        UsageError: there is no such algorithm, it means nothing on the model's device, or it works out
            none of the model's convolutions; the last is raised by the model's first forward pass.
    """
    from workers.knobs.own_model import algorithm_in_use  # imports torch

    algorithm = conv.find(_known(conv_algo))
    try:
        with algorithm_in_use(model, algorithm) as left:
            yield left
    except (UnsupportedError, InapplicableError) as error:
        raise UsageError(str(error)) from error


def _known(conv_algo: str) -> str:
    settings = resolve_settings({"model": "model", "conv_algo": conv_algo}, {}, None)
    return settings.one_conv_algo("a model")
