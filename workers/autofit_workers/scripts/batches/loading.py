"""Loads only a few samples of a batch, and repeats the first to fill a large batch of equal shapes.

A prediction needs only the shapes of a batch, and decoding thousands of images takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from autofit_workers.pytorch.data_loading import MapDatasetFetcher
from autofit_workers.pytorch.pytree import tree_flatten

_NUM_LOADED = 16  # samples of a batch


@contextmanager
def few_samples_loaded() -> Iterator[None]:
    """Context manager in which data loaders load a few samples and repeat these if all have one shape."""
    fetcher = MapDatasetFetcher
    whole = fetcher.fetch

    def fetched(each: Any, index: Any) -> Any:
        if not each.auto_collation or not isinstance(index, list | tuple) or len(index) <= _NUM_LOADED:
            return whole(each, index)
        load = _loader_of(each.dataset)
        samples = load(index[:_NUM_LOADED])
        if _are_alike(samples):
            samples = [samples[number % _NUM_LOADED] for number in range(len(index))]
        else:
            samples += load(index[_NUM_LOADED:])
        return each.collate_fn(samples)

    fetcher.fetch = fetched
    try:
        yield
    finally:
        fetcher.fetch = whole


def _loader_of(dataset: Any) -> Callable[[Any], list[Any]]:
    several: Callable[[Any], list[Any]] | None = getattr(dataset, "__getitems__", None)
    return several or (lambda index: [dataset[each] for each in index])


def _are_alike(samples: list[Any]) -> bool:
    first = _described(samples[0])
    return first is not None and all(_described(sample) == first for sample in samples[1:])


def _described(sample: Any) -> Hashable | None:
    """Hashable description of a sample that decides the shapes of its batch; None if not known."""
    leaves, structure = tree_flatten(sample)
    described: list[Hashable] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            described.append((leaf.shape, leaf.dtype))
        elif isinstance(leaf, str | bytes):
            described.append((type(leaf), len(leaf)))
        elif isinstance(leaf, bool | int | float | None):
            described.append((type(leaf),))
        elif type(leaf).__module__.startswith("numpy"):
            described.append((type(leaf), getattr(leaf, "shape", None), str(getattr(leaf, "dtype", None))))
        elif type(leaf).__module__.startswith("PIL."):
            described.append((type(leaf), leaf.size, leaf.mode))
        else:
            return None
    return str(structure), tuple(described)
