"""Replaces `torch.save` and its like: writes copies, or keeps objects whose tensors have no values."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, Protocol

import torch

from autofit_workers.scripts.replacing import Replacements
from autofit_workers.scripts.saving.saved import SavedObjects
from autofit_workers.scripts.saving.sink import CountingSink
from autofit_workers.workload.libraries.finders import ExecutingFinder

_MOST_OF_DISK = 0.5  # of the free space, for one checkpoint


class Files(Protocol):
    """Interface of an object that decides where a script's files are written: in place or as copies.

    Attributes:
        folder: autofit's folder, for files that the script writes.
    """

    folder: str

    def written(self, path: Any, mode: str = "w", *, always: bool = False) -> str:
        """Path at which the script has to write a file that it opens as `path`."""


class Saves:
    """Replacements of `torch.save`, `torch.load` and safetensors' functions for a script.

    Args:
        files: decides where saved files are written.
        saves, saving: see `KeptFiles`.
    """

    def __init__(self, files: Files, *, saves: bool, saving: Callable[[], None]) -> None:
        self._files = files
        self._saves = saves
        self._saving = saving
        self._objects = SavedObjects()

    def begin(self, replaced: Replacements) -> None:
        replaced.put(torch, "save", self._saved(torch.save))
        replaced.put(torch, "load", self._loaded(torch.load))
        finder = ExecutingFinder(("safetensors.torch",), self._execute_with_own_saves)
        sys.meta_path.insert(0, finder)
        replaced.callback(sys.meta_path.remove, finder)

    def _saved(self, save: Callable[..., None]) -> Callable[..., None]:
        """Wrapper of `torch.save` that writes to a copy, or keeps the object without values."""

        def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            self._saving()
            if not self._saves:
                self.keep(obj, f)
                return
            if not isinstance(f, str | os.PathLike):
                save(obj, f, *args, **kwargs)
                return
            sink = CountingSink()
            save(obj, sink, *args, **kwargs)
            if sink.num_bytes > shutil.disk_usage(self._files.folder).free * _MOST_OF_DISK:
                return  # nothing could load it again
            with open(self._files.written(f), "wb") as file:  # noqa: PTH123 - where the script's files are
                save(obj, file, *args, **kwargs)

        return saved

    def keep(self, obj: Any, file: Any) -> None:
        """Saves an object in memory and its token in a file, which is given by path or open."""
        head = self._objects.save(obj)
        if hasattr(file, "write"):
            file.write(head)
            return
        # In a temporary folder too, as a file that is no checkpoint must not stay there.
        with open(self._files.written(file, always=True), "wb") as opened:  # noqa: PTH123
            opened.write(head)

    def _loaded(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not self._saves:
                with suppress(LookupError, OSError, ValueError):  # `load` reports the error
                    return self._objects.load(self._objects.head_of(f), map_location)
            return load(f, map_location, *args, **kwargs)

        return loaded

    def kept(self, file: Any, device: Any = "cpu") -> Any:
        """Object that `keep` saved for a file; raises `LookupError` if there is none."""
        return self._objects.load(self._objects.head_of(file), device)

    def _execute_with_own_saves(self, module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
        """Executes safetensors' module, then replaces its functions that save and load without `open`."""
        execute(module)
        load_file = module.load_file

        def save_file(tensors: Any, filename: Any, *_args: Any, **_kwargs: Any) -> None:
            self._saving()
            self.keep(dict(tensors), filename)

        def save_model(model: torch.nn.Module, filename: Any, *_args: Any, **_kwargs: Any) -> None:
            self._saving()
            self.keep(model.state_dict(), filename)

        def loaded(filename: Any, device: Any = "cpu") -> Any:
            with suppress(LookupError, OSError):  # `load_file` reports the error
                return self.kept(filename, device)
            return load_file(filename, device)

        vars(module).update(save_file=save_file, save_model=save_model, load_file=loaded)
