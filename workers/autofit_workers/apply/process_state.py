"""Restores a process's random generators and PyTorch's flags after a trial."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")

_cuda: Any = torch.cuda  # untyped


@contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """Context manager that restores random generators and PyTorch's flags, however the block ends.

    `autofit_workers.apply.setting` sets and restores the flags of cuDNN and of matrix products; this module
    restores the flags that only a workload's own code may have set.
    """
    # Kept as lists, because tensors would count as the trial's memory.
    python_state, torch_state = random.getstate(), torch.get_rng_state().tolist()
    cuda_state = _cuda.get_rng_state(device).tolist() if device.type == "cuda" else None
    flags = [(read(), read, write) for read, write in _FLAGS]
    try:
        yield
    finally:
        for before, read, write in flags:
            _put_back(before, read, write)
        random.setstate(python_state)
        torch.set_rng_state(torch.tensor(torch_state, dtype=torch.uint8, device="cpu"))
        if cuda_state is not None and not _is_out_of_order(device):
            _cuda.set_rng_state(torch.tensor(cuda_state, dtype=torch.uint8, device="cpu"), device)


def _put_back(before: T, read: Callable[[], T], write: Callable[[T], object]) -> None:
    if read() != before:  # some flags cannot be set twice, so only changed ones are
        write(before)


def _is_out_of_order(device: torch.device) -> bool:
    """Whether the device fails, for example after an illegal memory access, so its state is lost."""
    try:
        _cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def _set_determinism(setting: tuple[bool, bool]) -> None:
    is_on, warns_only = setting
    torch.use_deterministic_algorithms(is_on, warn_only=warns_only)


_FLAGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_num_threads, torch.set_num_threads),
    (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        _set_determinism,
    ),
)
