"""`torch._dynamo` without its compiler, which takes as long to import as PyTorch itself.

Fake tensors read settings of it, and PyTorch calls `disable` and `graph_break` of it everywhere,
which do nothing where nothing is compiled. Whatever else is asked for brings the real package.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"


class _Light(ModuleType):
    """Stands for the package until something asks for more than this."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        folder = str(Path(torch.__file__).parent / "_dynamo")
        self.__spec__ = importlib.util.spec_from_file_location(
            _NAME, f"{folder}/__init__.py", submodule_search_locations=[folder]
        )
        self.__path__ = [folder]

    @staticmethod
    def disable(fn: Callable[..., Any] | None = None, *_args: object, **_options: object) -> Any:
        return _as_it_is(fn)

    @staticmethod
    def graph_break(*_args: object, **_kwargs: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        return getattr(importlib.import_module(_NAME), name)


def install() -> None:
    """Puts the light package in place, unless the real one is there already."""
    if _NAME in sys.modules:
        return
    light: Any = _Light()
    sys.modules[_NAME] = light
    package: Any = torch
    package._dynamo = light
    package.compile = _not_compiled
    light.config = importlib.import_module(f"{_NAME}.config")


def _not_compiled(model: Any = None, **_options: object) -> Any:
    """In place of `torch.compile`, which under a dispatch mode would run the model as it is, too."""
    return _as_it_is(model)


def _as_it_is(function: Any) -> Any:
    """What a decorator makes that changes nothing, or such a decorator where it was given options alone."""
    return _as_it_is if function is None else function
