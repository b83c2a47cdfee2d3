"""The knob `activation_budget`: share of activations that a compiled model keeps for backward."""

from __future__ import annotations

from typing import Any

from autofit_workers.spec.knobs.knob import Cost, Knob, Part, or_none


def _share(value: Any) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is no number") from None
    if not 0 <= share <= 1:
        raise ValueError(f"{value!r} is no share between 0 and 1")
    return share


KNOB = Knob(
    name="activation_budget",
    default=None,
    read=or_none(_share),
    help="Share of activations that a compiled model keeps for backward; the rest is computed again "
    "(torch._functorch.config.activation_memory_budget). Wants --compile.",
    metavar="SHARE",
    is_searchable=True,
    of_training=True,
    leaves=lambda share: {Part.ACTIVATIONS: 1.0 if share is None else max(share, 0.1)},
    words={None: "no budget of activations"},
    phrase="{} of activations kept",
    script_lines=lambda share: (
        ()
        if share is None
        else (f"torch._functorch.config.activation_memory_budget = {share}  # before torch.compile",)
    ),
    cost=Cost(rank=3, of=lambda share, _capability: 0 if share is None else 1 - share),
)
