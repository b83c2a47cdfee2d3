"""Builds the model of a head of transformers, with random weights."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.shown import brief_error
from autofit_workers.workload.libraries.heads.task import Head


def build(head: Head, *, size: int | None = None) -> nn.Module:
    """Builds a transformers model with random weights for a head, which is a model class for one task.

    Args:
        head: the model class, with its task and configuration.
        size: height and width of the images in pixels; None for the head's own.

    Raises:
        UnsupportedError: transformers cannot build the model from its configuration.
    """
    config = copy.deepcopy(head.config)  # the model writes its build options into the configuration
    if config.is_encoder_decoder:  # tokens by which the model shifts labels; some types lack them
        for part in filter(None, (config, getattr(config, "decoder", None))):
            for name in ("pad_token_id", "decoder_start_token_id"):
                if getattr(part, name, None) is None:
                    setattr(part, name, 0)
    sides = (size, size) if size else head.image_sides
    if sides is not None and hasattr(config, "image_size"):
        is_list = isinstance(config.image_size, list | tuple)
        config.image_size = sides[0] if sides[0] == sides[1] and not is_list else list(sides)
    try:
        model_class: Any = head.model_class
        model: nn.Module = model_class._from_config(config)  # noqa: SLF001 - as `AutoModel.from_config` does
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, ImportError) as error:
        raise UnsupportedError(
            f"transformers cannot build a {head.wanted} of this configuration ({brief_error(error)}): mend "
            "the configuration, or install what it asks for"
        ) from error
    for part in model.modules():  # a cache would grow when checkpointed blocks run again
        own: Any = getattr(part, "config", None)
        if getattr(own, "use_cache", False):
            own.use_cache = False
    return model
