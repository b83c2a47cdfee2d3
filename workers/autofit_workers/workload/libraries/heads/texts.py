"""Batches of texts for models of transformers, with the labels of each task."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from autofit_workers.workload.libraries.heads import sizes
from autofit_workers.workload.libraries.heads.task import Batch, Batches, Head
from autofit_workers.workload.libraries.token_batches import tokens_with_labels, unpackable_tokens

# Names of the second loss's labels, for models that are trained on two losses.
SECOND_LABELS = ("next_sentence_label", "sentence_order_label")
_NUM_CHOICES = 4
# Coordinates of words on a page are integers up to this, unless their embedding is smaller.
_MOST_ON_PAGE = 1000
_COLUMNS_OF_TABLES = 7  # segment, column, row and others that TAPAS numbers tokens by


def language() -> Callable[[Head], Batches]:
    """Function that makes batches of texts, for predicting each token from the tokens before it."""
    return functools.partial(_batches, _packable)


def filled_in() -> Callable[[Head], Batches]:
    """Function that makes batches of texts with a token as label at each position, as for masked tokens.

    Several texts cannot be packed into one sample.
    """
    return functools.partial(_batches, _unpackable)


def labelled(labels_of: Callable[[Any, int, int, torch.device], Batch]) -> Callable[[Head], Batches]:
    """Function that makes batches of texts, with labels from `labels_of`.

    Args:
        labels_of: called with configuration, batch size, number of tokens and device.
    """
    return functools.partial(_batches, functools.partial(_labelled, labels_of))


def choices() -> Callable[[Head], Batches]:
    """Function that makes batches with several texts for each sample, one of which is right."""
    return functools.partial(_batches, _choices)


def pretraining() -> Callable[[Head], Batches]:
    """Function that makes batches of texts with the labels of a class's own pretraining.

    Besides masked tokens these are a second loss, such as next-sentence prediction, or replaced tokens.
    """
    return functools.partial(_batches, _pretraining)


def without_labels(
    batch_size: int, device: torch.device, *, head: Head, size: int, layout: str = "full"
) -> Batch:
    """Batch of texts without labels, with token positions on a page or in a table if the class takes them."""
    batch = unpackable_tokens(batch_size, device, config=head.config, size=size, layout=layout)
    del batch["labels"]
    return {**batch, **places(head, (batch_size, size), device)}


def places(head: Head, shape: tuple[int, int], device: torch.device) -> Batch:
    """Token positions on a page or in a table, as arguments of a class that takes them."""
    config = head.config
    told: Batch = {}
    if head.takes("bbox"):
        most = min(_MOST_ON_PAGE, getattr(config, "max_2d_position_embeddings", _MOST_ON_PAGE + 1) - 1)
        told["bbox"] = torch.full((*shape, 4), most // 2, device=device)
    if head.takes("table_mask") or hasattr(config, "type_vocab_sizes"):
        told["token_type_ids"] = torch.zeros((*shape, _COLUMNS_OF_TABLES), dtype=torch.int64, device=device)
    return told


def class_of_each(config: Any, batch_size: int, _size: int, device: torch.device) -> Batch:
    """Labels with a class for each text."""
    return {"labels": classes_of(config, (batch_size,), device)}


def class_of_each_token(config: Any, batch_size: int, size: int, device: torch.device) -> Batch:
    """Labels with a class for each token."""
    return {"labels": torch.randint(config.num_labels, (batch_size, size), device=device)}


def ends_of_answers(_config: Any, batch_size: int, size: int, device: torch.device) -> Batch:
    """Labels with the start and end positions of answers."""
    starts, ends = (torch.randint(size, (batch_size,), device=device) for _ in range(2))
    return {"start_positions": starts, "end_positions": ends}


def is_next(_config: Any, batch_size: int, _size: int, device: torch.device) -> Batch:
    """Labels for whether the second sentence of a text follows the first."""
    return {"labels": torch.randint(2, (batch_size,), device=device)}


def is_chosen(_config: Any, batch_size: int, size: int, device: torch.device) -> Batch:
    """Labels for whether each token of a table is part of the answer."""
    return {"labels": torch.randint(2, (batch_size, size), device=device)}


def classes_of(config: Any, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Random classes as labels; real numbers if there is one class, for a regression."""
    if config.num_labels == 1:
        return torch.randn(shape, device=device)
    return torch.randint(config.num_labels, shape, device=device)


def _batches(make: Callable[..., Batch], head: Head) -> Batches:
    return Batches(functools.partial(make, head=head), sizes.of_texts(head.config))


def _packable(batch_size: int, device: torch.device, *, head: Head, size: int, layout: str = "full") -> Batch:
    return tokens_with_labels(batch_size, device, config=head.config, size=size, layout=layout)


def _unpackable(
    batch_size: int, device: torch.device, *, head: Head, size: int, layout: str = "full"
) -> Batch:
    batch = unpackable_tokens(batch_size, device, config=head.config, size=size, layout=layout)
    return {**batch, **places(head, (batch_size, size), device)}


def _labelled(
    labels_of: Callable[[Any, int, int, torch.device], Batch],
    batch_size: int,
    device: torch.device,
    *,
    head: Head,
    size: int,
    layout: str = "full",
) -> Batch:
    batch = without_labels(batch_size, device, head=head, size=size, layout=layout)
    return {**batch, **labels_of(head.config, batch_size, size, device)}


def _choices(batch_size: int, device: torch.device, *, head: Head, size: int, layout: str = "full") -> Batch:
    batch = without_labels(batch_size * _NUM_CHOICES, device, head=head, size=size, layout=layout)
    each = {name: tensor.view(batch_size, _NUM_CHOICES, *tensor.shape[1:]) for name, tensor in batch.items()}
    return {**each, "labels": torch.randint(_NUM_CHOICES, (batch_size,), device=device)}


def _pretraining(
    batch_size: int, device: torch.device, *, head: Head, size: int, layout: str = "full"
) -> Batch:
    batch = unpackable_tokens(batch_size, device, config=head.config, size=size, layout=layout)
    second = next((name for name in SECOND_LABELS if head.takes(name)), None)
    if second is None:  # which tokens were replaced
        return {**batch, "labels": torch.randint(2, (batch_size, size), device=device)}
    return {**batch, second: torch.randint(2, (batch_size,), device=device)}
