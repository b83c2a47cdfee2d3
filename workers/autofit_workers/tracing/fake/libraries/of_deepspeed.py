"""Lets DeepSpeed run on the fake GPU, without its compiled operators.

DeepSpeed uses the GPU through its class `CUDA_Accelerator`, which it chooses if `torch.cuda.is_available()`.
It reads the card's free memory to decide whether parameters are flattened on the GPU or on the host
(stage_1_and_2.py); here all memory of a large card is reported as free, so they are flattened on the GPU.

DeepSpeed compiles its operators from source at first use. Those of its optimizers write tensors in place that
Python has allocated (ops/adam/fused_adam.py, cpu_adam.py and others), and allocate nothing on the GPU: lists
of tensors are passed to csrc/adam/multi_tensor_adam.cu as kernel arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from autofit_workers.pytorch.dispatch import current_modes
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.tracing.fake.fake_device import FakeDeviceMode
from autofit_workers.workload.libraries.finders import when_imported

_IN_PLACE = ("fused_adam", "fused_lion", "cpu_adam", "cpu_adagrad", "cpu_lion")
_ZEROS = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_cached",
    "max_memory_cached",
)
_NOTHING = (
    "manual_seed",
    "manual_seed_all",
    "range_pop",
    "range_push",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
)


class _Operators:
    """Stand-in for the module that DeepSpeed would compile for an optimizer; its functions do nothing."""

    def __getattr__(self, name: str) -> Any:
        return _nothing


@functools.cache
def install() -> None:
    """Lets DeepSpeed find and use the fake GPU, in this process for good."""
    when_imported("deepspeed.accelerator.cuda_accelerator", _answer)
    when_imported("deepspeed.ops.op_builder.builder", _stand_in)
    when_imported("deepspeed.runtime.zero.utils", _agree)
    when_imported("deepspeed.runtime.zero.partition_parameters", _leave_own_tensors)
    when_imported("cpuinfo", _know_nothing)


def _answer(module: ModuleType) -> None:
    accelerator: Any = module.CUDA_Accelerator
    accelerator._init_pynvml = _nothing  # NVML would describe real cards
    for each in _ZEROS:
        setattr(accelerator, each, lambda *_args: 0)
    for each in _NOTHING:
        setattr(accelerator, each, _nothing)


def _stand_in(module: ModuleType) -> None:
    builder: Any = module.OpBuilder

    def load(self: Any, *_args: object, **_kwargs: object) -> _Operators:
        if self.name not in _IN_PLACE:
            raise UnsupportedError(
                f"DeepSpeed's operator {self.name} is compiled for a GPU, and is not followed here: choose "
                "what needs none of it (of optimizers, one of PyTorch's), or measure"
            )
        return _Operators()

    builder.load = load


class _AsRankZero:
    """Wrapper of `deepspeed.comm` whose `get_rank` returns 0."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def get_rank(self, *_args: object, **_kwargs: object) -> int:
        return 0


def _agree(module: Any) -> None:
    """Makes `module` of DeepSpeed skip receiving numbers from rank 0, by telling it that it is rank 0."""
    module.dist = _AsRankZero(module.dist)


def _leave_own_tensors(module: Any) -> None:
    """Makes DeepSpeed's `zero.Init` move only tensors of the program to the GPU, not those of autofit."""
    wrap = module.zero_wrapper_for_fp_tensor_constructor

    def wrapped_for_program(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        of_program = wrap(make, *args, **kwargs)

        def made(*args: Any, **kwargs: Any) -> Any:
            return (of_program if _is_program() else make)(*args, **kwargs)

        return made

    module.zero_wrapper_for_fp_tensor_constructor = wrapped_for_program


def _is_program() -> bool:
    """Whether a `FakeDeviceMode` is active, so the predicted program's code is running."""
    return any(isinstance(mode, FakeDeviceMode) for mode in current_modes())


def _know_nothing(module: Any) -> None:
    """Makes `cpuinfo.get_cpu_info`, which DeepSpeed calls, return an empty dict and start no programs.

    DeepSpeed needs the result only for a warning.
    """
    module.get_cpu_info = dict


def _nothing(*_args: object, **_kwargs: object) -> None:
    return None
