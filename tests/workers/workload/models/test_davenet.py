from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autofit_workers.workload.models.davenet import (
    AudioBranch,
    DAVEnet,
    ImageBranch,
    davenet_audio,
    margin_ranking_loss,
    matchmap_similarity,
    sample_imposters,
)

CPU = torch.device("cpu")
META = torch.device("meta")


def loop_similarity(image: Tensor, audio: Tensor) -> Tensor:
    """The paper's MISA, one cell and one frame at a time."""
    maxima = []
    for frame in audio.unbind(1):
        cells = [
            image[:, row, column] @ frame for row in range(image.shape[1]) for column in range(image.shape[2])
        ]
        maxima.append(torch.stack(cells).max())
    return torch.stack(maxima).mean()


def loop_loss(images: Tensor, audios: Tensor, image_imposters: Tensor, audio_imposters: Tensor) -> Tensor:
    loss = torch.zeros((), dtype=images.dtype)
    for i in range(len(images)):
        anchor = loop_similarity(images[i], audios[i])
        other_image = loop_similarity(images[image_imposters[i]], audios[i])
        other_audio = loop_similarity(images[i], audios[audio_imposters[i]])
        for other in (other_image, other_audio):
            if 1.0 + other - anchor > 0:
                loss = loss + 1.0 + other - anchor
    return loss / len(images)


def random_embeddings(batch_size: int, scale: float) -> tuple[Tensor, Tensor]:
    images = scale * torch.randn(batch_size, 6, 3, 2, dtype=torch.float64)
    audios = torch.randn(batch_size, 6, 4, dtype=torch.float64)
    return images.requires_grad_(), audios.requires_grad_()


@pytest.mark.parametrize("batch_size", [2, 3, 7])
@pytest.mark.parametrize("scale", [0.05, 1.0])  # all margins violated; some
def test_loss_and_gradients_equal_a_loop_over_samples_cells_and_frames(batch_size: int, scale: float) -> None:
    torch.manual_seed(batch_size)
    images, audios = random_embeddings(batch_size, scale)
    imposters = [sample_imposters(batch_size, CPU) for _ in range(2)]
    loss = margin_ranking_loss(images, audios, image_imposters=imposters[0], audio_imposters=imposters[1])
    expected = loop_loss(images, audios, *imposters)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss, (images, audios)), torch.autograd.grad(expected, (images, audios))
    )


def test_margin_that_is_met_costs_nothing() -> None:
    """Each pair agrees with itself and not at all with the other."""
    images = 5 * torch.eye(2).reshape(2, 2, 1, 1).expand(2, 2, 3, 3)
    audios = torch.eye(2).reshape(2, 2, 1).expand(2, 2, 4)
    swapped = torch.tensor([1, 0])
    torch.testing.assert_close(matchmap_similarity(images, audios), torch.full((2,), 5.0))
    loss = margin_ranking_loss(images, audios, image_imposters=swapped, audio_imposters=swapped)
    assert loss == 0
    loss = margin_ranking_loss(images, audios, image_imposters=swapped, audio_imposters=swapped, margin=7)
    assert loss == 2 * (7 - 5)


def test_imposters_are_all_the_others_and_never_the_sample_itself() -> None:
    torch.manual_seed(0)
    draws = torch.stack([sample_imposters(4, CPU) for _ in range(200)])
    for sample in range(4):
        assert set(draws[:, sample].tolist()) == {0, 1, 2, 3} - {sample}


def test_batch_of_one_has_no_imposter() -> None:
    with pytest.raises(ValueError, match="batch size of at least 2"):
        sample_imposters(1, CPU)


def test_both_branches_embed_as_the_paper_says() -> None:
    with META:
        images, audios = DAVEnet()(torch.empty(3, 3, 224, 224), torch.empty(3, 40, 1024))
    assert images.shape == (3, 1024, 14, 14)
    assert audios.shape == (3, 1024, 64)


def test_layers_of_the_audio_branch_have_the_published_shapes() -> None:
    """Layer summary of the authors' model: 10.3125 MiB of outputs and their gradients per caption."""
    shapes: list[tuple[int, ...]] = []
    with META:
        branch = AudioBranch()
        for layer in branch.children():
            layer.register_forward_hook(
                lambda _layer, _inputs, output: shapes.append(tuple(output.shape[1:]))
            )
        branch(torch.empty(1, 40, 1024))
    assert shapes == [
        (1, 40, 1024),
        (128, 1, 1024),
        (256, 1, 1024),
        (256, 1, 512),
        (512, 1, 512),
        (512, 1, 256),
        (512, 1, 256),
        (512, 1, 128),
        (1024, 1, 128),
        (1024, 1, 64),
    ]
    assert sum(torch.Size(shape).numel() for shape in shapes) * 4 * 2 == 10.3125 * 2**20


def test_image_branch_is_vgg16_with_its_last_pool_replaced() -> None:
    with META:
        layers = list(ImageBranch().layers)
    assert sum(isinstance(layer, nn.Conv2d) for layer in layers) == 14
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in layers) == 4
    assert isinstance(layers[-2], nn.ReLU)
    assert isinstance(layers[-1], nn.Conv2d)
    assert (layers[-1].in_channels, layers[-1].out_channels, layers[-1].kernel_size) == (512, 1024, (3, 3))


def test_a_real_step_of_the_audio_branch_lowers_its_loss() -> None:
    torch.manual_seed(0)
    model = davenet_audio.build_model()
    batch = davenet_audio.make_batch(2, CPU)
    loss = davenet_audio.loss(model, batch)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.1 * parameter.grad)
    assert 0 < davenet_audio.loss(model, batch) < loss
