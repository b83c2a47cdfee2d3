"""Activation checkpointing of several successive blocks together, which keeps only the first block's inputs.

`torch.utils.checkpoint` reruns one function. Here several functions are rerun, because the model's own code
calls the blocks and may compute something between them. The calls of one forward pass are a segment:

    forward    block 1 ──▶ the model's code ──▶ block 2 ──▶ …
               calls are recorded; tensors that autograd saves are dropped
    backward   a tensor of block 2 is needed ──▶ all calls run again, in order
               arguments that are outputs of the segment come from this run; all others were kept
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

from autofit_workers.pytorch.pytree import tree_leaves, tree_map

_Forward = Callable[..., Any]


def join(blocks: Sequence[torch.nn.Module]) -> None:
    """Joins blocks that a model calls one after the other into one activation checkpoint."""
    group = _Group()
    for block in blocks:
        block.forward = functools.partial(group.call, block.forward)


class _Group:
    """Blocks that share one activation checkpoint; each forward pass through them makes a new segment.

    A segment is the part of a forward pass that backward recomputes in one go.
    """

    def __init__(self) -> None:
        # A weak reference: the placeholders that autograd saves keep a segment alive, so it is freed with
        # the graph.
        self._open: weakref.ref[_Segment] | None = None

    def call(self, forward: _Forward, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        segment = None if self._open is None else self._open()
        if segment is None or segment.has_called(forward):
            segment = _Segment()
            self._open = weakref.ref(segment)
        return segment.call(forward, args, kwargs)


@dataclass(frozen=True, slots=True)
class _Output:
    """Placeholder for an earlier call's output tensor, in the recorded arguments of a later call.

    Attributes:
        call: index of the earlier call.
        place: index of the tensor among that call's outputs.
    """

    call: int
    place: int


class _Saved:
    """Placeholder for a tensor that autograd saves; holds the recomputed tensor until backward uses it."""

    __slots__ = ("__weakref__", "segment", "tensor")

    def __init__(self, segment: _Segment) -> None:
        self.segment = segment
        self.tensor: Tensor | None = None


class _AllFoundError(Exception):
    """Raised to end a segment's second run once every saved tensor has been recomputed."""


class _Segment:
    """Recorded calls of one checkpoint's blocks in a forward pass, from which backward recomputes them.

    Also has the placeholders of the tensors that autograd saves.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._outputs: list[list[weakref.ref[Tensor]]] = []
        self._saved: list[weakref.ref[_Saved]] = []

    def has_called(self, forward: _Forward) -> bool:
        return any(call.forward == forward for call in self._calls)

    def call(self, forward: _Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = tree_map(self._kept, (args, kwargs))
        self._calls.append(_Call(forward, given, _Conditions(tree_leaves((args, kwargs)))))
        with torch.autograd.graph.saved_tensors_hooks(self._drop, _found_again):
            result = forward(*args, **kwargs)
        self._outputs.append([weakref.ref(tensor) for tensor in _tensors(result)])
        return result

    def _kept(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        for call, outputs in enumerate(self._outputs):
            for place, output in enumerate(outputs):
                if output() is value:
                    return _Output(call, place)
        # A tensor that the model's code computed from an output of this segment refers back to it: a cycle
        # that Python's collector does not find, as it passes through autograd's graph.
        return value if not self._calls else value.detach().requires_grad_(value.requires_grad)

    def _drop(self, _tensor: Tensor) -> _Saved:
        saved = _Saved(self)
        self._saved.append(weakref.ref(saved))
        return saved

    def run_again(self) -> None:
        """Runs the segment's calls again until all tensors that autograd saved are recomputed.

        Raises:
            RuntimeError: the second run saves other tensors than the first.
        """
        waiting = iter(self._saved)
        num_found = 0

        def keep(tensor: Tensor) -> None:
            nonlocal num_found
            saved = next(waiting)()
            if saved is not None:
                saved.tensor = tensor.detach()
            num_found += 1
            if num_found == len(self._saved):
                raise _AllFoundError

        outputs: list[list[Tensor]] = []
        with (
            contextlib.suppress(_AllFoundError),
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(keep, _never_asked),
        ):
            for call in self._calls:
                outputs.append(_tensors(call.again(outputs)))
        if num_found < len(self._saved):
            raise RuntimeError(
                "blocks that checkpointing runs again saved fewer tensors than in the forward pass: they "
                "have to do the same each time, or choose --checkpointing none"
            )


def _found_again(saved: _Saved) -> Tensor:
    if saved.tensor is None:
        saved.segment.run_again()
    tensor, saved.tensor = saved.tensor, None
    assert tensor is not None, "a run finds all that is still to be used"
    return tensor


def _never_asked(_nothing: None) -> Tensor:
    raise RuntimeError("blocks under --checkpointing every:N cannot call backward themselves: choose none")


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


class _Call:
    """Recorded call of a block: its arguments with placeholders, random states and autocast settings."""

    def __init__(self, forward: _Forward, given: Any, conditions: _Conditions) -> None:
        self.forward = forward
        self._given = given
        self._conditions = conditions

    def again(self, outputs: Sequence[Sequence[Tensor]]) -> Any:
        def resolved(value: Any) -> Any:
            return outputs[value.call][value.place] if isinstance(value, _Output) else value

        args, kwargs = tree_map(resolved, self._given)
        with self._conditions.again():
            return self.forward(*args, **kwargs)


class _Conditions:
    """Random states and autocast settings at the time of a block's call.

    Args:
        arguments: arguments of the call, whose tensors show the device that it runs on.
    """

    def __init__(self, arguments: Sequence[Any]) -> None:
        on_device = [each for each in arguments if isinstance(each, Tensor) and each.device.type != "cpu"]
        self._device_type = on_device[0].device.type if on_device else "cpu"
        self._cpu_state = torch.get_rng_state()
        self._devices: list[int] = []
        self._device_states: list[Tensor] = []
        if on_device and getattr(torch.get_device_module(self._device_type), "_initialized", False):
            self._devices, self._device_states = get_device_states(on_device[0])
        self._autocasts: list[dict[str, Any]] = [
            {
                "device_type": kind,
                "enabled": torch.is_autocast_enabled(kind),
                "dtype": torch.get_autocast_dtype(kind),
                "cache_enabled": torch.is_autocast_cache_enabled(),
            }
            for kind in dict.fromkeys((self._device_type, "cpu"))
        ]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Context manager that restores the recorded random states and autocast settings."""
        contexts: list[AbstractContextManager[Any]] = [
            torch.random.fork_rng(devices=self._devices, device_type=self._device_type),
            *(torch.autocast(**options) for options in self._autocasts),
        ]
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            torch.set_rng_state(self._cpu_state)
            if self._devices:
                set_device_states(self._devices, self._device_states, device_type=self._device_type)
            yield
