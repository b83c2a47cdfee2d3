"""The batch of a script: how its size is set, and the proof that a batch of that size ran.

    --batch-arg, --batch-env   the script is told
    --batch-name               a constant in its code gets another value, `with_constant`
    none of them               its data loader gets another batch size: the first one that has one, and
                               whichever others have the same
    no size is asked for       the script's own is found out

A size is proved by the loader that gave it, or by the model that took it; never by divisibility.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import IntEnum
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import data
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader

from autofit_workers.errors import InvalidTrialError
from autofit_workers.protocol import ScriptCall
from autofit_workers.scripts.loading import few_samples_loaded
from autofit_workers.workload.workload import tensors_of

_NUM_SHOWN = 4
# Arguments of a data loader without processes of its own.
_IN_PROCESS: dict[str, Any] = {
    "num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "timeout": 0,
    "multiprocessing_context": None,
}  # fmt: skip


class _Rank(IntEnum):
    """What a pass of a model says of the batch."""

    NOTHING = 0
    SHOWN = 1  # an example, before there was a batch, for a summary
    EXAMPLE = 2  # the same with gradients: where no loader gives anything, the batch itself
    EVALUATED = 3
    TRAINED = 4

    @classmethod
    def of(cls, *, is_loaded: bool, trains: bool) -> _Rank:
        if is_loaded:
            return cls.TRAINED if trains else cls.EVALUATED
        return cls.EXAMPLE if trains else cls.SHOWN


class Batches:
    """Follows the batches of one run of a script.

    Args:
        name: of the script.
        call: how it is called.
        batch_size: what is asked for; None for the script's own.
        loads_here: whether data loaders load in this process: the few batches that are needed, and no more.

    Attributes:
        size: of the batches that ran, once one was seen.
        whole_dataset: samples of a data set that is smaller than the batch that was asked for.
        num_samples: of the data set, or of the part of it, that the last batch came from; None where it does
            not say.
        is_loading: whether a batch is being made; the modules that this calls are no models.
    """

    def __init__(
        self, name: str, call: ScriptCall, batch_size: int | None, *, loads_here: bool = False
    ) -> None:
        self._name = name
        self._loads_here = loads_here
        self._wanted = batch_size
        self._sets_loader = batch_size is not None and call.sets_loader
        self._own: int | None = None  # the loader's, before it was changed
        self._given: list[int] = []  # leading dimensions of what loaders gave last
        self._num_drawn: int | None = None  # samples that the last batch was made of, where that is told
        self.num_samples: int | None = None
        self.is_loading = False
        self._rank = _Rank.NOTHING
        self._shapes: list[tuple[int, ...]] = []
        self.size: int | None = None
        self.whole_dataset: int | None = None

    @property
    def is_proved(self) -> bool:
        """Whether a batch of the wanted size ran."""
        return self.size is not None

    @property
    def is_settled(self) -> bool:
        """Whether nothing that models are given from here on says more."""
        return self.is_proved and self._rank >= (_Rank.TRAINED if self._given else _Rank.EXAMPLE)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Sees what data loaders give meanwhile, and sets their batch size where that is the way."""
        loader: Any = data.DataLoader
        iterator: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001 - no public name
        sampler: Any = data.BatchSampler
        initialize, advance, initialize_sampler = loader.__init__, iterator.__next__, sampler.__init__

        parameters = inspect.signature(initialize)

        @functools.wraps(initialize)  # whose parameters libraries read that make a loader like another
        def initialized(*args: Any, **kwargs: Any) -> None:
            given = parameters.bind(*args, **kwargs).arguments
            own = given.get("batch_size", 1)
            if given.get("batch_sampler") is None and isinstance(own, int):
                given["batch_size"] = self._set(own)
            initialize(**{**given, **(_IN_PROCESS if self._loads_here else {})})

        @functools.wraps(initialize_sampler)
        def initialized_sampler(each: Any, sampler: Any, batch_size: int, *args: Any, **kwargs: Any) -> None:
            initialize_sampler(each, sampler, self._set(batch_size), *args, **kwargs)

        def advanced(each: Any) -> Any:
            self.is_loading = True
            try:
                batch = advance(each)
            finally:
                self.is_loading = False
            self._give(batch, each)
            return batch

        loader.__init__, iterator.__next__, sampler.__init__ = initialized, advanced, initialized_sampler
        iterator.next = advanced
        try:
            with few_samples_loaded() if self._loads_here else nullcontext():
                yield
        finally:
            loader.__init__, iterator.__next__, sampler.__init__ = initialize, advance, initialize_sampler

    def _set(self, batch_size: int) -> int:
        if not self._sets_loader or self._wanted is None:
            return batch_size
        if self._own is None and batch_size > 1:
            self._own = batch_size
        return self._wanted if batch_size == self._own else batch_size

    def _give(self, batch: Any, iterator: Any) -> None:
        leading = [tensor.shape[0] for tensor in tensors_of(batch) if tensor.dim() > 0]
        graphs = getattr(batch, "num_graphs", None)  # a batch of PyTorch Geometric
        self._given = [graphs] if isinstance(graphs, int) else leading
        if _is_of_lists(batch) and len(set(leading)) != 1:
            self._given = [len(batch[0])]
        index_sampler = getattr(iterator, "_index_sampler", None)
        self._num_drawn = getattr(index_sampler, "batch_size", None)
        sampler = getattr(index_sampler, "sampler", None)
        lengths = (_length(each) for each in (sampler, getattr(iterator, "_dataset", None)))
        self.num_samples = next((length for length in lengths if length is not None), None)

    def taken(self, given: Any) -> None:
        """The model is given this; a pass that trains says more than one that evaluates."""
        if self.is_settled:
            return
        shapes = [tuple(tensor.shape) for tensor in tensors_of(given)]
        shapes += [(int(packed.batch_sizes[0]),) for packed in _packed(given)]
        self._shapes += shapes
        rank = _Rank.of(is_loaded=bool(self._given), trains=torch.is_grad_enabled())
        size, is_whole = self._shown_by(shapes)
        if size is not None and rank > self._rank:
            self.size, self._rank = size, rank
            self.whole_dataset = size if is_whole else None

    def _shown_by(self, shapes: list[tuple[int, ...]]) -> tuple[int | None, bool]:
        """The size of the batch that a model was given; and whether that is a whole data set."""
        if self._wanted is None:
            sizes = self._given or [shape[0] for shape in shapes if shape]
            return (sizes[0] if sizes else None), False
        if self._wanted in self._given or any(self._wanted in shape for shape in shapes):
            return self._wanted, False
        # Several rows a sample, as where a preferred text and another one are compared.
        if self._num_drawn == self._wanted and self._given and self._given[0] % self._wanted == 0:
            return self._wanted, False
        if self.num_samples in self._given and self.num_samples < self._wanted:
            return self.num_samples, True
        return None, False

    def require_proof(self) -> None:
        """Raises `InvalidTrialError` where the model took batches, and none of the wanted size."""
        if self.is_proved or not self._shapes or self._wanted is None:
            return
        shapes = list(dict.fromkeys(self._shapes))
        shown = ", ".join(map(str, shapes[:_NUM_SHOWN])) + (", …" if len(shapes) > _NUM_SHOWN else "")
        gave = f" and its data loader gave {self._given[0]}" if self._given else ""
        raise InvalidTrialError(
            f"the model of {self._name} got no input with {self._wanted} samples, only {shown}{gave}: name "
            "what sets its batch size, an argument (--batch-arg), an environment variable (--batch-env) or a "
            "constant in its code (--batch-name)"
        )


