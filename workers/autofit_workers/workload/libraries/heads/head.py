"""Chooses the model class of transformers for a configuration and a user's task."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.shown import brief_error
from autofit_workers.spec.workloads.tasks import TASKS_BY_NAME, names_of
from autofit_workers.workload.libraries.heads.catalogue import TASKS
from autofit_workers.workload.libraries.heads.images import num_channels
from autofit_workers.workload.libraries.heads.task import Batches, Head, classes_in, table_of

_META = torch.device("meta")
_WRITE = "write a Workload with its own batches and its own loss, and give path/file.py:name"
_LABELS = ("labels", "_labels", "_positions", "future_values", "target_values", "bool_masked_pos")


def head_of(transformers: Any, config: Any, wanted: str, said: str | None = None) -> Head:
    """Model class to train for a configuration of transformers, with its task, as a `Head`.

    The class is that of the task which the user named; else the one in the configuration's `architectures`.
    If none is named, or only a class without a head, which has no loss, the usual class for the configuration
    is taken.

    Args:
        transformers: the imported library.
        config: configuration of the model.
        wanted: the user's name for the model, for messages.
        said: task that the user named; None for none.

    Raises:
        UnsupportedError: there is no such class, or none whose batches can be made.
    """
    named = next(iter(getattr(config, "architectures", None) or ()), None)
    there_are = [
        Head(model_class, task, config)
        for task in TASKS
        for model_class in task.classes(transformers, config)
    ]
    if said is not None:
        there_are = _heads_for(transformers, config, wanted, said, there_are)
    if (head := next((each for each in there_are if each.model_class.__name__ == named), None)) is not None:
        return head
    if said is not None:
        return there_are[0]
    if named is None or _has_no_head(transformers, config, named):
        # A decoder generates, though it could fill in, too.
        fills_in = not getattr(config, "is_decoder", False)
        usual = (each for each in there_are if fills_in or each.task.table != "MASKED_LM")
        if (head := next(usual, None)) is not None:
            return head
    raise UnsupportedError(_without_head(transformers, wanted, named, there_are))


def _heads_for(
    transformers: Any, config: Any, wanted: str, said: str, there_are: Sequence[Head]
) -> list[Head]:
    """Model classes among `there_are` for the user's task `said`.

    Args:
        transformers, config, wanted: see `head_of`.
        said: the task, such as `text-classification`.
        there_are: every class for the configuration, with its task.

    Raises:
        UnsupportedError: no class is for the task.
    """
    tables = TASKS_BY_NAME[said]
    if found := [head for head in there_are if head.task.table in tables]:
        return found
    others = dict.fromkeys(name for head in there_are for name in names_of(head.task.table))
    instead = f"choose --task from {', '.join(others)}, or leave it out" if others else "leave it out"
    classes = [
        each.__name__ for table in tables for each in classes_in(table_of(transformers, table), config)
    ]
    if classes:
        raise UnsupportedError(
            f"--task {said}: {wanted} would be a {classes[0]}, for which no batch and no loss are known "
            f"here: {instead}"
        )
    raise UnsupportedError(
        f"--task {said}: transformers {transformers.__version__} has no class for it of the model type "
        f"{config.model_type}: {instead}"
    )


def _has_no_head(transformers: Any, config: Any, named: str) -> bool:
    return named in {each.__name__ for each in classes_in(transformers.MODEL_MAPPING, config)}


def _without_head(transformers: Any, wanted: str, named: str | None, there_are: Sequence[Head]) -> str:
    """Error text for a model none of whose classes has known batches, with what to write instead."""
    others = ", ".join(dict.fromkeys(head.model_class.__name__ for head in there_are))
    instead = (
        f"write one of {others} into its architectures, or " if others and named is not None else ""
    ) + _WRITE
    if named is None:
        return f"{wanted} is of a kind for which no batch and no loss are known here: {instead}"
    if not hasattr(transformers, named):
        return (
            f"{wanted} is a {named}, which transformers {transformers.__version__} does not have, and code "
            f"that comes with a configuration is not run: {instead}"
        )
    return f"{wanted} is a {named}, for which no batch and no loss are known here: {instead}"


def with_images_of(head: Head, wanted: str, shape: tuple[int, ...]) -> Head:
    """Copy of a head for images of the shape (channels, height, width) that the user gave.

    Raises:
        UnsupportedError: the class reads no images, or images with another number of channels.
    """
    if not head.takes("pixel_values") and not head.takes("pixel_values_videos"):
        raise UnsupportedError(
            f"{wanted} is a {head.wanted}, which reads no images: leave out --input, and say the length of a "
            "sample with --seq-len"
        )
    channels, height, width = shape
    if channels != (own := num_channels(head.config)):
        raise UnsupportedError(
            f"{wanted} reads images of {own} channels: say --input {own}x{height}x{width}, or change the "
            "configuration"
        )
    return dataclasses.replace(head, image_sides=(height, width))


def batches_of(head: Head, wanted: str) -> Batches:
    """Batches that a model class is trained on, checked against the arguments of its forward pass.

    Args:
        head: the model class, with its task and configuration.
        wanted: the user's name for the model, for messages.

    Raises:
        UnsupportedError: no batch can be made, or the class needs an unknown argument or takes no labels.
    """
    try:
        batches = head.task.batches(head)
        size = {} if batches.size is None else {"size": batches.size.size}
        made = batches.make(1, _META, **size).keys()
    except (AttributeError, TypeError, ValueError, LookupError) as error:  # a field is missing
        raise UnsupportedError(
            f"{wanted} is a {head.wanted}, for which no batch can be made here ({brief_error(error)}): "
            f"{_WRITE}"
        ) from error
    if missing := [name for name in head.needed if name not in made]:
        raise UnsupportedError(
            f"{wanted} is a {head.wanted}, which needs {' and '.join(missing)}, and nothing here says what "
            f"that is: {_WRITE}"
        )
    labels = [name for name in made if name.endswith(_LABELS)]
    if unused := [name for name in labels if not head.takes(name)]:
        raise UnsupportedError(
            f"{wanted} is a {head.wanted}, which computes no loss (it takes no {' and no '.join(unused)}): "
            f"{_WRITE}"
        )
    return batches
