"""Fake CPU: traces a step of any size on tensors without data, in little time and memory.

C++ code sees fake tensors on the CPU, so that PyTorch takes the same branches, operators and optimizers as
for real CPU tensors. Tensors of a model's constructor and of `make_batch` stay real, as both may read values.
Within a step new tensors are fake, except one-element ones, in which optimizers count steps and which they
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from autofit_workers.apply import setting
from autofit_workers.pytorch.fake_tensors import FakeTensor
from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.pytorch.pytree import tree_leaves
from autofit_workers.tracing.fake.fake_device import FakeDeviceMode, has_wrapper
from autofit_workers.tracing.fake.running import OperatorObserver
from autofit_workers.tracing.host import scratch

CPU = torch.device("cpu")


class FakeCpuMode(FakeDeviceMode):
    """Dispatch mode that runs operators on fake CPU tensors, and makes new tensors fake within a step."""

    def __init__(self, observer: OperatorObserver) -> None:
        super().__init__(observer, CPU, scratch.with_workspace)
        self._in_step = False

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Context of a step: new tensors are fake, and operators on fake tensors are observed."""
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False

    def taken_in(self, batch: Any) -> Any:
        return setting.mapped(batch, lambda tensor: self.placed(tensor).requires_grad_(tensor.requires_grad))

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return torch.device("meta") if self.fake_mode.in_kernel_invocation else args[0].fake_device
        if has_wrapper(types):
            return NotImplemented
        if any(issubclass(t, FakeTensor) for t in types):
            if self._in_step:
                return self._run(func, args, kwargs)
            return self._shapes.run(func, self._without_real_tensors(args), kwargs)
        if (
            self._in_step
            and not _has_tensors(args, kwargs)
            and self._makes_several_numbers(func, args, kwargs)
        ):
            return self._run(func, args, kwargs)
        return func(*args, **kwargs)

    def _makes_several_numbers(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        result = self._shapes.run(func, args, kwargs)
        return isinstance(result, Tensor) and result.numel() > 1


def _has_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs)))
