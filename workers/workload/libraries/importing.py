"""Imports a library of models, or says how to get it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from workers.errors import DeviceError, UnknownNameError
from workers.workload.references import names_like

_NUM_NEAR = 3


def imported(package: str, wanted: str) -> ModuleType:
    """The library of a reference.

    Args:
        wanted: the reference, for the message.

    Raises:
        DeviceError: it is not installed here.
    """
    try:
        with without_missing_operators():
            # Other libraries import it later, at its first use.
            if importlib.util.find_spec("torchvision"):
                importlib.import_module("torchvision")
            return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise DeviceError(
            f"{wanted} is a model of {package}, which is not installed where trials run: "
            f"pip install {package}"
        ) from error


def unknown(wanted: str, name: str, known: Iterable[str], *, otherwise: str) -> UnknownNameError:
    """The error for a name that a library does not know, with those that are like it.

    Args:
        otherwise: what else to do, where nothing is like it.
    """
    near = names_like(name, sorted(known))[:_NUM_NEAR]
    hint = f"did you mean {' or '.join(near)}?" if near else otherwise
    return UnknownNameError(f"there is no model {wanted}: {hint}")


@contextmanager
def without_missing_operators() -> Iterator[None]:
    """Lets torchvision be imported beside a PyTorch without its compiled operators.

    Its wheels are built for CUDA; beside a CPU wheel its import stops where it describes `nms` and
    others of its operators, none of which a classifier uses.
    """
    library: Any = torch.library
    register_fake = library.register_fake

    def register_if_there(op: Any, *args: Any, **kwargs: Any) -> Any:
        def decorate(function: Any) -> Any:
            try:
                return register_fake(op, *args, **kwargs)(function)
            except RuntimeError:
                return function

        return decorate

    library.register_fake = register_if_there
    try:
        yield
    finally:
        library.register_fake = register_fake
