"""Runs compiled steps of small models on the CPU, for real, and prints what their wrappers allocate.

Inductor's C++ backend compiles them. Run as a program: one line of JSON for each model, with the peak of each
call of a wrapper beside Inductor's estimate, as `compiled_models.py` has them of traced steps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.workers.tracing.compiled_models import MODELS, estimated


class Allocations:
    """Buffers that a wrapper allocated, by the weak references of their memory.

    Attributes:
        peak_bytes: most bytes that were alive at a time.
    """

    def __init__(self) -> None:
        self._alive: list[tuple[StorageWeakRef, int]] = []
        self._inputs: list[tuple[StorageWeakRef, int]] = []
        self.peak_bytes = 0

    def begin(self, inputs: list[Any]) -> None:
        """Notes the inputs of a call, of which the wrapper frees some."""
        self._alive, self.peak_bytes = [], 0
        self._inputs = [
            (StorageWeakRef(each.untyped_storage()), each.untyped_storage().nbytes())
            for each in inputs
            if isinstance(each, torch.Tensor)
        ]

    def made(self, tensor: torch.Tensor) -> torch.Tensor:
        """Notes a new buffer."""
        self._alive.append((StorageWeakRef(tensor.untyped_storage()), tensor.untyped_storage().nbytes()))
        alive = sum(size for memory, size in self._alive if not memory.expired())
        freed = sum(size for memory, size in self._inputs if memory.expired())
        self.peak_bytes = max(self.peak_bytes, alive - freed)
        return tensor


def compared(name: str) -> dict[str, Any]:
    """Runs two steps of a model, and compares each call of its wrappers with Inductor's estimate."""
    from torch._inductor.graph import GraphLowering

    make, batch, sizes = MODELS[name]
    calls: list[tuple[int, int]] = []
    allocations = Allocations()
    compile_to_module = GraphLowering.compile_to_module

    def compiled(lowering: Any) -> Any:
        module = compile_to_module(lowering)
        make_buffer, call = module.empty_strided_cpu, module.call
        planned, freed = estimated(lowering)
        module.empty_strided_cpu = lambda *args: allocations.made(make_buffer(*args))

        def observed(arguments: list[Any]) -> Any:
            allocations.begin(arguments)
            result = call(arguments)
            calls.append((allocations.peak_bytes + freed, planned))
            return result

        module.call = observed
        return module

    GraphLowering.compile_to_module = compiled
    model: Callable[..., torch.Tensor] = torch.compile(make())
    for size in sizes:
        loss = model(batch(size, device="cpu")).float().pow(2).mean()
        loss.backward()
    return {"name": name, "calls": calls}


def main() -> None:
    from torch._functorch import config as autograd
    from torch._inductor import config

    config.inplace_buffers = False  # which Inductor's estimate does not know
    config.fx_graph_cache = autograd.enable_autograd_cache = False  # kept code is not planned again
    for name in sys.argv[1:]:
        sys.stdout.write(json.dumps(compared(name)) + "\n")
        torch.compiler.reset()


if __name__ == "__main__":
    main()
