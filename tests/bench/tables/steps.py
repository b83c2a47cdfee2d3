"""Training steps as the tables' authors wrote them, for the process that traces.

What a loop keeps alive between its steps counts: names in Python hold their tensors until they are
bound anew. Each loop here holds the same tensors as the published one, over the same stretch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import functional

Batch = tuple[torch.Tensor, torch.Tensor]
Step = Callable[[torch.nn.Module, torch.optim.Optimizer, Any], None]

OPTIMIZERS: dict[str, Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.001),
    "adam": torch.optim.Adam,
    # One parameter after another, and one kernel for all: neither makes temporaries for all at once.
    "adam-single": functools.partial(torch.optim.Adam, foreach=False),
    "adam-fused": functools.partial(torch.optim.Adam, fused=True),
    "adamw": torch.optim.AdamW,
    "timm-sgd": lambda parameters: torch.optim.SGD(
        _decayed_and_not(parameters), lr=0.05, momentum=0.9, nesterov=True, weight_decay=2e-5
    ),
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    # PyTorch 1.12, of the brackets, took one parameter after another unless it was told otherwise.
    "sgd-nesterov-single": functools.partial(
        torch.optim.SGD, lr=0.001, momentum=0.9, nesterov=True, foreach=False
    ),
    "never-called": functools.partial(torch.optim.SGD, lr=0.0),
}


def _decayed_and_not(parameters: Iterable[torch.nn.Parameter]) -> list[dict[str, Any]]:
    """timm's groups: no weight decay for what has one dimension."""
    every = list(parameters)
    return [
        {"params": [each for each in every if each.ndim <= 1], "weight_decay": 0.0},
        {"params": [each for each in every if each.ndim > 1]},
    ]


class XmemImages:
    """xMem's loop for torchvision's networks: outputs, loss and predictions live until the next ones.

    Args:
        gradients_dropped: `begin` of a step, `middle` (between forward and backward) or `end`.
    """

    def __init__(self, gradients_dropped: str) -> None:
        self._dropped = gradients_dropped
        self._outputs: torch.Tensor | None = None
        self._loss: torch.Tensor | None = None
        self._predictions: object = None

    def __call__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
        if self._dropped == "begin":
            optimizer.zero_grad()
        inputs, labels = (tensor.to("cuda") for tensor in batch)
        self._outputs = model(inputs)
        self._loss = functional.cross_entropy(self._outputs, labels)
        if self._dropped == "middle":
            optimizer.zero_grad()
        self._loss.backward()
        optimizer.step()
        self._predictions = torch.max(self._outputs, 1)
        if self._dropped == "end":
            optimizer.zero_grad()


class XmemTokens:
    """xMem's loop for transformers: batch, outputs and loss live until the next ones."""

    def __init__(self, gradients_dropped: str) -> None:
        self._dropped = gradients_dropped
        self._outputs: Any = None
        self._loss: torch.Tensor | None = None

    def __call__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
    ) -> None:
        if self._dropped == "begin":
            optimizer.zero_grad()
        on_gpu = {name: tensor.to("cuda") for name, tensor in batch.items()}
        self._outputs = model(**on_gpu)
        if self._dropped == "middle":
            optimizer.zero_grad()
        self._loss = self._outputs.loss
        self._loss.backward()
        optimizer.step()
        if self._dropped == "end":
            optimizer.zero_grad()


class GpuMemNetImages:
    """GPUMemNet's loop for images: torchsummary's pass over two of them, then batches from the CPU.

    The pass runs in training mode with gradients, and is dropped; the cache keeps its segments.
    Outputs and loss live until the next ones. Source: itu-rad/GPUMemNet, `NeuroNetGen_scripts/CNN/cnn.py`
    and `Test_Pipeline/cnn_models/resnet50.py`.
    """

    def __init__(self) -> None:
        self._summarized = False
        self._outputs: torch.Tensor | None = None
        self._loss: torch.Tensor | None = None

    def __call__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
        if not self._summarized:
            model(torch.rand(2, *batch[0].shape[1:]).to("cuda"))
            self._summarized = True
        inputs, labels = (tensor.to("cuda") for tensor in batch)
        optimizer.zero_grad()
        self._outputs = first_output(model(inputs))
        self._loss = functional.cross_entropy(self._outputs, labels)
        self._loss.backward()
        optimizer.step()


