"""liger_kernels.csv: what one call of a single operator takes, to 1/1000 MB.

Source: linkedin/Liger-Kernel, `benchmark/scripts/benchmark_*.py` and `benchmark/data/`, BSD-2-Clause. A
script makes modules and inputs, times them, makes them again, and calls ten times; before each call it resets
the peak, and the row is the median of `max_memory_allocated` after it. So gradients of the call before are
there, and cuBLAS has a workspace for the main thread and one for the engine's. By its mode a call is a
forward and a backward pass, or one of them.

What lives beside what is called stands in `kernels.py`. Rows of other providers, Liger's own kernels above
all, and of operators that are not written there are made by the scripts themselves, of a clone of the
repository: see `liger_scripts.py`.
"""

from __future__ import annotations

import ast
import csv
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from autofit_workers.workload.workload import Workload
from tests.bench.language.kernels import KERNELS, REFERENCES, Inputs, Kernel
from tests.bench.language.liger_scripts import Clone, workload
from tests.bench.language.operators import Row
from tests.bench.language.runs import Run, Table

FILE = "llm/liger_kernels.csv"
_QUANTITY = "allocated peak of a call"
_OF_KERNELS = "allocated peak of a kernel's call"
_OF_COMPILED = "allocated peak of a compiled call"
# Chunks of losses and fusions of Megatron, which `torch.compile` compiles.
_COMPILED = (
    "fused_linear_cpo_loss",
    "fused_linear_grpo_loss_sequence",
    "fused_linear_orpo_loss",
    "megatron",
    "megatron-fused",
)
_ARCHITECTURES = {"A100": "sm_80", "H100": "sm_90", "3090": "sm_86", "4090": "sm_89", "B200": "sm_100"}


def read(folder: Path, clone: Path | None = None) -> list[Run]:
    """The rows of PyTorch's and transformers' own operators; where there is a clone, those of kernels too."""
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    scripts = None if clone is None else Clone(clone)
    runs = [_run(row, scripts) for row in rows if row["method"] in REFERENCES]
    if scripts is not None:
        runs += [_run_of_kernel(row, scripts) for row in rows if row["method"] not in REFERENCES]
    return runs


def _run(row: dict[str, str], scripts: Clone | None) -> Run:
    kernel, mode = row["model"].removeprefix("kernel: "), row["task"].removeprefix("op:")
    if scripts is not None and not _is_written(kernel, row["method"]):
        return _named(row, _QUANTITY, _by_script(row, scripts))
    told = dict(_values(row["other"]))
    return _named(row, _QUANTITY, functools.partial(_workload, kernel, row["method"], mode, told))


def _is_written(kernel: str, provider: str) -> bool:
    return kernel in KERNELS and provider in KERNELS[kernel].operators


def _by_script(row: dict[str, str], scripts: Clone) -> Callable[[], Workload]:
    return functools.partial(workload, scripts.row(row["url"]), _architecture(row))


def _run_of_kernel(row: dict[str, str], scripts: Clone) -> Run:
    is_compiled = row["method"] in _COMPILED or row["model"].removeprefix("kernel: ") in _COMPILED
    return _named(row, _OF_COMPILED if is_compiled else _OF_KERNELS, _by_script(row, scripts))


def _architecture(row: dict[str, str]) -> str:
    return next(sm for card, sm in _ARCHITECTURES.items() if card in row["gpu"])


def _named(row: dict[str, str], quantity: str, make: Callable[[], Workload]) -> Run:
    kernel, mode = row["model"].removeprefix("kernel: "), row["task"].removeprefix("op:")
    return Run(
        table="liger",
        name=f"{kernel} {row['method']} {mode} {row['url'].rpartition('#')[2]}",
        group=row["method"],
        make=make,
        batch_size=1,  # a row is one size, whatever its dimensions are called
        architecture=_architecture(row),
        measured={quantity: int(row["peak_bytes"])},
    )


def _values(other: str) -> Iterator[tuple[str, Any]]:
    for pair in other.split("; "):
        name, _, text = pair.partition("=")
        if text.startswith("torch."):
            yield name, getattr(torch, text.removeprefix("torch."))
            continue
        try:
            yield name, ast.literal_eval(text)
        except (SyntaxError, ValueError):
            yield name, text


def _workload(kernel: str, provider: str, mode: str, row: Row) -> Workload:
    if not _is_written(kernel, provider):
        raise LookupError(f"{kernel} of {provider} is not written here: it wants --liger, a clone")
    call = _Call(KERNELS[kernel], provider, mode, row)
    return Workload(
        build_model=call.build_model,
        make_batch=call.make_batch,
        loss=_no_loss,
        step=call,
        name=kernel,
    )


def _no_loss(_model: torch.nn.Module, _batch: Any) -> torch.Tensor:
    raise NotImplementedError("the step makes its own")


class _Call:
    """A script's calls: inputs once, then a call in every step."""

    def __init__(self, kernel: Kernel, provider: str, mode: str, row: Row) -> None:
        self._kernel = kernel
        self._provider = provider
        self._mode = mode if kernel.by_mode else "full"
        self._row = row
        self._inputs: Inputs | None = None
        self._outputs: tuple[torch.Tensor, ...] = ()

    def build_model(self) -> torch.nn.Module:
        made = self._kernel.operators
        providers = [self._provider] if self._kernel.makes_one else list(made)
        return torch.nn.ModuleDict({each: made[each](self._row) for each in providers})

    def make_batch(self, _batch_size: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        if self._inputs is None:
            self._inputs = self._kernel.inputs(self._row, device)
        return (*self._inputs.of_forward, torch.empty(1))  # the last one for the batch size

    def __call__(self, model: Any, _optimizer: Any, _batch: Any) -> None:
        if self._mode == "full":
            self._backward(self._forward(model))
        elif self._mode == "backward":
            self._outputs = self._outputs or self._forward(model)
            self._backward(self._outputs)
        elif self._outputs:
            self._forward(model)
        else:  # as it was timed before, which leaves cuBLAS the workspace of the engine's thread
            outputs = self._forward(model)
            self._backward(outputs)
            self._outputs = (torch.empty(0),)
            self._drop_gradients(model)

    def _forward(self, model: Any) -> tuple[torch.Tensor, ...]:
        assert self._inputs is not None
        if self._kernel.drops_gradients:
            self._drop_gradients(model)
        outputs = model[self._provider](*self._inputs.of_forward)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def _backward(self, outputs: tuple[torch.Tensor, ...]) -> None:
        assert self._inputs is not None
        roots = tuple(map(torch.sum, outputs)) if self._kernel.sums else outputs
        gradients = self._inputs.of_outputs or tuple(map(torch.ones_like, roots))
        if self._inputs.wanted:
            torch.autograd.grad(roots, self._inputs.wanted, gradients, retain_graph=True)
        else:
            torch.autograd.backward(roots, gradients, retain_graph=self._kernel.retains)

    def _drop_gradients(self, model: torch.nn.Module) -> None:
        assert self._inputs is not None
        for each in (*model.parameters(), *self._inputs.leaves, *self._inputs.of_forward):
            if each.is_leaf:
                each.grad = None


TABLE = Table(
    name="liger",
    read=read,
    asked={_QUANTITY: (0.005, 0.03), _OF_KERNELS: (0.01, 0.05), _OF_COMPILED: (0.01, 0.05)},
)
