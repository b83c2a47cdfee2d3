"""The knob `attention`: which attention kernels a step takes.

PyTorch's kernels concern `torch.nn.functional.scaled_dot_product_attention`, and with it
`nn.MultiheadAttention`, `nn.TransformerEncoderLayer` and the `sdpa` attention of transformers. They have no
effect on a model that computes attention by its own matrix products. The other values are implementations
that a model of transformers is told to take (`autofit_workers.apply.attention`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.knobs.knob import Knob, one_of

# Name of each kernel in PyTorch's `SDPBackend`, and its switch in `torch.backends.cuda`.
KERNELS = {
    "flash": ("FLASH_ATTENTION", "enable_flash_sdp"),
    "efficient": ("EFFICIENT_ATTENTION", "enable_mem_efficient_sdp"),
    "cudnn": ("CUDNN_ATTENTION", "enable_cudnn_sdp"),
    "math": ("MATH", "enable_math_sdp"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """Attention implementation of transformers.

    Attributes:
        name: its name for a model's `set_attn_implementation`.
        package: import name of the library with its kernels; None if PyTorch has them.
        distribution: name by which that library is installed.
    """

    name: str
    package: str | None = None
    distribution: str | None = None


IMPLEMENTATIONS = {
    "eager": Implementation(name="eager"),
    "fa2": Implementation(name="flash_attention_2", package="flash_attn", distribution="flash-attn"),
    "fa3": Implementation(
        name="flash_attention_3", package="flash_attn_interface", distribution="flash-attn-3"
    ),
}
_ON_THE_CPU = ("flash", "math", "eager")
ATTENTIONS = ("default", *KERNELS, *IMPLEMENTATIONS)


def _require(value: str, device_kind: str) -> None:
    if device_kind == "cpu" and value not in ("default", *_ON_THE_CPU):
        raise UnsupportedError(
            f"attention {value} does not apply to cpu: choose default, {', '.join(_ON_THE_CPU)}"
        )


def _lines(value: str) -> tuple[str, ...]:
    """Python lines that switch off every kernel of scaled dot product attention but one.

    Args:
        value: a value of the option `--attention`, which names the kernel.
    """
    if value not in KERNELS:
        return ()
    others = (switch for name, (_, switch) in KERNELS.items() if name != value)
    return tuple(f"torch.backends.cuda.{switch}(False)" for switch in others)


def _model_lines(value: str, _knobs: Any) -> tuple[str, ...]:
    implementation = IMPLEMENTATIONS.get(value)
    return () if implementation is None else (f'model.set_attn_implementation("{implementation.name}")',)


KNOB = Knob(
    name="attention",
    default="default",
    read=one_of(ATTENTIONS),
    help="Kernel of scaled_dot_product_attention. default is PyTorch's choice: the first of flash, efficient "
    "and math that takes the tensors. A named kernel is the only one allowed. eager, fa2 and fa3 "
    "(FlashAttention) are for models of transformers.",
    values=ATTENTIONS,
    is_searchable=True,
    words={
        "default": "PyTorch's choice of attention",
        "fa2": "FlashAttention 2",
        "fa3": "FlashAttention 3",
    },
    phrase="{} attention",
    script_lines=_lines,
    model_lines=_model_lines,
    require=_require,
)
