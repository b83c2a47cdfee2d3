"""Selective activation checkpointing: a block keeps outputs of slow operators, and recomputes the rest.

Slow operators are matrix products, convolutions, attention and recurrent layers: they take nearly all of a
step's time. Normalisations, activations, dropout and sums are recomputed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from autofit_workers.pytorch.pytree import tree_leaves
from autofit_workers.spec.errors import InapplicableError, UnsupportedError

# Names of slow operators; not every build of PyTorch has them all.
_DEAR = frozenset(
    {
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
        "aten::_scaled_mm",
        "aten::_grouped_mm",
        "aten::convolution",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_fused_attention_overrideable",
        "flash_attn::_flash_attn_forward",
        "flash_attn::_flash_attn_varlen_forward",
        "flash_attn_3::_flash_attn_forward",
        "aten::_cudnn_rnn",
        "aten::mkldnn_rnn_layer",
    }
)
_Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


def selective_contexts(percent: int | None) -> Callable[[], _Contexts]:
    """Factory of a block's forward and recompute contexts, the `context_fn` of `torch.utils.checkpoint`.

    Args:
        percent: most of the bytes of slow operators' outputs that one run of a block keeps, in percent; None
            keeps all.
    """

    def contexts() -> _Contexts:
        forward, again = create_selective_checkpoint_contexts(_Policy(percent))  # type: ignore[no-untyped-call]
        return forward, _Explained(again)

    return contexts


class _Policy:
    """Checkpoint policy that keeps outputs of slow operators up to a percentage of their bytes.

    An output is kept if the bytes kept are then within the percentage of the bytes output so far. If all
    outputs grow with the batch, a block so keeps the same ones in every step and at every batch size.
    """

    def __init__(self, percent: int | None) -> None:
        self._percent = percent
        self._seen_bytes = self._kept_bytes = 0

    def __call__(
        self, context: SelectiveCheckpointContext, operator: Any, *_args: Any, **_kwargs: Any
    ) -> CheckpointPolicy:
        if operator.name().partition(".")[0] not in _DEAR:
            return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if self._is_within(context) else CheckpointPolicy.PREFER_RECOMPUTE

    def _is_within(self, context: SelectiveCheckpointContext) -> bool:
        """Whether keeping an operator's output stays within the percentage; if so, counts its bytes."""
        if self._percent is None:
            return True
        output = getattr(context, "op_output", None)
        if output is None:
            raise UnsupportedError(
                f"this PyTorch ({torch.__version__}) does not tell a policy what an operator returns: choose "
                "--checkpointing selective, without a number"
            )
        num_bytes = sum(each.nbytes for each in tree_leaves(output) if isinstance(each, torch.Tensor))
        self._seen_bytes += num_bytes
        if 100 * (self._kept_bytes + num_bytes) > self._percent * self._seen_bytes:
            return False
        self._kept_bytes += num_bytes
        return True


class _Explained(AbstractContextManager[None]):
    """Context manager that replaces PyTorch's error on a kept output changed in place by a clear one.

    Raises:
        InapplicableError: in place of that error.
    """

    def __init__(self, context: AbstractContextManager[Any]) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._context.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if isinstance(error, RuntimeError) and "has been mutated" in str(error):
            self._context.__exit__(kind, error, trace)
            raise InapplicableError(
                "selective checkpointing keeps an output that the model then changes in place, such as by "
                "nn.ReLU(inplace=True): choose --checkpointing blocks, or leave out inplace"
            ) from error
        return self._context.__exit__(kind, error, trace)
