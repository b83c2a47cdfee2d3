"""Skips passes of a script's model whose memory is known from earlier passes with equal shapes.

Between its steps a script may evaluate its model on hundreds of batches. After two forward passes without
gradients and with inputs of the same shapes, further such passes are skipped and only their outputs are made;
`growing` handles passes whose cache grows. In a step that accumulates gradients of many batches, passes are
skipped from the third on too, if the first two left no allocations behind: their outputs lack the model's
autograd graph. The same holds for an evaluation with gradients enabled but without backward.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.pytree import tree_flatten, tree_unflatten
from autofit_workers.scripts.watching import StepWatch
from autofit_workers.tracing.scripts.growing import GrowingPasses

_NUM_SHOWN = 2  # passes that are run before further ones are skipped
_KNOWN_KINDS = (Tensor, int, float, bool, str, bytes, type(None), torch.dtype, torch.device)


@dataclass
class _Seen:
    """Description of a model's outputs for inputs of some shapes, by which further passes can be skipped.

    Attributes:
        num_passes: number of passes that returned such outputs.
        leaves: shape and dtype of each output tensor, and the other outputs.
        structure: nesting of the outputs.
    """

    num_passes: int
    leaves: list[Any]
    structure: Any

    def made(self) -> Any:
        """New outputs of the described shapes and dtypes for a skipped pass, without an autograd graph."""
        return tree_unflatten([_like(leaf) for leaf in self.leaves], self.structure)


@dataclass
class _Accumulating:
    """Forward passes of a model within a step that accumulates the gradients of several batches.

    Attributes:
        num_steps: number of steps made before this one.
        num_backwards_each: backward passes per forward pass: 1, or 0 for an evaluation with gradients
            enabled.
        places: for the start of each pass, numbers of backward passes so far and of live allocations.
        outputs: description of the last pass's outputs; None if they cannot be made.
    """

    num_steps: int
    num_backwards_each: int
    places: list[tuple[int, int]]
    outputs: _Seen | None = None

    @property
    def is_known(self) -> bool:
        """Whether a further pass may be skipped, as the last two left no memory and had equal backwards."""
        if len(self.places) <= _NUM_SHOWN or self.outputs is None:
            return False
        (first, _), (second, live), (third, still_live) = self.places[-3:]
        return second - first == third - second == self.num_backwards_each and live == still_live


class Shortcuts:
    """Skips forward passes of a script's models whose memory is known from earlier ones.

    A skipped pass returns new tensors of the shapes seen before.

    Args:
        watch: counts steps and backward passes, and is told of each skipped pass without gradients.
        num_live: returns the number of live allocations.
        has_group: returns whether `torch.distributed` is initialized; passes with gradients are then always
            run, as the last one before a step may exchange gradients that earlier ones do not.
    """

    def __init__(self, watch: StepWatch, num_live: Callable[[], int], has_group: Callable[[], bool]) -> None:
        self._watch = watch
        self._num_live = num_live
        self._has_group = has_group
        self._seen: dict[Hashable, _Seen] = {}
        self._accumulating: dict[Hashable, _Accumulating] = {}
        self._growing = GrowingPasses()
        self._depth = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Context in which forward passes with known memory are skipped, of all models."""
        module: Any = torch.nn.Module
        call = module.__call__

        def called(each: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            def run() -> Any:
                self._depth += 1
                try:
                    return call(each, *args, **kwargs)
                finally:
                    self._depth -= 1

            if self._depth or torch.compiler.is_compiling():
                return call(each, *args, **kwargs)
            passed = self._trained if torch.is_grad_enabled() else self._evaluated
            return passed(each, (args, kwargs), run)

        module.__call__ = called
        try:
            yield
        finally:
            module.__call__ = call

    def _evaluated(self, module: torch.nn.Module, given: Any, run: Callable[[], Any]) -> Any:
        """Outputs of a forward pass without gradients, which is skipped if enough equal ones were run."""
        key = _key(module, given)
        seen = None if key is None else self._seen.get(key)
        if seen is not None and seen.num_passes >= _NUM_SHOWN:
            self._watch.passed(module)
            return seen.made()
        if key is None:
            return self._growing.run(module, given, run, lambda: self._watch.passed(module))
        result = run()
        shown = _shown(result)
        if shown is not None:
            if seen is not None and (seen.leaves, seen.structure) == (shown.leaves, shown.structure):
                shown.num_passes += seen.num_passes
            self._seen[key] = shown
        return result

    def _trained(self, module: torch.nn.Module, given: Any, run: Callable[[], Any]) -> Any:
        """Outputs of a forward pass with gradients, which is skipped within an accumulating step if known."""
        key = _key(module, given) if self._watch.has_optimizer and not self._has_group() else None
        if key is None or _needs_gradients(given):
            return run()
        num_steps = self._watch.num_optimizer_steps
        passes = self._accumulating.get(key)
        if passes is None or passes.num_steps != num_steps:
            passes = self._accumulating[key] = _Accumulating(num_steps, int(module.training), [])
        passes.places.append((self._watch.num_backwards, self._num_live()))
        if passes.is_known:
            assert passes.outputs is not None
            return passes.outputs.made()
        result = run()
        passes.outputs = _shown(result)
        return result


def _shown(result: Any) -> _Seen | None:
    """Description of a forward pass's outputs; None if some have types that cannot be made anew."""
    leaves, structure = tree_flatten(result)
    if not all(isinstance(leaf, _KNOWN_KINDS) for leaf in leaves):
        return None
    return _Seen(1, [_description(leaf) for leaf in leaves], structure)


def _needs_gradients(given: Any) -> bool:
    """Whether any input of a forward pass is a tensor that requires gradients."""
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_flatten(given)[0])


@dataclass(frozen=True, slots=True)
class _Shape:
    size: torch.Size
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


def _description(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return _Shape(leaf.size(), leaf.dtype, leaf.device, leaf.requires_grad)


def _like(leaf: Any) -> Any:
    if not isinstance(leaf, _Shape):
        return leaf
    if leaf.requires_grad:
        return _Beginning.apply(torch.empty((), requires_grad=True), leaf)
    return torch.empty(leaf.size, dtype=leaf.dtype, device=leaf.device)


class _Beginning(torch.autograd.Function):
    """Autograd function that makes a skipped pass's output, which requires gradients; backward ends there."""

    @staticmethod
    def forward(_ctx: Any, _anchor: Tensor, shape: _Shape) -> Tensor:
        return torch.empty(shape.size, dtype=shape.dtype, device=shape.device)

    @staticmethod
    def backward(_ctx: Any, _grad: Tensor) -> tuple[None, None]:
        return None, None


def _key(module: torch.nn.Module, given: Any) -> Hashable | None:
    """Key that is equal for forward passes of one model with the same modes and input shapes.

    None if no input is a tensor, or one has an unknown type.
    """
    leaves, structure = tree_flatten(given)
    if not all(isinstance(leaf, _KNOWN_KINDS) for leaf in leaves):
        return None
    if not any(isinstance(leaf, Tensor) for leaf in leaves):
        return None
    described = tuple((type(leaf), _description(leaf)) for leaf in leaves)
    modes = tuple(each.training for each in module.modules())
    return id(module), modes, torch.is_autocast_enabled("cuda"), str(structure), described
