"""Loads models of torchvision that classify images or pixels as workloads, at their weights' image size."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.workload.libraries.images import image_workload
from autofit_workers.workload.libraries.importing import imported, unknown
from autofit_workers.workload.workload import Workload

_USUAL_SIDE, _USUAL_CLASSES = 224, 1000  # for a model without weights


def load(ref: WorkloadRef) -> Workload:
    """Workload that trains a model of torchvision.

    Raises:
        UnknownNameError: torchvision has no such model.
        UnsupportedError: the model does not classify images or their pixels.
        MissingLibraryError: torchvision is not installed.
    """
    imported("torchvision", ref.target)
    from torchvision import models

    name = ref.target.partition(":")[2]
    if name not in models.list_models():
        raise unknown(
            ref.target, name, models.list_models(), otherwise="`torchvision.models.list_models()` lists them"
        )
    is_dense = name in models.list_models(module=models.segmentation)
    if not is_dense and name not in models.list_models(module=models):
        raise UnsupportedError(
            f"{ref.target} does not classify images or their pixels: write a Workload with its own batches "
            "and its own loss, and give path/file.py:name"
        )
    weights: Any = next(iter(reversed(models.get_model_weights(name))), None)
    num_classes = ref.num_classes or _num_classes(weights)
    return image_workload(
        functools.partial(_build, name, num_classes, is_dense=is_dense),
        name=ref.name,
        input_shape=ref.input_shape or (3, *_sides(weights)),
        num_classes=num_classes,
        dense_labels=is_dense,
    )


def _num_classes(weights: Any) -> int:
    named = None if weights is None else weights.meta["categories"]  # None for weights of features only
    return _USUAL_CLASSES if named is None else len(named)


def _sides(weights: Any) -> tuple[int, int]:
    """Height and width that images are cropped or resized to for a model's weights."""
    options = {} if weights is None else weights.transforms.keywords
    size = options.get("crop_size") or options.get("resize_size") or _USUAL_SIDE
    return (size, size) if isinstance(size, int) else (size[0], size[-1])


def _build(name: str, num_classes: int, *, is_dense: bool) -> nn.Module:
    from torchvision import models

    # Models for pixels would download the weights of their backbone.
    options = {"weights_backbone": None} if is_dense else {}
    model: nn.Module = models.get_model(name, weights=None, num_classes=num_classes, **options)
    return model
