"""Workload of VGG-16 on labelled images.

K. Simonyan, A. Zisserman, 2015: "Very Deep Convolutional Networks for Large-Scale Image
Recognition", table 1, column D. The ReLUs work in place, as in the implementations in use; weights
keep PyTorch's default initialisation, on which memory does not depend.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from autofit_workers.workload.workload import Workload

NUM_CLASSES = 1000
_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels, number of 3×3 convolutions


def vgg16_features() -> nn.Sequential:
    """Convolutions and max pools of VGG-16: map B×3×224×224 to B×512×7×7."""
    layers: list[nn.Module] = []
    in_channels = 3
    for channels, num_convolutions in _BLOCKS:
        for _ in range(num_convolutions):
            layers += [nn.Conv2d(in_channels, channels, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
            in_channels = channels
        layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
    return nn.Sequential(*layers)


class VGG16(nn.Module):
    """VGG-16: maps B×3×224×224 images to B×1000 logits."""

    def __init__(self, num_classes: int = NUM_CLASSES) -> None:
        super().__init__()
        self.features = vgg16_features()
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4096, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits


def make_labelled_images(batch_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random images of ImageNet's size, B×3×224×224, with random labels."""
    images = torch.randn(batch_size, 3, 224, 224, device=device)
    return images, torch.randint(NUM_CLASSES, (batch_size,), device=device)


def classification_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross entropy of the logits, for the networks that classify images."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


vgg16 = Workload(
    build_model=VGG16,
    make_batch=make_labelled_images,
    loss=classification_loss,
    optimizer="sgd-momentum",
    name="vgg16",
)