class TimmTraining:
    """The loop of timm's `train.py` with its own loader, which fetches a batch while the one before is used.

    The loader fetches in a stream of its own, whose memory nothing else uses; here it is as any other.
    The loss lives until the next one.
    """

    def __init__(self) -> None:
        self._fetched: Batch | None = None
        self._used: Batch | None = None
        self._loss: torch.Tensor | None = None

    def __call__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
        self._used = self._fetched or self._fetch(batch)
        self._fetched = self._fetch(batch)
        self._loss = self._smoothed_loss(model, *self._used)
        self._loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    @staticmethod
    def _fetch(batch: Batch) -> Batch:
        images, labels = batch
        pixels = images.to(torch.uint8).to("cuda")
        return pixels.to(torch.float32), labels.to("cuda")

    @staticmethod
    def _smoothed_loss(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """timm's `LabelSmoothingCrossEntropy`, its default."""
        log_probabilities = functional.log_softmax(first_output(model(images)), dim=-1)
        of_label = -log_probabilities.gather(dim=-1, index=labels.unsqueeze(1)).squeeze(1)
        return (0.9 * of_label - 0.1 * log_probabilities.mean(dim=-1)).mean()


class TimmBenchmark:
    """The training step of timm's `benchmark.py` of 2022, all of it under autocast to fp16.

    `zero_grad` then left the gradients allocated, and the inputs were made once.
    """

    def __call__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
        inputs, labels = batch
        with torch.autocast("cuda", dtype=torch.float16):
            optimizer.zero_grad(set_to_none=False)
            loss = functional.cross_entropy(first_output(model(inputs)), labels)
            loss.backward()
            optimizer.step()


def first_output(output: Any) -> torch.Tensor:
    """Networks with several heads return a tuple in training."""
    return output[0] if isinstance(output, (tuple, list)) else output


class ForwardBackward:
    """NeuSight's loop: forward, loss and backward, without an optimizer; nobody drops the gradients.

    Forward and backward are timed apart, and the loss between them is not. Source: sitar-lab/NeuSight,
    `measure_e2e` of `neusight/Tracing/trace.py`.
    """

    def __call__(
        self, model: torch.nn.Module, _optimizer: torch.optim.Optimizer, batch: torch.Tensor
    ) -> None:
        result: Any = model(batch)
        logits = result["prediction_logits"] if "prediction_logits" in result else result["logits"]
        loss = functional.cross_entropy(logits.view(-1, logits.size(-1)), batch.view(-1))
        del result, logits
        loss.backward()


STEPS: dict[str, Callable[[], Step | None]] = {
    "usual": lambda: None,  # the project's own: gradients dropped first, nothing kept
    "xmem-begin": lambda: XmemImages("begin"),
    "xmem-middle": lambda: XmemImages("middle"),
    "xmem-end": lambda: XmemImages("end"),
    "xmem-tokens-begin": lambda: XmemTokens("begin"),
    "xmem-tokens-middle": lambda: XmemTokens("middle"),
    "xmem-tokens-end": lambda: XmemTokens("end"),
    "gpumemnet": GpuMemNetImages,
    "timm-training": TimmTraining,
    "timm-benchmark": TimmBenchmark,
    "neusight": ForwardBackward,
}
# These loops move each batch to the GPU themselves.
BATCH_FROM_CPU = frozenset({"xmem-begin", "xmem-middle", "xmem-end", "gpumemnet", "timm-training"})
