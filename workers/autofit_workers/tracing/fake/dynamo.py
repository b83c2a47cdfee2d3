"""Light stand-in for `torch._dynamo`, PyTorch's compiler, which takes as long to import as PyTorch itself.

Fake tensors read the settings in `torch._dynamo.config`, and PyTorch calls `disable` and `graph_break`, which
do nothing as long as nothing is compiled. Libraries import a few names from the package: transformers two
decorators, torchvision a function of `torch._dynamo.utils`. The stand-in has these; when any other name is
requested, it imports the real package.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from autofit_workers.pytorch.compiling import DYNAMO, DYNAMO_MODULE, INDUCTOR_MODULE
from autofit_workers.pytorch.tensors import set_deterministic_algorithms
from autofit_workers.tracing.fake import flex_attention

_NAME = DYNAMO_MODULE
_UTILS = f"{_NAME}.utils"


class _Light(ModuleType):
    """Stand-in for `torch._dynamo`; imports the real package when a name that it lacks is requested."""

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
    def allow_in_graph(fn: Any) -> Any:
        return fn

    @staticmethod
    def assume_constant_result(fn: Any) -> Any:
        return fn

    @staticmethod
    def graph_break(*_args: object, **_kwargs: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.give_way(), name)

    def give_way(self) -> ModuleType:
        """Imports the real `torch._dynamo` to replace this stand-in, and returns it."""
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
            if isinstance(sys.modules.get(_UTILS), _LightUtils):
                del sys.modules[_UTILS]
        real = importlib.import_module(_NAME)
        # Python made submodules imported before attributes of the package that was there: of the stand-in.
        for name, module in list(sys.modules.items()):
            parent, _, child = name.rpartition(".")
            if parent == _NAME and not hasattr(real, child):
                setattr(real, child, module)
        return real


class _LightUtils(ModuleType):
    """Stand-in for `torch._dynamo.utils`; imports the real module when a name that it lacks is requested."""

    def __init__(self, package: _Light) -> None:
        super().__init__(_UTILS)
        self._package = package

    def is_compile_supported(self, device_type: object) -> bool:
        supported: bool = self.__getattr__("is_compile_supported")(device_type)
        return supported

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._package.give_way()
        return getattr(importlib.import_module(_UTILS), name)


class _RealFirst(MetaPathFinder):
    """Import finder that imports the real `torch._dynamo` before `torch._inductor`, which depends on it."""

    def __init__(self, light: _Light) -> None:
        self._light = light

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != INDUCTOR_MODULE or sys.modules.get(_NAME) is not self._light:
            return None
        self._light.give_way()
        imported = sys.modules.get(INDUCTOR_MODULE)
        return None if imported is None else _Imported(imported).spec


class _Imported(Loader):
    """Import loader that returns a module that was imported already, while Python searched for it.

    Otherwise Python would execute the module a second time, and the new module would lack its submodules as
    attributes.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__
        self.spec = ModuleSpec(module.__name__, self)
        # If a module appears in `sys.modules` during the search, Python takes the spec from that module.
        module.__spec__ = self.spec

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def install() -> None:
    """Puts the stand-in for `torch._dynamo` into `sys.modules`, unless the real package was imported."""
    flex_attention.install()
    if _NAME in sys.modules:
        return
    light: Any = _Light()
    sys.modules[_NAME] = light
    sys.modules[_UTILS] = _LightUtils(light)
    package: Any = torch
    DYNAMO.replace(light)
    package.compile = not_compiled
    package.use_deterministic_algorithms = _use_deterministic_algorithms
    sys.meta_path.insert(0, _RealFirst(light))
    light.config = importlib.import_module(f"{_NAME}.config")


def give_way() -> None:
    """Imports the real `torch._dynamo` in place of the stand-in."""
    light = sys.modules.get(_NAME)
    if isinstance(light, _Light):
        light.give_way()


def not_compiled(model: Any = None, **_options: object) -> Any:
    """Replacement for `torch.compile` that leaves models eager; `flex_attention` is noted as compiled."""
    return not_compiled if model is None else flex_attention.compiled(model)


def _use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Sets PyTorch's deterministic mode for eager code, without importing the compiler as PyTorch does."""
    set_deterministic_algorithms(mode, warn_only=warn_only)


def _as_it_is(function: Any) -> Any:
    """Returns `function` unchanged; without a function, returns a decorator that does nothing."""
    return _as_it_is if function is None else function
