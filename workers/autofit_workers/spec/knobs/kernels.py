"""The knob `kernels`: whether a transformers model runs Liger's kernels, which leave attention alone.

Liger's are its rotary embedding, norms, gated feed-forward layers and loss, as `use_liger_kernel` of
transformers' Trainer puts them into a model.
"""

from __future__ import annotations

from typing import Any

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.knobs.knob import Knob, one_of

ALL_KERNELS = ("default", "liger")


def _require(value: str, device_kind: str) -> None:
    if value != "default" and device_kind == "cpu":
        raise UnsupportedError(f"kernels {value} does not apply to cpu: choose default")


def liger_options(loss: str) -> dict[str, bool]:
    """Options of Liger's kernels that differ from its defaults.

    Args:
        loss: a value of the option `--loss`; Liger's own losses are off unless it is `full`.
    """
    return {} if loss == "full" else {"fused_linear_cross_entropy": False, "cross_entropy": False}


def _model_lines(value: str, knobs: Any) -> tuple[str, ...]:
    if value == "default":
        return ()
    return (
        "from transformers.integrations.liger import apply_liger_kernel",
        f"apply_liger_kernel(model, {liger_options(knobs.loss)})",
    )


KNOB = Knob(
    name="kernels",
    default="default",
    read=one_of(ALL_KERNELS),
    help="Kernels of a model of transformers other than its attention. default is PyTorch's; liger is what "
    "Trainer's use_liger_kernel takes: norms, rotary embedding, feed-forward layers and a loss that never "
    "holds all logits (liger-kernel).",
    values=ALL_KERNELS,
    examples=ALL_KERNELS,
    is_searchable=True,
    words={"default": "PyTorch's kernels", "liger": "Liger's kernels"},
    phrase="{} kernels",
    model_lines=_model_lines,
    require=_require,
)
