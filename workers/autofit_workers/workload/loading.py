"""Loads the object that a reference names, by importing the user's modules.

The user's folders are appended to the import path, never prepended, so that a user's `autofit/` or `torch.py`
hides no other module.
"""

from __future__ import annotations

import importlib
import importlib.util
import operator
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from autofit_workers.spec.errors import UnknownNameError
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.shown import brief_error
from autofit_workers.spec.workloads.references import (
    SourceChangedError,
    WorkloadError,
    find_source,
    sha256_of,
    suggestion,
)

# Prefix of names of modules made from files: no import statement finds them, and they hide no other module.
FILE_MODULE_PREFIX = "_autofit_file_"


def load_attribute(ref: WorkloadRef) -> Any:
    """Imports the object of an `import` or `file` reference, after a check of its source.

    Raises:
        SourceChangedError: the source is missing on this machine, or differs from the reference's.
        WorkloadError: the module fails to import; chained from the error.
        UnknownNameError: the module lacks the attribute.
    """
    location, _, attribute = ref.target.rpartition(":")
    append_to_import_path(ref.search_path)
    if ref.kind == "file":
        module = _import_file(Path(location), _read_source(ref, Path(location)))
    else:
        _read_source(ref, find_source(location, ref.search_path))
        with _importing(location):
            module = importlib.import_module(location)
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError as error:
        public = [name for name in vars(module) if not name.startswith("_")]
        raise UnknownNameError(
            f"{location} has no attribute {attribute!r}.{suggestion(attribute, public)}"
        ) from error


def append_to_import_path(folders: Iterable[str]) -> None:
    """Appends folders to the end of `sys.path`, so that the user's modules shadow no others."""
    sys.path.extend(folder for folder in dict.fromkeys(folders) if folder not in sys.path)


@contextmanager
def user_code(doing: str) -> Iterator[None]:
    """Context manager that turns an exception of user code, or `sys.exit`, into `WorkloadError`."""
    try:
        yield
    except WorkloadError:
        raise
    except (Exception, SystemExit) as error:
        raise WorkloadError(
            f"{doing} failed with {brief_error(error)}; its traceback shows the line"
        ) from error


@contextmanager
def _importing(name: str, file: str = "FILE.py") -> Iterator[None]:
    """Context manager that turns errors of an import into `WorkloadError`, with advice if it needs a GPU."""
    try:
        with user_code(f"importing {name}"):
            yield
    except WorkloadError as error:
        if error.__cause__ is None or not _needs_gpu(error.__cause__):
            raise
        raise WorkloadError(
            f"{error}. It uses the GPU while it is imported: put what does so under "
            f'`if __name__ == "__main__":`, or run the file as it is with --script {file}'
        ) from error.__cause__


def _needs_gpu(error: BaseException) -> bool:
    """Whether PyTorch raised an error at the first use of a GPU that is not there."""
    # Builds without CUDA raise an AssertionError, others a RuntimeError; both from this function.
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].name == "_lazy_init" and "torch" in Path(frames[-1].filename).parts


def _read_source(ref: WorkloadRef, path: Path | None) -> bytes:
    """Content of a reference's source file, checked against the digest in the reference."""
    location = ref.target.rpartition(":")[0]
    if path is None or not path.is_file():
        raise SourceChangedError(
            f"{location} is not on this worker: copy it to the same place, or share the folder"
        )
    source = path.read_bytes()
    if ref.source_sha256 is not None and sha256_of(source) != ref.source_sha256:
        raise SourceChangedError(
            f"{path} on this worker differs from the file that the search began with: "
            "copy it here again, or start again if it was edited meanwhile"
        )
    return source


def _import_file(path: Path, source: bytes) -> ModuleType:
    """Imports a module from `source`, because its file or bytecode cache may differ by now."""
    name = f"{FILE_MODULE_PREFIX}{path.stem}_{sha256_of(os.fsencode(path) + source)[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up the modules of classes
    try:
        with _importing(str(path), path.name):
            exec(compile(source, path, "exec"), vars(module))  # noqa: S102 - as an import would
    except BaseException:  # the next load must not find half a module
        del sys.modules[name]
        raise
    return module
