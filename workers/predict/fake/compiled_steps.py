"""Optimizers whose libraries compile their step: what a compiled one takes, in place of running it eagerly.

torchao's low-bit optimizers hand `single_param_adam` to `torch.compile` (torchao/optim/adam.py). It updates
a parameter and its states in place by operators on the same elements and on blocks of them, which the
compiler joins: of its many temporaries, none need be. What is not joined goes through the device's memory,
of which the three float32 tensors that the function names for each element are taken as the most. That is
an assumption; no run is known of.
"""

from __future__ import annotations

from typing import Any

import torch

from workers.predict.fake.devices import GPU
from workers.predict.fake.library_memory import library_memory
from workers.predict.spans import between
from workers.trace import COMPILED_STEP

_FLOAT32_BYTES = 4
_NAMED_TENSORS = 3  # p_f32, exp_avg_f32, exp_avg_sq_f32


def replace_in_torchao(adam: Any) -> None:
    """Takes the place of the function that `torchao.optim.adam` compiles, for parameters on the GPU."""
    eager = adam.single_param_adam

    def compiled(parameter: torch.Tensor, *rest: Any) -> None:
        if parameter.device.type != GPU.type:
            eager(parameter, *rest)
            return
        most_bytes = _NAMED_TENSORS * _FLOAT32_BYTES * parameter.numel()
        library_memory(between(0, 0, most_bytes), COMPILED_STEP)

    adam.single_param_adam = compiled
