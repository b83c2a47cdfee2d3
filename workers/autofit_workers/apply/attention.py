"""Sets the attention implementation of transformers' models by the library's own functions."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from autofit_workers.spec.errors import InapplicableError, MissingLibraryError, text_of
from autofit_workers.spec.knobs.attention import IMPLEMENTATIONS, KERNELS, Implementation
from autofit_workers.workload.libraries.transformers_releases import (
    attention_of,
    is_model,
    when_attention_is_built_in,
    when_attention_is_decided,
)

_at_building: list[str] = []  # names of attention that the model that is now built gets


def only_kernel(attention: str) -> AbstractContextManager[object]:
    """Context manager in which `scaled_dot_product_attention` may use only the kernel `attention`.

    For other values of the knob, PyTorch chooses as before.
    """
    if attention not in KERNELS:
        return nullcontext()
    return sdpa_kernel(getattr(SDPBackend, KERNELS[attention][0]))


@contextmanager
def built_with(attention: str) -> Iterator[None]:
    """Context manager in which transformers models are built with the attention of a knob's value.

    Only those of older releases are, such as 4.48, which keep it; `set_attention` sets that of others.
    """
    implementation = IMPLEMENTATIONS.get(attention)
    if implementation is None:
        yield
        return
    _listen()
    _at_building.append(implementation.name)
    try:
        yield
    finally:
        _at_building.pop()


@functools.cache
def _listen() -> None:
    when_attention_is_built_in(lambda asked_for: _at_building[-1] if _at_building else asked_for)


def set_attention(model: nn.Module, attention: str) -> None:
    """Sets the attention implementation of `model`, or of transformers models within it.

    Args:
        model: the model.
        attention: value of the knob, such as `fa2` for FlashAttention. Values that only choose a kernel of
            PyTorch's have no effect here, see `only_kernel`.

    Raises:
        MissingLibraryError: the library with the kernels is not installed.
        InapplicableError: `model` has no model of transformers, or it has no such attention.
    """
    implementation = IMPLEMENTATIONS.get(attention)
    if implementation is None:
        return
    settable = list(_settable(model))
    if not settable:
        raise InapplicableError(
            f"attention {attention} is for models of transformers, which {type(model).__name__} is not (it "
            "has no set_attn_implementation): choose a kernel of PyTorch's, or leave it at default"
        )
    _require_library(implementation, attention)
    for each in settable:
        _set(each, implementation, attention)


@contextmanager
def every_model_told(attention: str) -> Iterator[None]:
    """Context manager in which every transformers model that is built gets the attention of a knob's value.

    Models built after the block get it too: use it only in the process of a script.

    Raises:
        MissingLibraryError: the library with the kernels is not installed.
        InapplicableError: after the block, if no transformers model was built in it.
    """
    implementation = IMPLEMENTATIONS.get(attention)
    if implementation is None:
        yield
        return
    _require_library(implementation, attention)
    name, told = implementation.name, list[bool]()

    def tell(_asked_for: Any) -> str:
        told.append(True)
        return name

    when_attention_is_decided(tell)
    yield
    if not told:
        raise InapplicableError(
            f"attention {attention} is for models of transformers, and the script made none: leave it out"
        )


def _settable(module: nn.Module) -> Iterator[Any]:
    """Yields the outermost models of transformers, and other modules that have `set_attn_implementation`."""
    if hasattr(module, "set_attn_implementation") or is_model(module):
        yield module
        return
    for child in module.children():
        yield from _settable(child)


def _require_library(implementation: Implementation, attention: str) -> None:
    package, distribution = implementation.package, implementation.distribution
    if package is not None and importlib.util.find_spec(package) is None:
        raise MissingLibraryError(
            f"{attention} is attention of {distribution}, which is not installed where trials run: pip "
            f"install {distribution} --no-build-isolation, or choose another --attention"
        )


def _set(model: Any, implementation: Implementation, attention: str) -> None:
    """Sets a transformers model's attention; raises `InapplicableError` if the model does not take it."""
    try:
        # A model of an older release has the one that it was built with.
        if hasattr(model, "set_attn_implementation"):
            model.set_attn_implementation(implementation.name)
    except (ValueError, ImportError) as error:
        first_sentence = text_of(error).partition(". ")[0]
        raise InapplicableError(
            f"{type(model).__name__} cannot take attention {attention} ({first_sentence}): choose another "
            "--attention, or leave it at default"
        ) from error
    taken = text_of(attention_of(model))
    if taken != implementation.name:
        raise InapplicableError(
            f"{type(model).__name__} keeps its own attention, {taken}, when it is told {attention}: choose "
            "another --attention, or leave it at default"
        )
