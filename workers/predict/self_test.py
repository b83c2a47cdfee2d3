"""A self-test of prediction: do the hooks that are private to PyTorch still work?

A tiny workload uses each of them once; what a GPU would allocate for it is known. No torch at
import: the coordinator reads the findings of a trace that a worker made.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from workers.trace import Category, Trace
from workers.workload import Workload

if TYPE_CHECKING:
    import torch

BATCH_SIZE = 4
_CHANNELS, _SIDE, _CLASSES = 8, 6, 4
_NUM_STEPS = 3  # each adds once, forward
_MAP_ELEMENTS = BATCH_SIZE * _CHANNELS * _SIDE * _SIDE


def workload() -> Workload:
    """Convolution, batch norm, a residual sum, dropout, attention, a linear layer; Adam."""
    return Workload(
        build_model=_build_model, make_batch=_make_batch, loss=_loss, optimizer="adam", name="self-test"
    )


def findings(trace: Trace) -> tuple[str, ...]:
    """What a trace of the workload at `BATCH_SIZE` shows that no GPU does; empty if all is well."""
    by_operator = Counter(a.operator for a in trace.allocations)
    masks = {a.num_bytes for a in trace.allocations if a.operator == "aten.native_dropout"}
    alive = {event for event in trace.events if event >= 0} - {~event for event in trace.events if event < 0}
    held = Counter(trace.allocations[index].category for index in alive)
    checks = {
        "dropout does not run as the fused operator with a mask of one byte per element": (
            _MAP_ELEMENTS in masks
        ),
        "a linear layer on three dimensions is not one addmm": by_operator["aten.addmm"] > 0,
        "attention is not fused": by_operator["aten._scaled_dot_product_efficient_attention"] > 0,
        "silu_backward is decomposed": by_operator["aten.silu_backward"] > 0,
        "Adam does not take its foreach path": by_operator["aten._foreach_sqrt"] > 0,
        "gradients of a residual are not summed in place": by_operator["aten.add.Tensor"] == _NUM_STEPS,
        "convolutions ask for no workspace": held[Category.WORKSPACE] == 0
        and any(a.convolution is not None for a in trace.allocations),
        "backward was not recorded": by_operator["aten.convolution_backward"] > 0,
        "parameters, gradients and optimizer state do not match": (
            held[Category.PARAMETER] > held[Category.GRADIENT] > 0
            and held[Category.OPTIMIZER_STATE] == 2 * held[Category.GRADIENT]
        ),
        "activations are not freed": held[Category.ACTIVATION] == 0,
    }
    return tuple(finding for finding, is_well in checks.items() if not is_well)


def _build_model() -> torch.nn.Module:
    import torch
    from torch.nn import functional

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, _CHANNELS, 3, padding=1)
            self.norm = torch.nn.BatchNorm2d(_CHANNELS)
            self.inner = torch.nn.Conv2d(_CHANNELS, _CHANNELS, 1)
            self.project = torch.nn.Linear(_CHANNELS, _CHANNELS)
            self.head = torch.nn.Linear(_CHANNELS, _CLASSES)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            maps = functional.silu(self.norm(self.conv(images)))
            maps = functional.silu(maps + functional.dropout(self.inner(maps), 0.5))
            tokens = self.project(maps.flatten(2).transpose(1, 2).contiguous()).unsqueeze(1)
            attended = functional.scaled_dot_product_attention(tokens, tokens, tokens)
            out: torch.Tensor = self.head(attended.mean(dim=(1, 2)))
            return out

    return Net()


def _make_batch(batch_size: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    images = torch.randn(batch_size, 3, _SIDE, _SIDE, device=device)
    return images, torch.randint(_CLASSES, (batch_size,), device=device)


def _loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    from torch.nn import functional

    images, labels = batch
    return functional.cross_entropy(model(images), labels)
