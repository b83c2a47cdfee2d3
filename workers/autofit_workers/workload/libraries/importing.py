"""Imports model libraries, or raises errors that say how to install them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from autofit_workers.spec.errors import MissingLibraryError, UnknownNameError
from autofit_workers.spec.workloads.references import names_like
from autofit_workers.workload.libraries import torchvision_operators
from autofit_workers.workload.libraries.finders import ExecutingFinder

_NUM_NEAR = 3
_OF_TORCHAUDIO = "torchaudio._extension.utils"  # module that loads its compiled operators


def imported(
    package: str, wanted: str, what: str = "a model", *, distribution: str | None = None
) -> ModuleType:
    """Imports the library that a model's name or a knob's value needs.

    Args:
        package: import name of the library, or of a module of it.
        wanted: the name or value, for the error's message.
        what: its kind in words, such as `a model`.
        distribution: name by which pip installs the library, if that differs from the import name.

    Raises:
        MissingLibraryError: the library is not installed.
    """
    library = package.partition(".")[0]
    try:
        with without_missing_operators():
            # Other libraries import torchvision later, at its first use.
            if importlib.util.find_spec("torchvision"):
                importlib.import_module("torchvision")
            return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        distribution = distribution or library
        raise MissingLibraryError(
            f"{wanted} is {what} of {distribution}, which is not installed where trials run: pip install "
            f"{distribution}"
        ) from error


def unknown(wanted: str, name: str, known: Iterable[str], *, otherwise: str) -> UnknownNameError:
    """Error for a name that a library does not know, with known names like it.

    Args:
        otherwise: advice if no known name is like it.
    """
    return UnknownNameError(f"there is no model {wanted}: {hint(name, known, otherwise=otherwise)}")


def hint(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """Advice for an unknown name: known names that are like it, else `otherwise`."""
    near = names_like(name, sorted(known))[:_NUM_NEAR]
    return f"did you mean {' or '.join(near)}?" if near else otherwise


@contextmanager
def without_missing_operators() -> Iterator[None]:
    """Context manager to import libraries whose compiled operators this PyTorch cannot load.

    torchvision's operators are declared; torchaudio goes on as if it had none; other libraries' fake kernels
    for missing operators are left out.
    """
    library: Any = torch.library
    ops: Any = torch.ops
    register_fake, load = library.register_fake, ops.load_library

    def register_if_there(op: Any, *args: Any, **kwargs: Any) -> Any:
        def decorate(function: Any) -> Any:
            try:
                return register_fake(op, *args, **kwargs)(function)
            except RuntimeError:
                return function

        return decorate

    def load_or_declare(path: Any) -> None:
        try:
            load(path)
        except OSError:
            if Path(path).parent.name != "torchvision" or not Path(path).name.startswith("_C."):
                raise
            torchvision_operators.declare()

    finder = ExecutingFinder((_OF_TORCHAUDIO,), _execute_without_library)
    library.register_fake, ops.load_library = register_if_there, load_or_declare
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        library.register_fake, ops.load_library = register_fake, load


def _execute_without_library(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Executes torchaudio's module; a compiled library of it that fails to load then counts as missing."""
    execute(module)
    found: Any = module
    load = found._load_lib  # noqa: SLF001 - no public name

    def loaded(name: str) -> bool:
        try:
            return bool(load(name))
        except OSError:
            return False

    found._load_lib = loaded  # noqa: SLF001
