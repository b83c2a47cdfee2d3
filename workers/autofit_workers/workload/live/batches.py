"""Makes batches of any size like those of a trainer, of the largest samples that its data has."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.workload.live.models import pickled_with, unpickled
from autofit_workers.workload.workload import tensors_of

NUM_SAMPLES = 256  # samples of a data set that are looked at for the largest
_SIZES = 2, 3  # batches that tell which dimensions grow with the batch size
_MOST_BYTES = 4 << 20  # of a floating-point tensor whose values are sent along


class LikeBatches:
    """Function `make_batch(batch_size, device)` whose batches are like those of a data loader.

    The largest of some samples is collated into batches of two and three, which tell the dimensions that
    grow; values are those of that sample.

    Args:
        dataset: data set of the loader, with `__getitem__` and `__len__`.
        collate: makes a batch of a list of samples.
        num_samples: most samples to look at, evenly spread over the data set.

    Attributes:
        num_seen: number of samples that were looked at.

    Raises:
        UnsupportedError: the samples have no order, or batches of them no dimension that grows.
        Exception: any exception of the data set and of `collate`.
    """

    def __init__(
        self, dataset: Any, collate: Callable[[list[Any]], Any], *, num_samples: int = NUM_SAMPLES
    ) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise UnsupportedError(
                f"{type(dataset).__name__} gives its samples in one order only, and looking at them would "
                "take them away"
            )
        if not len(dataset):
            raise UnsupportedError("the data set is empty: give one with samples")
        with random_numbers_kept():
            places = range(0, len(dataset), max(1, len(dataset) // num_samples))
            self.num_seen = len(places)
            largest = max(places, key=lambda place: _num_elements(collate([_copy(dataset[place])])))
            batches = [collate([_copy(dataset[largest]) for _ in range(size)]) for size in _SIZES]
        first, second = ([*tensors_of(batch)] for batch in batches)
        self._grows = [_growing(a, b) for a, b in zip(first, second, strict=True)]
        if not any(self._grows):
            raise UnsupportedError("the batches of the collator do not grow with the number of samples")
        self._tensors = [_sendable(tensor) for tensor in first]
        self._pickled = pickled_with(batches[0], _Numbered(first))

    def __call__(self, batch_size: int, device: torch.device) -> Any:
        made = [
            _enlarged(tensor, grows, batch_size).to(device)
            for tensor, grows in zip(self._tensors, self._grows, strict=True)
        ]
        with _standing_for(made):
            return unpickled(self._pickled)

    def num_bytes(self, batch_size: int) -> int:
        """Bytes of all tensors of a batch, which is not made for it."""
        return sum(
            math.prod(_sizes(tensor, grows, batch_size)) * tensor.element_size()
            for tensor, grows in zip(self._tensors, self._grows, strict=True)
        )


class WithNextBatch:
    """Function that makes a batch and keeps the next one, as data loaders of trainers do on the CPU.

    They load a batch ahead of the step that runs. Where steps run on the CPU, both take its memory.

    Args:
        batches: makes one batch.
    """

    def __init__(self, batches: LikeBatches) -> None:
        self._batches = batches
        self._next: Any = None

    def __call__(self, batch_size: int, device: torch.device) -> Any:
        self._next = None
        self._next = self._batches(batch_size, device)
        return self._batches(batch_size, device)


class _Numbered:
    """Replacement of the tensors of a batch in its pickle, by their place among its tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors

    def __call__(self, found: Any) -> Any:
        if not isinstance(found, torch.Tensor):
            return NotImplemented
        return _at, (next(place for place, tensor in enumerate(self._tensors) if tensor is found),)


_made: list[torch.Tensor] = []


def _at(place: int) -> torch.Tensor:
    return _made[place]


@contextmanager
def _standing_for(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    _made[:] = tensors
    try:
        yield
    finally:
        _made.clear()


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Puts the states of Python's, NumPy's and PyTorch's random numbers on the CPU back at the end."""
    numpy = sys.modules.get("numpy")
    of_python, of_torch = random.getstate(), torch.get_rng_state()
    of_numpy = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        torch.set_rng_state(of_torch)
        if numpy is not None:
            numpy.random.set_state(of_numpy)


def _copy(sample: Any) -> Any:
    """Copy of a sample, as collators may take entries out of a dictionary."""
    return dict(sample) if isinstance(sample, dict) else sample


def _num_elements(batch: Any) -> int:
    return sum(tensor.numel() for tensor in tensors_of(batch))


def _growing(first: torch.Tensor, second: torch.Tensor) -> dict[int, int]:
    """Dimensions that grow with the batch size, with their elements a sample.

    Raises:
        UnsupportedError: a dimension grows otherwise than in proportion.
    """
    if first.dim() != second.dim():
        raise UnsupportedError("batches of the collator have other dimensions with other numbers of samples")
    grows = {}
    for dimension, (a, b) in enumerate(zip(first.shape, second.shape, strict=True)):
        if a == b:
            continue
        if a * _SIZES[1] != b * _SIZES[0]:
            raise UnsupportedError(
                f"batches of the collator do not grow in proportion: {tuple(first.shape)} of {_SIZES[0]} "
                f"samples, {tuple(second.shape)} of {_SIZES[1]}"
            )
        grows[dimension] = a // _SIZES[0]
    return grows


def _sendable(tensor: torch.Tensor) -> torch.Tensor:
    """Tensor on the CPU with the values of another, or with one value for all if it is large."""
    if not tensor.dtype.is_floating_point or tensor.numel() * tensor.element_size() <= _MOST_BYTES:
        return tensor.detach().cpu().clone()
    return torch.full((), 0.5, dtype=tensor.dtype).expand(tensor.shape)


def _enlarged(tensor: torch.Tensor, grows: dict[int, int], batch_size: int) -> torch.Tensor:
    """Tensor of a batch of some size, which repeats the samples of a smaller one."""
    sizes = _sizes(tensor, grows, batch_size)
    repeats = [-(-size // had) if had else 1 for size, had in zip(sizes, tensor.shape, strict=True)]
    made = tensor.repeat(repeats) if sizes else tensor
    for dimension, size in enumerate(sizes):
        made = made.narrow(dimension, 0, size)
    return made.contiguous()


def _sizes(tensor: torch.Tensor, grows: dict[int, int], batch_size: int) -> list[int]:
    sizes = list(tensor.shape)
    for dimension, each in grows.items():
        sizes[dimension] = each * batch_size
    return sizes
