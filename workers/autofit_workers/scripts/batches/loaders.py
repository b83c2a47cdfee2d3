"""Follows a script's data loaders: sets their batch size, and counts the samples of their batches.

Samples are counted when a loader collates, as its collate function gets one entry for each. A
batch's shapes do not show the number: boxes of many images lie in one tensor, texts are packed in one row.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch.utils import data

from autofit_workers.pytorch.data_loading import DataLoaderIterator
from autofit_workers.scripts.batches.loading import few_samples_loaded
from autofit_workers.workload.workload import tensors_of

_NUM_REMEMBERED = 8  # batches that were loaded and not yet trained on; loaders fetch a few ahead
# Arguments of a data loader without worker processes.
_IN_PROCESS: dict[str, Any] = {
    "num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "timeout": 0,
    "multiprocessing_context": None,
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class LoadedBatch:
    """Batch that a data loader returned, with its number of samples and its shapes.

    Attributes:
        loader: number that identifies the loader.
        num_collated: samples that it was collated from; None if the data set makes whole batches, or
            the loader's workers collate.
        num_told: number of samples in the batch itself, graphs or entries of its lists; None if it has none.
        shapes: shapes of its tensors, except scalars.
        num_in_dataset: samples of the data set, or of the part that is drawn from; None if
            unknown.
        is_shuffled: whether the loader may use another order the next time.
        is_used: whether the batch was passed to a model.
    """

    loader: int
    num_collated: int | None
    num_told: int | None
    shapes: tuple[tuple[int, ...], ...]
    num_in_dataset: int | None
    is_shuffled: bool = True
    is_used: bool = False

    def num_samples(self, given: list[tuple[int, ...]]) -> int | None:
        """Number of samples of the batch; None if unknown.

        Args:
            given: shapes of a model's inputs. They are used if neither the collate function nor the batch
                itself shows the number: dimension 0 of an input that is a tensor of this batch counts the
                samples.
        """
        if self.num_collated is not None or self.num_told is not None:
            return self.num_collated or self.num_told
        own = [shape for shape in given if shape in self.shapes] or self.shapes
        return own[0][0] if own else None


class Loaders:
    """Data loaders of one run of a script, whose batches are recorded.

    Args:
        batch_size: size to set for the first loader with more than one sample, and for any other of the
            same size; None to leave loaders unchanged.
        loads_here: whether loaders load in this process, and only the few batches that are needed.

    Attributes:
        is_loading: whether a batch is being made; modules that run meanwhile do not count as models.
        num_in_dataset: samples of the data set that the last batch came from; None if unknown.
    """

    def __init__(self, batch_size: int | None, *, loads_here: bool) -> None:
        self._wanted = batch_size
        self._loads_here = loads_here
        self._own: int | None = None  # the first loader's, before it was changed
        self._given: deque[LoadedBatch] = deque(maxlen=_NUM_REMEMBERED)
        self._num_given: dict[int, int] = {}
        self._iterators: dict[int, Callable[[], tuple[Any, LoadedBatch]]] = {}
        self._num_collated = 0
        self.is_loading = False
        self.num_in_dataset: int | None = None

    @property
    def has_given(self) -> bool:
        return bool(self._given)

    def num_given_by(self, batch: LoadedBatch) -> int:
        """Number of batches that the loader of `batch` has given."""
        return self._num_given[batch.loader]

    def coming(self, batch: LoadedBatch) -> Iterator[LoadedBatch]:
        """Yields the batches that the loader of `batch` gives next, to the end of its epoch."""
        while True:
            try:
                yield self._iterators[batch.loader]()[1]
            except StopIteration:
                return

    def batch_of(self, given: list[tuple[int, ...]]) -> LoadedBatch | None:
        """Loaded batch that a model's input of `given` shapes comes from; None if no loader gave any.

        Loaders may be ahead of the model. If no shape matches, as when batches of two loaders are joined,
        it is the first unused batch.
        """
        if not self._given:
            return None
        unused = [batch for batch in self._given if not batch.is_used]
        alike = [batch for batch in (unused or self._given) if set(batch.shapes) & set(given)]
        found = next(iter(alike or unused), self._given[-1])
        for batch in self._given:  # batches of other loaders go into the same step
            batch.is_used = batch.is_used or batch is found or batch.loader != found.loader
        return found

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Context manager that records the batches of data loaders, and sets the loaders' batch size."""
        loader: Any = data.DataLoader
        iterator = DataLoaderIterator
        sampler: Any = data.BatchSampler
        plain = loader.__init__, iterator.__next__, sampler.__init__
        loader.__init__ = self._making_loader(loader.__init__)
        sampler.__init__ = self._making_sampler(sampler.__init__)
        iterator.__next__ = iterator.next = self._advancing(iterator.__next__)
        try:
            with few_samples_loaded() if self._loads_here else nullcontext():
                yield
        finally:
            loader.__init__, iterator.__next__, sampler.__init__ = plain

    def _making_loader(self, initialize: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(initialize)

        @functools.wraps(initialize)  # libraries that copy a loader read its parameters
        def initialized(*args: Any, **kwargs: Any) -> None:
            given = parameters.bind(*args, **kwargs).arguments
            own = given.get("batch_size", 1)
            if given.get("batch_sampler") is None and isinstance(own, int):
                given["batch_size"] = self._set(own)
            initialize(**{**given, **(_IN_PROCESS if self._loads_here else {})})

        return initialized

    def _making_sampler(self, initialize: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(initialize)
        def initialized(each: Any, sampler: Any, batch_size: int, *args: Any, **kwargs: Any) -> None:
            initialize(each, sampler, self._set(batch_size), *args, **kwargs)

        return initialized

    def _set(self, batch_size: int) -> int:
        if self._wanted is None:
            return batch_size
        if self._own is None and batch_size > 1:
            self._own = batch_size
        return self._wanted if batch_size == self._own else batch_size

    def _advancing(self, advance: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def advanced(each: Any) -> Any:
            batch, loaded = self._next(each, advance)
            self._iterators[loaded.loader] = functools.partial(self._next, each, advance)
            self._num_given[loaded.loader] = self._num_given.get(loaded.loader, 0) + 1
            self._given.append(loaded)
            return batch

        return advanced

    def _next(self, iterator: Any, advance: Callable[[Any], Any]) -> tuple[Any, LoadedBatch]:
        self._count_collated(getattr(iterator, "_dataset_fetcher", None))
        self._num_collated = 0
        self.is_loading = True
        try:
            batch = advance(iterator)
        finally:
            self.is_loading = False
        return batch, self._described(batch, iterator)

    def _count_collated(self, fetcher: Any) -> None:
        """Wraps the collate function of a loader without workers, to count the samples of each batch."""
        collate = getattr(fetcher, "collate_fn", None)
        if collate is None or not fetcher.auto_collation or hasattr(collate, "counts_samples"):
            return

        @functools.wraps(collate)
        def counted(samples: Any) -> Any:
            self._num_collated = len(samples)
            return collate(samples)

        counted.counts_samples = True  # type: ignore[attr-defined]
        fetcher.collate_fn = counted

    def _described(self, batch: Any, iterator: Any) -> LoadedBatch:
        """Record of a batch that a data loader's iterator returned, with samples and shapes."""
        index_sampler = getattr(iterator, "_index_sampler", None)
        sampler = getattr(index_sampler, "sampler", None)
        lengths = (_length(each) for each in (sampler, getattr(iterator, "_dataset", None)))
        self.num_in_dataset = next((length for length in lengths if length is not None), None)
        return LoadedBatch(
            loader=id(index_sampler),  # the same in each epoch, unlike an iterator
            num_collated=self._num_collated or self._num_told_by(iterator),
            num_told=_num_told(batch),
            shapes=tuple(tuple(tensor.shape) for tensor in tensors_of(batch) if tensor.dim() > 0),
            num_in_dataset=self.num_in_dataset,
            is_shuffled=not isinstance(sampler, data.SequentialSampler),
        )

    def _num_told_by(self, iterator: Any) -> int | None:
        """Batch size of the batch sampler of a loader with workers; None for a loader without workers."""
        if hasattr(iterator, "_dataset_fetcher"):
            return None
        size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        return size if isinstance(size, int) else None


def _num_told(batch: Any) -> int | None:
    """Number of samples that a batch itself shows: PyG's `num_graphs`, or its lists' length; else None."""
    graphs = getattr(batch, "num_graphs", None)
    if isinstance(graphs, int):
        return graphs
    if not isinstance(batch, list | tuple) or not batch:
        return None
    are_lists = all(isinstance(each, list | tuple) and len(each) == len(batch[0]) for each in batch)
    return len(batch[0]) if are_lists else None


def _length(samples: Any) -> int | None:
    try:
        return len(samples)
    except (TypeError, NotImplementedError):  # the data set has no length
        return None
