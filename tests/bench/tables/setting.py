"""How a run of a table was made: all that its trace depends on.

Alone in its file, because traces are kept as long as the code that makes them stays the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass


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
        fast_norm: whether timm's GroupNorm and LayerNorm stay in autocast's type.
        arguments: for the constructor of the model, where it has changed since the run.
        layers: of a synthetic network.
        release: of the library that ran, as pip would be asked for it, where it is not the one installed.
        torch: release of PyTorch that ran and that predictions follow; None for the installed one.
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
    fast_norm: bool = False
    arguments: tuple[tuple[str, int | tuple[int, ...]], ...] = ()
    layers: tuple[tuple[str, int, int], ...] = ()
    release: str = ""
    torch: str | None = None

    @property
    def key(self) -> str:
        """Names the setting in the cache of traces."""
        # What has its usual value is left out, so that a new attribute does not rename old traces.
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        usual = {f.name: f.default for f in dataclasses.fields(self)}
        text = json.dumps({k: v for k, v in values.items() if v != usual[k]}, sort_keys=True)
        name = "".join(c if c.isalnum() or c in "._-" else "_" for c in self.model)[:60]
        return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
