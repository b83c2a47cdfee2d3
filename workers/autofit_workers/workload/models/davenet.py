"""Workloads of DAVEnet: images and spoken captions in one embedding space.

D. Harwath, A. Recasens, D. Surís, G. Chuang, A. Torralba, J. Glass, 2018: "Jointly Discovering Visual
Objects and Spoken Words from Raw Sensory Input". Layers as in the authors' DAVEnet-pytorch: the
audio branch takes 40 mel bands × 1024 frames and pools time four times by two, the image branch is
VGG-16 whose last max pool became a 3×3 convolution. Both end in 1024 channels; the similarity of
an image and a caption is read from their matchmap, the inner product of every image cell with
every audio frame. Trained with SGD and momentum 0.9, as the authors do.

A branch by itself has no similarity to train on; its loss is the mean square of its embedding, which
runs the whole branch forward and backward and adds one tensor of the embedding's size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from autofit_workers.workload.models.vgg import vgg16_features
from autofit_workers.workload.workload import Workload

EMBEDDING_DIM = 1024


class AudioBranch(nn.Module):
    """Audio branch: maps B×40×T log mel spectrograms to B×1024×T/16 embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.batchnorm1 = nn.BatchNorm2d(1)
        self.conv1 = nn.Conv2d(1, 128, kernel_size=(40, 1))
        self.conv2 = nn.Conv2d(128, 256, kernel_size=(1, 11), padding=(0, 5))
        self.conv3 = nn.Conv2d(256, 512, kernel_size=(1, 17), padding=(0, 8))
        self.conv4 = nn.Conv2d(512, 512, kernel_size=(1, 17), padding=(0, 8))
        self.conv5 = nn.Conv2d(512, EMBEDDING_DIM, kernel_size=(1, 17), padding=(0, 8))
        self.pool = nn.MaxPool2d(kernel_size=(1, 3), stride=(1, 2), padding=(0, 1))

    def forward(self, spectrograms: Tensor) -> Tensor:
        x = self.batchnorm1(spectrograms.unsqueeze(1))
        x = functional.relu(self.conv1(x))
        x = self.pool(functional.relu(self.conv2(x)))
        x = self.pool(functional.relu(self.conv3(x)))
        x = self.pool(functional.relu(self.conv4(x)))
        x = self.pool(functional.relu(self.conv5(x)))
        embeddings: Tensor = x.squeeze(2)
        return embeddings


class ImageBranch(nn.Module):
    """Image branch: maps B×3×224×224 images to B×1024×14×14 embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = vgg16_features()
        self.layers[-1] = nn.Conv2d(512, EMBEDDING_DIM, kernel_size=3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.layers(images)
        return embeddings


class DAVEnet(nn.Module):
    """Both branches of DAVEnet: map images and spectrograms to their embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.audio = AudioBranch()
        self.image = ImageBranch()

    def forward(self, images: Tensor, spectrograms: Tensor) -> tuple[Tensor, Tensor]:
        audio_embeddings = self.audio(spectrograms)
        return self.image(images), audio_embeddings


def matchmap_similarity(images: Tensor, audios: Tensor) -> Tensor:
    """Similarity of each image with the caption of the same index (the paper's "MISA").

    It is the maximum over the image, then the mean over time, of the matchmap.

    Args:
        images: B×D×H×W.
        audios: B×D×T.

    Returns:
        B similarities.
    """
    matchmaps = torch.bmm(images.flatten(2).transpose(1, 2), audios)  # B × H·W × T
    return matchmaps.max(dim=1).values.mean(dim=1)


def sample_imposters(batch_size: int, device: torch.device) -> Tensor:
    """Index of another sample for each sample of a batch, drawn uniformly.

    Raises:
        ValueError: a batch of one has no other sample.
    """
    if batch_size < 2:
        raise ValueError(
            "DAVEnet's ranking loss compares each pair with another one of the batch: "
            "use a batch size of at least 2"
        )
    offsets = torch.randint(1, batch_size, (batch_size,), device=device)
    return (torch.arange(batch_size, device=device) + offsets) % batch_size


def margin_ranking_loss(
    images: Tensor,
    audios: Tensor,
    *,
    image_imposters: Tensor,
    audio_imposters: Tensor,
    margin: float = 1.0,
) -> Tensor:
    """Ranking loss: a pair is to be more similar, by a margin, than with either half replaced.

    All frames count. The authors loop over the samples; here the batch is
    one product, at the price of a gathered copy of the embeddings (1 MiB per pair).

    Args:
        images: B×D×H×W.
        audios: B×D×T.
        image_imposters: B indices of the images shown to each caption instead of its own.
        audio_imposters: B indices of the captions played to each image instead of its own.
        margin: the margin, in units of similarity.
    """
    similarity = matchmap_similarity(images, audios)
    with_other_image = matchmap_similarity(images.index_select(0, image_imposters), audios)
    with_other_audio = matchmap_similarity(images, audios.index_select(0, audio_imposters))
    return (
        functional.relu(margin + with_other_image - similarity)
        + functional.relu(margin + with_other_audio - similarity)
    ).mean()


def _make_images(batch_size: int, device: torch.device) -> Tensor:
    return torch.randn(batch_size, 3, 224, 224, device=device)


def _make_spectrograms(batch_size: int, device: torch.device) -> Tensor:
    return torch.randn(batch_size, 40, 1024, device=device)


def _make_pairs(batch_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    return _make_images(batch_size, device), _make_spectrograms(batch_size, device)


def _mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    embeddings: Tensor = model(batch)
    return embeddings.square().mean()


def _ranking_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, audios = model(*batch)
    num_pairs = images.shape[0]
    return margin_ranking_loss(
        images,
        audios,
        image_imposters=sample_imposters(num_pairs, images.device),
        audio_imposters=sample_imposters(num_pairs, images.device),
    )


davenet_audio = Workload(
    build_model=AudioBranch,
    make_batch=_make_spectrograms,
    loss=_mean_square,
    optimizer="sgd-momentum",
    name="davenet-audio",
)
davenet_image = Workload(
    build_model=ImageBranch,
    make_batch=_make_images,
    loss=_mean_square,
    optimizer="sgd-momentum",
    name="davenet-image",
)
davenet = Workload(
    build_model=DAVEnet,
    make_batch=_make_pairs,
    loss=_ranking_loss,
    optimizer="sgd-momentum",
    name="davenet",
)