def _length(samples: Any) -> int | None:
    try:
        return len(samples)
    except (TypeError, NotImplementedError):  # it has none
        return None


def _is_of_lists(batch: Any) -> bool:
    """Whether a batch has a list for each of its parts with one entry a sample, as detection has them."""
    if not isinstance(batch, list | tuple) or not batch:
        return False
    return all(isinstance(each, list | tuple) and len(each) == len(batch[0]) for each in batch)


def _packed(given: Any) -> list[PackedSequence]:
    """The packed sequences in what a model is given, whose first step has one row for each sample."""
    leaves = tree_leaves(given, is_leaf=lambda value: isinstance(value, PackedSequence))
    return [leaf for leaf in leaves if isinstance(leaf, PackedSequence)]


def with_constant(source: bytes, path: str, name: str, value: int) -> ast.Module:
    """A script's code in which a name is set to another whole number.

    Raises:
        InvalidTrialError: no whole number is assigned to it.
    """
    tree = ast.parse(source, path)
    editor = _Constants(name, value)
    changed: ast.Module = editor.visit(tree)
    if not editor.num_changed:
        raise InvalidTrialError(
            f"{path} assigns no whole number to {name}: --batch-name takes a constant of the code, as in "
            f"`{name} = 64`"
        )
    return ast.fix_missing_locations(changed)


class _Constants(ast.NodeTransformer):
    """Puts a number in place of the constants that are assigned to a name, or are its default."""

    def __init__(self, name: str, value: int) -> None:
        self._name = name
        self._value = value
        self.num_changed = 0

    def _number(self, node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.Constant) or type(node.value) is not int:
            return node
        self.num_changed += 1
        return ast.copy_location(ast.Constant(self._value), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if any(isinstance(target, ast.Name) and target.id == self._name for target in node.targets):
            node.value = self._number(node.value)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if isinstance(node.target, ast.Name) and node.target.id == self._name and node.value is not None:
            node.value = self._number(node.value)
        return self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        named = [*node.posonlyargs, *node.args]
        first = len(named) - len(node.defaults)
        for number, argument in enumerate(named[first:]):
            if argument.arg == self._name:
                node.defaults[number] = self._number(node.defaults[number])
        for number, argument in enumerate(node.kwonlyargs):
            default = node.kw_defaults[number]
            if argument.arg == self._name and default is not None:
                node.kw_defaults[number] = self._number(default)
        return self.generic_visit(node)
