"""Puts into the wheel what is not a file of the checkout: plotly.js, and the compiled replay.

plotly.js draws the figures of reports. It is one file of the package `plotly`, whose other files take 60 MB
and are not used. Building a wheel needs that package; using the wheel does not. An editable installation
takes the file from the package itself, see `autofit/report/html/plotly_js.py`.

The compiled replay makes predictions faster, not different. It is built on Linux where there is a C compiler,
and then the wheel is for this platform alone; else the wheel is for all, see
`autofit_workers/replay/allocator/compiled_replay.py`. `CC=false` makes the wheel for all. An editable
installation gets the library into the checkout.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = PurePosixPath("autofit/report/html")
# Names of plotly's files at the end of their paths, and those that they have in the wheel.
_FILES = {"plotly/package_data/plotly.min.js": "plotly.min.js", "LICENSE.txt": "plotly.LICENSE.txt"}

_REPLAY = PurePosixPath("autofit_workers/replay/allocator")
_SOURCE, _LIBRARY = "compiled_replay.c", "_compiled_replay.lib"


class WheelFiles(BuildHookInterface):  # type: ignore[type-arg]  # hatchling gives its parameter no default
    """Hook of hatchling, which calls it before it builds a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds the compiled replay, and names the further files of a wheel that is not an editable one.

        Raises:
            FileNotFoundError: the installed plotly lacks a file.
        """
        folder = Path(self.root, "workers", _REPLAY)
        if version == "editable":
            compile_library(folder / _SOURCE, folder / _LIBRARY)
            return
        build_data["force_include"] |= _plotly_js()
        self._built = tempfile.TemporaryDirectory()
        library = Path(self._built.name, _LIBRARY)
        if compile_library(folder / _SOURCE, library):
            build_data["force_include"][str(library)] = str(_REPLAY / _LIBRARY)
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Removes what was built for a wheel that is finished."""
        if version != "editable":
            self._built.cleanup()


def _plotly_js() -> dict[str, str]:
    """Paths of plotly.js and its licence, with their paths in the wheel.

    Raises:
        FileNotFoundError: the installed plotly lacks one of them.
    """
    installed = importlib.metadata.files("plotly") or ()
    paths = {}
    for end, name in _FILES.items():
        found = [path for path in installed if path.as_posix().endswith(end)]
        if len(found) != 1:
            raise FileNotFoundError(
                f"plotly {importlib.metadata.version('plotly')} has {len(found)} files {end}"
            )
        paths[str(found[0].locate())] = str(_FOLDER / name)
    return paths


def compile_library(source: Path, library: Path) -> bool:
    """Compiles a source of C into a shared library; returns whether there is a compiler that does.

    Args:
        source: path of the source.
        library: path of the library, which is replaced if it exists.
    """
    try:
        compiler = shlex.split(os.environ.get("CC") or "cc")
    except ValueError:
        return False
    if sys.platform != "linux" or not compiler or shutil.which(compiler[0]) is None:
        return False
    # Under another name first: a library that a process uses must not be overwritten.
    new = library.with_name(f".{library.name}.{os.getpid()}")
    # It names its source, so that it is not used once the source has changed.
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    options = ["-std=c99", "-O2", "-fPIC", "-shared", f'-DSOURCE_SHA256="{digest}"']
    command = [*compiler, *options, "-o", str(new), str(source)]
    try:
        done = subprocess.run(command, check=False, capture_output=True)  # noqa: S603 - the user's compiler
        is_built = done.returncode == 0
        if is_built:
            new.replace(library)
    except OSError:
        return False
    else:
        return is_built
    finally:
        new.unlink(missing_ok=True)
