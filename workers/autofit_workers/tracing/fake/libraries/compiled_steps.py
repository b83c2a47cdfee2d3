"""Memory of optimizer steps that libraries compile, such as torchao's low-bit Adam.

torchao's low-bit optimizers hand `single_param_adam` to `torch.compile` (torchao/optim/adam.py), which makes
few kernels of its many operators. What one kernel leaves for the next is a tensor of all elements of the
parameter, for each of the two states; what stays within a kernel takes nothing.

    unpacked   codes of 4 bits as bytes, which are read as indices     (subclass_4bit.py, `dequantize`)
    scaled     float32 to be quantized; a kernel may well keep it       (quant_utils.py, `scale_tensor`)
    codes      int64, of which the next kernel packs pairs of 4 bits   (subclass_4bit.py, `copy_`)

These are the buffers in what TorchInductor 2.13 makes of it for the CPU (`TORCH_LOGS=output_code`). Which of
them stay within a kernel on a GPU, and whether the second state takes the place of the first, is not known.
"""

from __future__ import annotations

from typing import Any

import torch

from autofit_workers.replay.spans import between
from autofit_workers.spec.trace import COMPILED_STEP
from autofit_workers.tracing.fake.devices import GPU
from autofit_workers.tracing.fake.library_memory import library_memory

_UNPACKED, _SCALED, _CODES = 1, 4, 8  # bytes of an element
# By the class of a state, low, likely and high bytes of an element of the parameter.
_ELEMENT_BYTES = {
    "OptimState8bit": (0, 0, 2 * _SCALED),
    "OptimState4bit": (
        _UNPACKED + _CODES,
        2 * (_UNPACKED + _CODES),
        2 * (_UNPACKED + _CODES + _SCALED),
    ),
}


def replace_in_torchao(adam: Any) -> None:
    """Makes `torchao.optim.adam` take its compiled step's memory for parameters on the GPU."""
    eager = adam.single_param_adam

    def compiled(
        parameter: torch.Tensor, grad: torch.Tensor, step: torch.Tensor, state: torch.Tensor, *rest: Any
    ) -> None:
        if parameter.device.type != GPU.type:
            eager(parameter, grad, step, state, *rest)
        elif type(state).__name__ in _ELEMENT_BYTES:
            span = (parameter.numel() * size for size in _ELEMENT_BYTES[type(state).__name__])
            library_memory(between(*span), COMPILED_STEP)

    adam.single_param_adam = compiled
