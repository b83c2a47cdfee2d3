"""Workload of WaveNet on raw audio.

A. van den Oord, S. Dieleman, H. Zen, K. Simonyan, O. Vinyals, A. Graves, N. Kalchbrenner, A. Senior,
K. Kavukcuoglu, 2016: "WaveNet: A Generative Model for Raw Audio", sections 2.1 to 2.4 and figure 4:
dilations that double from 1 to 512, repeated; gated units; shortcuts and skips through 1×1
convolutions; μ-law samples of 256 classes. The paper gives neither the number of repetitions nor
the widths: they are 3 here, 64 channels and 256 in the skips, as NVIDIA's nv-wavenet has them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from autofit_workers.workload.workload import Workload

NUM_CLASSES = 256
NUM_SAMPLES = 16_000  # one second at the paper's rate for speech
_DILATIONS = tuple(2**exponent for exponent in range(10))


class GatedLayer(nn.Module):
    """Causal dilated convolution of two samples, gated, with a shortcut and a skip output.

    Args:
        has_shortcut: whether it has a shortcut; the last layer of a stack has none, as no layer follows.
    """

    def __init__(self, width: int, skip_width: int, dilation: int, *, has_shortcut: bool) -> None:
        super().__init__()
        self.dilation = dilation
        self.dilated = nn.Conv1d(width, 2 * width, kernel_size=2, dilation=dilation)
        self.shortcut = nn.Conv1d(width, width, kernel_size=1) if has_shortcut else None
        self.skip = nn.Conv1d(width, skip_width, kernel_size=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        past = functional.pad(x, (self.dilation, 0))  # no sample sees a later one
        filtered, gate = self.dilated(past).chunk(2, dim=1)
        y = torch.tanh(filtered) * torch.sigmoid(gate)
        return x if self.shortcut is None else x + self.shortcut(y), self.skip(y)


class WaveNet(nn.Module):
    """WaveNet: maps B×T samples, as classes, to B×256×T logits of the next samples."""

    def __init__(
        self,
        *,
        num_blocks: int = 3,
        dilations: tuple[int, ...] = _DILATIONS,
        width: int = 64,
        skip_width: int = 256,
    ) -> None:
        super().__init__()
        self.samples = nn.Embedding(NUM_CLASSES, width)  # a 1×1 convolution of the one-hot sample
        every = dilations * num_blocks
        self.layers = nn.ModuleList(
            GatedLayer(width, skip_width, dilation, has_shortcut=number < len(every))
            for number, dilation in enumerate(every, start=1)
        )
        self.output = nn.Sequential(
            nn.ReLU(),
            nn.Conv1d(skip_width, skip_width, kernel_size=1),
            nn.ReLU(),
            nn.Conv1d(skip_width, NUM_CLASSES, kernel_size=1),
        )

    def forward(self, samples: Tensor) -> Tensor:
        x = self.samples(samples).transpose(1, 2)
        total: Tensor | None = None
        for layer in self.layers:
            x, skip = layer(x)
            total = skip if total is None else total + skip
        logits: Tensor = self.output(total)
        return logits


def _make_batch(batch_size: int, device: torch.device) -> Tensor:
    """Batch of random samples, one more than the model takes, so that every sample has a next one."""
    return torch.randint(NUM_CLASSES, (batch_size, NUM_SAMPLES + 1), device=device)


def next_sample_loss(model: nn.Module, samples: Tensor) -> Tensor:
    """Cross entropy of each sample given the samples before it."""
    return functional.cross_entropy(model(samples[:, :-1]), samples[:, 1:])


wavenet = Workload(
    build_model=WaveNet, make_batch=_make_batch, loss=next_sample_loss, optimizer="adam", name="wavenet"
)
