"""Activation checkpointing: blocks keep only their inputs, and run again in backward for the rest.

T. Chen, B. Xu, C. Zhang, C. Guestrin, 2016: "Training Deep Nets with Sublinear Memory Cost".

    blocks             each block by itself: only its inputs are kept
    blocks-reentrant   likewise by PyTorch's older way: no graph in forward, a whole block's graph in backward
    every:N            N successive blocks of a list together: only the inputs of the first are kept
    selective          each block by itself: its inputs, and outputs of slow operators in it, are kept
    selective:N        likewise, but at most N percent of the bytes of these outputs in a block
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from autofit_workers.apply.segments import join
from autofit_workers.apply.selective import selective_contexts
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs.checkpointing import split_checkpointing

_CACHE = "past_key_values"  # transformers' argument for the KV cache


def checkpoint_blocks(model: torch.nn.Module, checkpointing: str = "blocks") -> None:
    """Applies activation checkpointing to repeated blocks; reruns use forward's random numbers.

    A batch norm updates its running statistics in both runs.

    Args:
        checkpointing: a value of the knob, see `autofit_workers.spec.knobs.Knobs`.

    Raises:
        InapplicableError: the model has no such blocks.
    """
    kind, number = split_checkpointing(checkpointing)
    if kind == "none":
        return
    lists = [list(blocks) for _, blocks in itertools.groupby(repeated_blocks(model), lambda pair: pair[0])]
    if not lists:
        raise InapplicableError(
            f"checkpointing {checkpointing} applies to no part of the model (no nn.Sequential or "
            "nn.ModuleList holds two blocks of one class): choose --checkpointing none"
        )
    if kind == "every":
        assert number is not None
        for blocks in lists:
            for first in range(0, len(blocks), number):
                join([block for _, block in blocks[first : first + number]])
        return
    if kind == "blocks-reentrant":
        _let_inputs_want_gradients(model)
        run: Callable[..., Any] = _reentrant
    elif kind == "blocks":
        run = functools.partial(checkpoint, use_reentrant=False)
    else:
        run = functools.partial(checkpoint, use_reentrant=False, context_fn=selective_contexts(number))
    for _, block in itertools.chain.from_iterable(lists):
        block.forward = functools.partial(run, block.forward)


def _reentrant(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs a block by `torch.utils.checkpoint` with `use_reentrant=True`, which takes no keyword arguments.

    Raises:
        InapplicableError: no positional argument requires gradients, so the block's weights would get none.
    """
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    if not any(each.requires_grad for each in args if isinstance(each, torch.Tensor)):
        raise InapplicableError(
            "checkpointing blocks-reentrant gives no gradients to a block whose inputs want none: choose "
            "--checkpointing blocks"
        )
    if kwargs.get(_CACHE) is not None:  # recomputation would add to the cache again
        kwargs[_CACHE] = None
    return checkpoint(functools.partial(forward, **kwargs), *args, use_reentrant=True)


def _let_inputs_want_gradients(model: torch.nn.Module) -> None:
    """Calls transformers' `enable_input_require_grads`, if a module has it.

    With frozen weights no input of a reentrant checkpoint would require gradients.
    """
    for module in model.modules():
        enable = getattr(module, "enable_input_require_grads", None)
        if enable is not None:
            enable()
            return


def repeated_blocks(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, torch.nn.Module]]:
    """Yields a model's outermost repeated blocks, such as transformer layers, each after its list.

    A block has children, and a sibling of its class in an `nn.Sequential` or `nn.ModuleList`.
    """
    children = list(model.children())
    is_list = isinstance(model, torch.nn.Sequential | torch.nn.ModuleList)
    num_alike = collections.Counter(type(child) for child in children)
    for child in children:
        has_parts = next(child.children(), None) is not None
        if is_list and has_parts and num_alike[type(child)] > 1:
            yield model, child
        else:
            yield from repeated_blocks(child)
