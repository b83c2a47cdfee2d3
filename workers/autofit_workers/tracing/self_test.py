"""Checks that the hooks into PyTorch's private code, on which predictions rely, still work.

A tiny workload uses each hook once, and its allocations on a GPU are known. This module does not import
torch, because the process that checks a trace may not have it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from autofit_workers.spec.trace import Category, Trace
from autofit_workers.workload.workload import Workload

if TYPE_CHECKING:
    import torch

BATCH_SIZE = 4
_CHANNELS, _SIDE, _CLASSES = 8, 6, 5
_NUM_STEPS = 3
_MAP_BYTES = BATCH_SIZE * _CHANNELS * _SIDE * _SIDE * 4

_PARAMETER = "aten.empty_strided"  # allocates parameters; buffers are copied
_EXPECTED_PASSES = {
    ("conv", "fprop"): _NUM_STEPS,
    ("conv", "wgrad"): _NUM_STEPS,
    ("inner", "fprop"): _NUM_STEPS,
    ("inner", "dgrad"): _NUM_STEPS,
    ("inner", "wgrad"): _NUM_STEPS,
}


def workload() -> Workload:
    """Tiny workload: a model with convolution, batch norm, dropout, attention and more, trained by Adam."""
    return Workload(
        build_model=_build_model, make_batch=_make_batch, loss=_loss, optimizer="adam", name="self-test"
    )


def findings(trace: Trace) -> tuple[str, ...]:
    """Differences between a trace of the tiny workload and a real GPU, a sentence each; empty if none."""
    made = Counter((a.module, a.operator, a.num_bytes) for a in trace.allocations)
    operators = Counter(a.operator for a in trace.allocations)
    passes = Counter((a.module, str(a.convolution.conv_pass)) for a in trace.allocations if a.convolution)
    alive = {event for event in trace.events if event >= 0} - {~event for event in trace.events if event < 0}
    left = [trace.allocations[index] for index in alive]
    held = Counter(a.category for a in left)
    num_parameters = sum(a.category is Category.PARAMETER and a.operator == _PARAMETER for a in left)
    checks = {
        "dropout does not run as the fused operator with a mask of one byte per element": (
            made["dropout", "aten.native_dropout", _MAP_BYTES // 4] == _NUM_STEPS
        ),
        "a linear layer on three dimensions is not one addmm": (
            made["project", "aten.addmm", _MAP_BYTES] == _NUM_STEPS
            and made["project", "aten.add.Tensor", _MAP_BYTES] == 0
        ),
        "attention is not fused": (
            made["", "aten._scaled_dot_product_efficient_attention", _MAP_BYTES] == _NUM_STEPS
        ),
        "silu_backward is decomposed": made["silu", "aten.silu_backward", _MAP_BYTES] == _NUM_STEPS,
        "batch norm does not save two statistics per channel": (
            made["norm", "aten.native_batch_norm", _CHANNELS * 4] == 2 * _NUM_STEPS
        ),
        "Adam does not take its foreach path": (
            operators["aten._foreach_sqrt"] == _NUM_STEPS * num_parameters > 0
        ),
        "gradients of a residual are not summed in place": operators["aten.add.Tensor"] == _NUM_STEPS,
        "autocast does not cast a weight once a step": (
            made["head", "aten._to_copy", _CLASSES * _CHANNELS * 2] == _NUM_STEPS
        ),
        "autocast's copies are not freed": not any(a.dtype == "bfloat16" for a in left),
        "tensors that are on the GPU are copied to it": made["", "aten._to_copy", _MAP_BYTES] == 0,
        "convolutions ask for no workspace": passes == _EXPECTED_PASSES,
        "backward was not recorded": operators["aten.convolution_backward"] > 0,
        "parameters, gradients and optimizer state do not match": (
            held[Category.PARAMETER] > held[Category.GRADIENT] == num_parameters
            and held[Category.OPTIMIZER_STATE] == 2 * num_parameters
        ),
        "activations are not freed": held[Category.ACTIVATION] == 0,
    }
    return tuple(finding for finding, is_well in checks.items() if not is_well)


def _build_model() -> torch.nn.Module:
    """Builds a small model with the operators whose memory the self-test checks."""
    import torch
    from torch.nn import functional

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, _CHANNELS, 3, padding=1)
            self.norm = torch.nn.BatchNorm2d(_CHANNELS)
            self.silu = torch.nn.SiLU()
            self.inner = torch.nn.Conv2d(_CHANNELS, _CHANNELS, 1)
            self.dropout = torch.nn.Dropout(0.5)
            self.project = torch.nn.Linear(_CHANNELS, _CHANNELS)
            self.head = torch.nn.Linear(_CHANNELS, _CLASSES)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            maps = self.silu(self.norm(self.conv(images)))
            maps = (maps + self.dropout(self.inner(maps.to("cuda").float()))).relu()
            tokens = self.project(maps.flatten(2).transpose(1, 2).contiguous()).unsqueeze(1)
            attended = functional.scaled_dot_product_attention(tokens, tokens, tokens)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out: torch.Tensor = self.head(attended.mean(dim=(1, 2)))
            return out.float()

    return Net()


def _make_batch(batch_size: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    images = torch.randn(batch_size, 3, _SIDE, _SIDE, device=device)
    return images, torch.randint(_CLASSES, (batch_size,), device=device)


def _loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    import torch
    from torch.nn import functional

    images, labels = batch
    weights = torch.tensor([1.0] * _CLASSES, device="cuda")
    return functional.cross_entropy(model(images), labels, weight=weights.cuda())
