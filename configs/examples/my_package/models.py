"""A small residual network."""

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions beside a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Keeps the shape N×channels×height×width."""
        return nn.functional.relu(images + self.layers(images))


class ResNet(nn.Module):
    """Classifies images N×3×height×width into 1,000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, stride=4, padding=3), nn.ReLU())
        self.blocks = nn.Sequential(*(Block(64) for _ in range(4)))
        self.head = nn.Linear(64, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns N×1000 scores."""
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))
