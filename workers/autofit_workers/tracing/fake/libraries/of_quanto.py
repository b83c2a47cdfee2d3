"""Lets optimum-quanto (release 0.2.7) pack and quantize fake tensors as it does plain ones.

optimum-quanto packs 4-bit weights and caches, two numbers per byte, only if they are plain tensors
(`WeightQBitsTensor.__init__`, tensor/weights/qbits.py). It quantizes by an operator whose kernel is written
in Python (library/quantize.py); that kernel is run here, since the operator's fake function shows only the
result.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from autofit_workers.pytorch.fake_tensors import FakeTensor
from autofit_workers.tracing.fake.composites import WITH_TEMPORARIES
from autofit_workers.workload.libraries.finders import ExecutingFinder, when_imported

_QUANTIZING = "quanto::quantize_affine"


@functools.cache
def install() -> None:
    """Makes optimum-quanto treat fake tensors as plain tensors, in this process for good."""
    when_imported("optimum.quanto.tensor.weights.qbits", _pack)
    sys.meta_path.insert(0, ExecutingFinder(["optimum.quanto.library.quantize"], _keep_kernel))


def _pack(module: Any) -> None:
    """Makes `WeightQBitsTensor` of optimum-quanto pack fake uint8 tensors, as it packs plain ones."""
    made_of = module.WeightQBitsTensor.__init__

    @functools.wraps(made_of)
    def packing(self: Any, qtype: Any, *layout: Any, **more: Any) -> None:
        packed = (
            module.PackedTensor.pack(each, qtype.bits)
            if type(each) is FakeTensor and each.dtype is torch.uint8
            else each
            for each in layout
        )
        made_of(self, qtype, *packed, **more)

    module.WeightQBitsTensor.__init__ = packing


def _keep_kernel(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Executes `module` and keeps the quantizing kernel that it registers in `WITH_TEMPORARIES`."""
    library: Any = torch.library
    impl = library.impl

    def keeping(name: str, *types: Any, **options: Any) -> Callable[[Callable[..., Any]], None]:
        register = impl(name, *types, **options)

        def both(kernel: Callable[..., Any]) -> None:
            register(kernel)
            if name == _QUANTIZING:
                WITH_TEMPORARIES[torch.ops.quanto.quantize_affine.default] = kernel

        return both

    library.impl = keeping
    try:
        execute(module)
    finally:
        library.impl = impl
