"""Iterators of data loaders, and what fetches their samples."""

from __future__ import annotations

from typing import Any

from torch.utils.data import dataloader
from torch.utils.data._utils.fetch import _MapDatasetFetcher

__all__ = ["DataLoaderIterator", "MapDatasetFetcher"]

# Base of a data loader's iterators, whose `__next__` is followed.
DataLoaderIterator: Any = dataloader._BaseDataLoaderIter
# Fetches and collates the samples of a batch; its `fetch` is replaced to load a few of them.
MapDatasetFetcher: Any = _MapDatasetFetcher
