"""Activation checkpointing: blocks keep their inputs alone, and run again in backward for the rest.

T. Chen, B. Xu, C. Zhang, C. Guestrin, 2016: "Training Deep Nets with Sublinear Memory Cost".
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator

import torch
from torch.utils.checkpoint import checkpoint

from workers.errors import InapplicableError


def checkpoint_blocks(model: torch.nn.Module) -> None:
    """Lets every repeated block of a model run again in backward, with the random numbers it had before.

    What runs twice also counts twice: a batch norm updates its running statistics in both.

    Raises:
        InapplicableError: the model has no such blocks.
    """
    blocks = list(repeated_blocks(model))
    if not blocks:
        raise InapplicableError(
            "checkpointing blocks applies to no part of the model (no nn.Sequential or nn.ModuleList holds "
            "two blocks of one class): choose --checkpointing none"
        )
    for block in blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def repeated_blocks(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The outermost modules with children of their own that stand beside one of their class in a list.

    Lists are `nn.Sequential` and `nn.ModuleList`.
    """
    children = list(model.children())
    is_list = isinstance(model, torch.nn.Sequential | torch.nn.ModuleList)
    num_alike = collections.Counter(type(child) for child in children)
    for child in children:
        has_parts = next(child.children(), None) is not None
        if is_list and has_parts and num_alike[type(child)] > 1:
            yield child
        else:
            yield from repeated_blocks(child)
