"""Workload of ResNet-50 on labelled images.

K. He, X. Zhang, S. Ren, J. Sun, 2016: "Deep Residual Learning for Image Recognition", table 1. As in
the implementations in use ("v1.5"), a bottleneck strides in its 3×3 convolution instead of its
first 1×1, ReLUs work in place and the shortcut is added in place. Weights keep PyTorch's default
initialisation, on which memory does not depend.
"""

from __future__ import annotations

from torch import Tensor, nn

from autofit_workers.workload.models.vgg import NUM_CLASSES, classification_loss, make_labelled_images
from autofit_workers.workload.workload import Workload

_EXPANSION = 4
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, number of blocks, stride


class Bottleneck(nn.Module):
    """Bottleneck block: 1×1, 3×3 and 1×1 convolutions with batch norm, beside a shortcut."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * _EXPANSION
        self.conv1 = nn.Conv2d(in_channels, width, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.projection: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.projection = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.projection is None else self.projection(x)
        out: Tensor = self.relu(y)
        return out


class ResNet50(nn.Module):
    """ResNet-50: maps B×3×224×224 images to B×1000 logits."""

    def __init__(self, num_classes: int = NUM_CLASSES) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        self.stages = nn.Sequential()
        in_channels = 64
        for width, num_blocks, stride in _STAGES:
            for index in range(num_blocks):
                self.stages.append(Bottleneck(in_channels, width, stride if index == 0 else 1))
                in_channels = width * _EXPANSION
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(in_channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.pool(self.stages(self.stem(images))).flatten(1)
        logits: Tensor = self.classifier(features)
        return logits


resnet50 = Workload(
    build_model=ResNet50,
    make_batch=make_labelled_images,
    loss=classification_loss,
    optimizer="sgd-momentum",
    name="resnet50",
)
