"""Models of timm, at the image size of their own configuration."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from autofit_workers.protocol import WorkloadRef
from autofit_workers.workload.libraries.images import image_workload
from autofit_workers.workload.libraries.importing import imported, unknown
from autofit_workers.workload.workload import Workload

_USUAL_SHAPE, _USUAL_CLASSES = (3, 224, 224), 1000  # where a model has no configuration


def load(ref: WorkloadRef) -> Workload:
    """The training of a model of timm.

    Raises:
        UnknownNameError: timm has no such model.
        MissingLibraryError: timm is not installed.
    """
    timm: Any = imported("timm", ref.target)
    name = ref.target.partition(":")[2]
    if not timm.is_model(name.partition(".")[0]):
        raise unknown(ref.target, name, timm.list_models(), otherwise="`timm.list_models()` lists them")
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    own_shape = _USUAL_SHAPE if config is None else tuple(config.input_size)
    num_classes = _USUAL_CLASSES if config is None else config.num_classes
    shape = ref.input_shape or own_shape
    options: dict[str, Any] = {} if ref.num_classes is None else {"num_classes": ref.num_classes}
    if shape != own_shape:
        options |= {"in_chans": shape[0]}
    is_fixed = config is not None and config.fixed_input_size
    build = functools.partial(_build, name, options)
    if is_fixed:
        build = functools.partial(
            _build_fixed, name, options, sides=None if shape == own_shape else shape[1:]
        )
    return image_workload(
        build,
        name=ref.name,
        input_shape=shape,
        num_classes=num_classes if ref.num_classes is None else ref.num_classes,
    )


def _build(name: str, options: dict[str, Any]) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name, **options)
    return model


def _build_fixed(
    name: str, options: dict[str, Any], *, sides: tuple[int, ...] | None, size: int | None = None
) -> nn.Module:
    """A network with positions for the patches of images of these sides; None for its own."""
    sides = sides if size is None else (size, size)
    return _build(name, options if sides is None else {**options, "img_size": sides})
