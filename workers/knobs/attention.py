"""The knob `attention`: which of PyTorch's attention kernels a step takes.

It concerns `torch.nn.functional.scaled_dot_product_attention`, and with it `nn.MultiheadAttention`,
`nn.TransformerEncoderLayer` and the `sdpa` attention of transformers. A model that multiplies its scores
itself is not touched.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from workers.errors import UnsupportedError
from workers.knobs.knob import Knob, one_of

# Of each kernel its name in PyTorch's `SDPBackend`, and the switch in `torch.backends.cuda`.
_KERNELS = {
    "flash": ("FLASH_ATTENTION", "enable_flash_sdp"),
    "efficient": ("EFFICIENT_ATTENTION", "enable_mem_efficient_sdp"),
    "cudnn": ("CUDNN_ATTENTION", "enable_cudnn_sdp"),
    "math": ("MATH", "enable_math_sdp"),
}
_ON_THE_CPU = ("flash", "math")
ATTENTIONS = ("default", *_KERNELS)


def _applied(value: str, device_kind: str) -> AbstractContextManager[object]:
    if value == "default":
        return nullcontext()
    if device_kind == "cpu" and value not in _ON_THE_CPU:
        raise UnsupportedError(
            f"attention {value} does not apply to cpu: choose default, {', '.join(_ON_THE_CPU)}"
        )
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(getattr(SDPBackend, _KERNELS[value][0]))


def _lines(value: str) -> tuple[str, ...]:
    """Every other kernel is switched off."""
    if value == "default":
        return ()
    others = (switch for name, (_, switch) in _KERNELS.items() if name != value)
    return tuple(f"torch.backends.cuda.{switch}(False)" for switch in others)


KNOB = Knob(
    name="attention",
    default="default",
    read=one_of(ATTENTIONS),
    help="Kernel of scaled_dot_product_attention. default is PyTorch's choice: the first of flash, efficient "
    "and math that takes the tensors. A named kernel is the only one allowed.",
    values=ATTENTIONS,
    is_searchable=True,
    words={"default": "PyTorch's choice of attention"},
    phrase="{} attention",
    script_lines=_lines,
    applied=_applied,
)
