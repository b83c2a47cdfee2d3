"""Replaces the loss of transformers' causal language models by functions that never hold all logits.

The model's own forward runs, but its head returns the hidden states in place of logits, and the loss function
that the model calls also gets the head's weight. If the model scales its logits, it scales the hidden states
instead, with the same result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from autofit_workers.apply.adapter import task_of
from autofit_workers.spec.errors import InapplicableError, UnsupportedError
from autofit_workers.spec.knobs.loss import split_loss
from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.libraries.transformers_releases import text_config_of

_IGNORED = -100  # label of a position that the loss ignores, in transformers and PyTorch alike
_LIGER_LOSS = "liger_kernel.transformers.model.loss_utils"
_SOFTCAP = "final_logit_softcapping"

# Arguments: hidden states, head, labels, softcap of the logits or None, and the model's further keywords.
_Loss = Callable[..., Tensor]


def set_loss(model: nn.Module, loss: str) -> None:
    """Replaces the loss of the transformers causal language model in `model` by the one that `loss` names.

    Args:
        model: the model, with its adapter if it has one.
        loss: a value of the knob `loss`, see `autofit_workers.spec.knobs.Knobs`.

    Raises:
        InapplicableError: `model` has no causal language model or its head is not linear; or, raised when the
            model runs, it uses its logits for more than the loss, or does not compute its loss.
        UnsupportedError: this release of PyTorch has no such loss function.
        MissingLibraryError: the library is not installed here.
    """
    kind, number = split_loss(loss)
    if kind == "full":
        return
    language_model = next((each for each in model.modules() if task_of(each) == "CAUSAL_LM"), None)
    if language_model is None:
        raise InapplicableError(
            f"loss {loss} is for causal language models of transformers, which {type(model).__name__} is "
            "not: leave it at full"
        )
    _LossWithHead(language_model, loss, _LOSSES[kind](number)).install()


@dataclass
class _LossWithHead:
    """Replacement of a model's loss that takes hidden states and the output layer's weight, not logits."""

    model: Any
    name: str
    loss: _Loss
    hands_on: bool = False  # hidden states were returned, but no loss was computed yet

    def install(self) -> None:
        head: Any = self.model.get_output_embeddings()
        if type(head) is not nn.Linear:
            raise InapplicableError(
                f"loss {self.name} multiplies by the head's weight itself, and the head of "
                f"{type(self.model).__name__} is a {type(head).__name__}: leave it out of the adapter, or "
                "the loss at full"
            )
        vars(head)["forward"] = self._handed_on
        self.model.loss_function = functools.partial(self._of_hidden_states, head)
        self.model.register_forward_hook(self._require_loss)

    def _handed_on(self, hidden: Tensor) -> Tensor:
        self.hands_on = True
        return hidden

    def _of_hidden_states(
        self, head: nn.Linear, logits: Tensor, labels: Tensor, *_: Any, **told: Any
    ) -> Tensor:
        self.hands_on = False
        config = text_config_of(self.model.config)
        hidden = logits.to(head.weight.dtype)
        told.pop("vocab_size", None)
        return self.loss(hidden, head, labels, softcap=getattr(config, _SOFTCAP, None), **told)

    def _require_loss(self, *_call: object) -> None:
        if self.hands_on:
            raise InapplicableError(
                f"loss {self.name} needs a model that is given labels and asks its loss_function, and "
                f"{type(self.model).__name__} did not: leave it at full"
            )


def _chunked(number: int | None) -> _Loss:
    """Loss by `torch.nn.functional.linear_cross_entropy` in `number` chunks; None lets PyTorch choose."""
    if not hasattr(functional, "linear_cross_entropy") or not hasattr(nn, "LinearCrossEntropyOptions"):
        raise UnsupportedError(
            "loss chunked is torch.nn.functional.linear_cross_entropy in chunks, which came with PyTorch "
            f"2.13, and this is {torch.__version__}: install a newer one, or choose another --loss"
        )

    def loss(
        hidden: Tensor,
        head: nn.Linear,
        labels: Tensor,
        *,
        softcap: float | None,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = _IGNORED,
        shift_labels: Tensor | None = None,
        **_told: Any,
    ) -> Tensor:
        if softcap is not None:
            raise InapplicableError(
                "loss chunked cannot cap logits, which this model does (final_logit_softcapping): choose "
                "another --loss"
            )
        rows = hidden.flatten(0, -2)
        if shift_labels is None:  # the tokens before position n predict token n
            shift_labels = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        size = None if number is None else -(-len(rows) // number)
        options = nn.LinearCrossEntropyOptions(
            batch_chunk_size=size, chunking_method="auto" if size is None else None
        )
        total = functional.linear_cross_entropy(
            rows,
            head.weight,
            shift_labels.reshape(-1),
            linear_bias=head.bias,
            ignore_index=ignore_index,
            reduction="mean" if num_items_in_batch is None else "sum",
            options=options,
        )
        return total if num_items_in_batch is None else total / num_items_in_batch

    return loss


def _fused(_number: int | None) -> _Loss:
    """Loss by `LigerForCausalLMLoss`, called as Liger's patches of transformers call it."""
    made: Any = imported(_LIGER_LOSS, "fused", "a loss", distribution="liger-kernel")

    def loss(
        hidden: Tensor, head: nn.Linear, labels: Tensor, *, softcap: float | None, **told: Any
    ) -> Tensor:
        biased = {} if head.bias is None else {"bias": head.bias}
        capped = {} if softcap is None else {_SOFTCAP: softcap}
        found: Tensor = made.LigerForCausalLMLoss(
            hidden, head.weight, labels, hidden_size=hidden.shape[-1], **biased, **capped, **told
        )
        return found

    return loss


_LOSSES: dict[str, Callable[[int | None], _Loss]] = {"chunked": _chunked, "fused": _fused}
