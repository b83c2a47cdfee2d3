"""What a table of real measurements says: its rows, and how each was run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a run was made, beside its batch size: all that a trace depends on.

    Attributes:
        source: which loader knows the model: `timm`, `torchvision`, `transformers` or `synthetic`.
        model: its name there.
        optimizer: a name of `tables.steps.OPTIMIZERS`.
        step: a name of `tables.steps.STEPS`: the order of a training step and what it keeps alive.
        image_size: side of the images, None for the model's own.
        num_classes: None for the model's own.
        fused_attention: whether timm may use PyTorch's fused attention.
        layers: of a synthetic network.
    """

    source: str
    model: str
    mode: str = "train"
    optimizer: str = "adam"
    precision: str = "fp32"
    memory_format: str = "contiguous"
    step: str = "usual"
    image_size: int | None = None
    num_classes: int | None = 1000
    fused_attention: bool = True
    layers: tuple[tuple[str, int, int], ...] = ()

    @property
    def key(self) -> str:
        """Names the setting in the cache of traces."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        name = "".join(c if c.isalnum() or c in "._-" else "_" for c in self.model)[:60]
        return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement.

    Attributes:
        groups: wider classes than the family that are summed up too.
        gpu: key of the card in the catalogue.
        total_bytes: memory of the card, as CUDA reports it.
        context_bytes: what is assumed to be taken outside the allocator, where a label is scored.
        conv_algo: the convolution policy, of `workers.protocol.CONV_ALGOS`.
        measured_bytes: the peak; None where only `ran` is known.
        ran: whether this batch size ran; None where the table does not say.
        failed_batch_size: the next size that was tried, which did not run.
        others: bytes that other predictors said, by their names; None where one gave no answer.
    """

    table: str
    model: str
    family: str
    setting: Setting
    batch_size: int
    gpu: str
    architecture: str
    total_bytes: int
    context_bytes: int
    conv_algo: str = "cudnn"
    groups: tuple[str, ...] = ()
    measured_bytes: int | None = None
    ran: bool | None = None
    failed_batch_size: int | None = None
    others: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def limit_bytes(self) -> int:
        """What the allocator could reserve."""
        return self.total_bytes - self.context_bytes

    @property
    def name(self) -> str:
        setting = self.setting
        parts = [self.table, self.model, setting.optimizer, setting.memory_format, self.gpu]
        return " ".join([*parts, f"batch {self.batch_size}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of measurements.

    Attributes:
        read: its rows from the folder of the tables.
        has_constant: whether every measured peak holds one unknown constant (context, monitoring).
    """

    name: str
    file: str
    read: Callable[[Path], list[Row]]
    has_constant: bool = False
