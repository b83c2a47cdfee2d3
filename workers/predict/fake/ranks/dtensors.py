"""Lets a `DTensor` hold a fake tensor.

A `DTensor` is a class of PyTorch's own around the part of a tensor that this rank has. The fake device's mode
leaves its operators to that class, which hands on those of the parts. To find out what becomes of the whole
it runs the operator on tensors that are nowhere, once for each combination of shapes: these are no
allocations.
"""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import _disable_current_modes


def install() -> None:
    """Prepares this process, for good."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    dtensor: Any = DTensor
    # C++ was told another device of the part; see `fake_gpu`.
    dtensor.device = property(lambda self: self._local_tensor.device)
    dtensor.is_cuda = property(lambda self: self.device.type == "cuda")
    propagator: Any = ShardingPropagator
    propagate = propagator._propagate_tensor_meta_non_cached

    def unobserved(self: Any, op_schema: Any) -> Any:
        with _disable_current_modes():
            return propagate(self, op_schema)

    propagator._propagate_tensor_meta_non_cached = unobserved
