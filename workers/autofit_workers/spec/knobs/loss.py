"""The knob `loss`: how a causal language model computes its cross entropy.

A model of transformers makes all logits, a copy of them in float32, and the loss from that. The other values
are library functions in `autofit_workers.apply.loss` that take the head's weight and never hold all logits.
"""

from __future__ import annotations

from typing import Any

from autofit_workers.spec.knobs.knob import Knob, number_after, one_of

LOSSES = ("full", "chunked", "fused")
LOSS_NAMES = (*LOSSES, "chunked:N")


def split_loss(name: str) -> tuple[str, int | None]:
    """Splits a value of the option `--loss`, such as `chunked:8`, at its number.

    Returns:
        The kind of loss, and the number of chunks; None if there is no number.

    Raises:
        ValueError: there is no such kind, or its number is missing or wrong.
    """
    kind, colon, digits = name.partition(":")
    if kind != "chunked" or not colon:
        return one_of(LOSS_NAMES)(name), None
    return kind, number_after(name, digits, "chunks", example=8)


def _read(value: object) -> str:
    kind, number = split_loss(str(value))
    return kind if number is None else f"{kind}:{number}"


def _model_lines(value: str, _knobs: Any) -> tuple[str, ...]:
    return () if value == "full" else (f'autofit.set_loss(model, "{value}")  # cross entropy of its labels',)


KNOB = Knob(
    name="loss",
    default="full",
    read=_read,
    help="Cross entropy of a causal language model of transformers. full is the model's own, of all logits; "
    "chunked is torch.nn.functional.linear_cross_entropy, which holds the logits of one chunk of tokens "
    "(chunked:N of one Nth); fused is Liger's fused linear cross entropy (liger-kernel).",
    values=LOSS_NAMES,
    examples=("full", "chunked", "chunked:8", "fused"),
    is_searchable=True,
    levers=("chunked:8",),
    words={"full": "the model's own loss"},
    phrase="{} cross entropy",
    model_lines=_model_lines,
)
