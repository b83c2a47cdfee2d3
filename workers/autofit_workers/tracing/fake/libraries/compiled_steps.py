"""Memory of optimizer steps that libraries compile, such as torchao's low-bit Adam.

torchao's low-bit optimizers compile `single_param_adam` by `torch.compile` (torchao/optim/adam.py), which
fuses its many operators into a few kernels. Values passed from one kernel to the next are buffers as large as
the parameter, for each of the two optimizer states; values within a kernel take no memory. The buffers may
be:

    unpacked   4-bit codes as bytes, read as indices                    (subclass_4bit.py, `dequantize`)
    scaled     float32 values to quantize, likely within a kernel       (quant_utils.py, `scale_tensor`)
    codes      int64 codes, which the next kernel packs to 4 bits       (subclass_4bit.py, `copy_`)

They are those in the code that TorchInductor 2.13 generates for the CPU (`TORCH_LOGS=output_code`). It is not
known which of them remain within a kernel on a GPU, and whether both states' buffers are alive together.
"""

from __future__ import annotations

from typing import Any

import torch

from autofit_workers.replay.spans import between
from autofit_workers.spec.trace import COMPILED_STEP
from autofit_workers.tracing.fake.devices import GPU
from autofit_workers.tracing.fake.library_memory import library_memory

_UNPACKED, _SCALED, _CODES = 1, 4, 8  # bytes per element
# Low, likely and high bytes per element of a parameter, by the class of its optimizer state.
_ELEMENT_BYTES = {
    "OptimState8bit": (0, 0, 2 * _SCALED),
    "OptimState4bit": (
        _UNPACKED + _CODES,
        2 * (_UNPACKED + _CODES),
        2 * (_UNPACKED + _CODES + _SCALED),
    ),
}


def replace_in_torchao(adam: Any) -> None:
    """Makes `torchao.optim.adam` allocate the memory of its compiled step for parameters on the GPU."""
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
