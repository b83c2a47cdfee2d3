"""Memory of `max-autotune`'s benchmarks, in which Inductor runs products and convolutions to choose kernels.

Benchmarks run while a graph is compiled, so in the first step, beside what lives on the card then. Those of
one operator share example inputs, an output, and a buffer as large as the L2 cache that is written between
two runs (`AlgorithmSelectorCache.get_inputs`, torch/_inductor/select_algorithm.py; `benchmark_gpu`,
torch/_inductor/runtime/benchmarking.py). Nothing is benchmarked here: PyTorch's own operators are chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from autofit_workers.pytorch import inductor
from autofit_workers.tracing.fake.devices import GPU

# Patches of Inductor's configuration by which no kernel of Triton is a choice.
CHOICES: dict[str, Any] = {
    "max_autotune_gemm_backends": "ATEN",
    "max_autotune_conv_backends": "ATEN",
    "coordinate_descent_tuning": False,
}

_benchmarked: set[tuple[Any, ...]] = set()


def is_asked_for(patches: dict[str, Any]) -> bool:
    """Whether benchmarks of products and convolutions are asked for.

    Args:
        patches: options of `torch.compile`, which go before Inductor's configuration, that a program may set.
    """
    config: Any = inductor.inductor_config
    names = ("max_autotune", "max_autotune_gemm")
    return any(patches.get(name, getattr(config, name)) for name in names)


def has_choices() -> bool:
    """Whether `CHOICES` are in effect."""
    config: Any = inductor.inductor_config
    return all(getattr(config, name) == value for name, value in CHOICES.items())


def install(allocating: Callable[[], AbstractContextManager[None]]) -> None:
    """Replaces the choice among kernels in this process, for good.

    Args:
        allocating: returns a context in which tensors are made on the fake GPU while the compiler runs.
    """
    select = inductor.SELECT_KERNEL.get()

    def selected(
        cache: Any,
        name: str,
        choices: list[Any],
        input_nodes: list[Any],
        layout: Any,
        *args: Any,
        **options: Any,
    ) -> Any:
        config: Any = inductor.inductor_config
        if (config.max_autotune or config.max_autotune_gemm) and layout.device.type == "cuda":
            with allocating():
                _benchmark(cache, name, input_nodes, layout)
        return select(cache, name, choices[:1], input_nodes, layout, *args, **options)

    inductor.SELECT_KERNEL.replace(selected)


def forget() -> None:
    """Forgets the benchmarks of an earlier program in this process."""
    _benchmarked.clear()


def _benchmark(cache: Any, name: str, input_nodes: list[Any], layout: Any) -> None:
    """Allocates what the benchmarks of an operator take, and frees it; once for inputs that are alike."""
    key = (name, *(str(node.get_layout()) for node in input_nodes))
    if key in _benchmarked:
        return
    _benchmarked.add(key)
    examples = {node.get_name(): cache.benchmark_example_value(node) for node in input_nodes}
    output = cache.benchmark_example_value(layout)
    num_words = torch.cuda.get_device_properties(0).L2_cache_size // 4
    buffer = torch.empty(num_words, dtype=torch.int, device=GPU)
    del buffer, output, examples
