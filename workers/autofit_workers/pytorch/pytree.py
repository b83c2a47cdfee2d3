"""Nested containers of tensors; there is no public module for them in every supported release."""

from __future__ import annotations

from torch.utils._pytree import (
    tree_flatten,  # leaves and structure: what of a batch is a tensor
    tree_leaves,  # all tensors of a batch, an argument list or a result
    tree_map,  # a container like another, with each leaf replaced
    tree_map_only,  # likewise, for leaves of one type
    tree_unflatten,  # a container from leaves and structure
)

__all__ = ["tree_flatten", "tree_leaves", "tree_map", "tree_map_only", "tree_unflatten"]
