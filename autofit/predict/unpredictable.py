"""Refuses steps on cards where a library, such as AMD's MIOpen, takes an unknown amount of memory.

AMD's cards run convolutions and recurrent networks with MIOpen. How much memory its solutions take depends on
what its database or a search finds best on the card; no table of it is known, and none was measured. A span
that holds all of them would be a guess, so that these steps are refused.
"""

from __future__ import annotations

from autofit.errors import UnpredictableCardError
from autofit.hardware.card import Card
from autofit_workers.replay.curve.conditions import leaves_some_to_backend
from autofit_workers.spec.architecture import Architecture, Vendor
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Trace

_OF_CUDNN = {
    "_cudnn_rnn": "AMD's cards run recurrent layers with MIOpen, whose memory is not known: name an NVIDIA "
    "card",
    "cudnn_attention": "AMD's cards have no cuDNN for --attention cudnn: choose another backend, or name an "
    "NVIDIA card",
}
_OF_NVIDIA = {
    **_OF_CUDNN,
    "flash_attn": "what FlashAttention takes on AMD's cards is not known: choose another --attention, or "
    "name an NVIDIA card",
}
_CONVOLUTIONS = (
    "AMD's cards run convolutions with MIOpen, whose workspaces are not known: name an NVIDIA card, or "
    "predict PyTorch's own kernels with --conv-algo native"
)


def why_unpredictable(knobs: Knobs, trace: Trace, card: Card) -> str | None:
    """Reason why a step cannot be predicted on a card, and what to do instead; None if it can."""
    if Architecture.of(card.architecture).vendor is Vendor.NVIDIA:
        return None
    convolutions = dict.fromkeys(a.convolution for a in trace.allocations if a.convolution is not None)
    if leaves_some_to_backend(convolutions, knobs.conv_algo):
        return _CONVOLUTIONS
    operators = {allocation.operator for allocation in trace.allocations}
    return next((why for part, why in _OF_NVIDIA.items() if any(part in name for name in operators)), None)


def require_predictable(knobs: Knobs, trace: Trace, card: Card) -> None:
    """Raises `UnpredictableCardError` if a step cannot be predicted on a card."""
    if (why := why_unpredictable(knobs, trace, card)) is not None:
        raise UnpredictableCardError(why)
