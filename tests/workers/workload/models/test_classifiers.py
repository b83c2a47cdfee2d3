from __future__ import annotations

import pytest
import torch
from torch import nn

from autofit_workers.workload.models.resnet import Bottleneck, ResNet50
from autofit_workers.workload.models.vgg import VGG16, make_labelled_images, vgg16_features

META = torch.device("meta")


@pytest.mark.parametrize("build", [VGG16, ResNet50])
def test_images_become_a_thousand_logits(build: type[nn.Module]) -> None:
    images, labels = make_labelled_images(3, META)
    assert labels.shape == (3,)
    assert labels.dtype == torch.int64
    with META:
        assert build()(images).shape == (3, 1000)


def test_vgg16_has_the_thirteen_convolutions_of_configuration_d() -> None:
    with META:
        layers = vgg16_features()
    channels = [layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d)]
    assert channels == [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6
    assert layers(torch.empty(1, 3, 224, 224, device=META)).shape == (1, 512, 7, 7)


def test_resnet50_strides_in_the_three_by_three_convolutions() -> None:
    with META:
        model = ResNet50()
    blocks = [block for block in model.stages if isinstance(block, Bottleneck)]
    assert [block.conv2.stride for block in blocks].count((2, 2)) == 3
    assert {block.conv1.stride for block in blocks} == {(1, 1)}
    assert [index for index, block in enumerate(blocks) if block.projection is not None] == [0, 3, 7, 13]


def test_bottleneck_without_its_convolutions_is_its_shortcut() -> None:
    torch.manual_seed(0)
    block = Bottleneck(16, 4, stride=1)
    nn.init.zeros_(block.bn3.weight)
    x = torch.randn(2, 16, 5, 5)
    torch.testing.assert_close(block(x), x.relu())


def test_activations_work_in_place() -> None:
    with META:
        models = [VGG16(), ResNet50()]
    assert all(m.inplace for model in models for m in model.modules() if isinstance(m, nn.ReLU))
