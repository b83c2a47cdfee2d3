"""Report of an internal error: its message, and the file with its traceback."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import shlex
import traceback
from collections.abc import Sequence

import click

from autofit.errors import InternalError, StorageError
from autofit.paths import errors_dir, write_atomically
from autofit_workers.spec.shown import brief_error, shown

_PACKAGES = ("autofit", "torch", "ray", "optuna")


def internal_error(error: BaseException, arguments: Sequence[str]) -> InternalError:
    """`InternalError` for an unexpected exception; writes the traceback to a file, which its message names.

    The same failure of the same command always has the same file. If no file can be written, the traceback is
    printed on stderr.

    Args:
        error: unexpected exception.
        arguments: arguments of the command, which the file repeats.
    """
    text = shown("".join(traceback.format_exception(error)))
    command = shlex.join(["autofit", *map(shown, arguments)])
    details = f"{command}\n{_versions()}\n\n{text}"
    try:
        path = errors_dir() / f"{hashlib.sha256(details.encode()).hexdigest()[:12]}.txt"
        write_atomically(path, details)
    except StorageError:
        click.echo(text.rstrip(), err=True)
        where = "the traceback above"
    else:
        where = str(path)
    return InternalError(
        f"autofit itself failed ({brief_error(error)}), which is a mistake in it: "
        f"report it, with {where}, to whoever maintains your autofit"
    )


def _versions() -> str:
    found = [f"Python {platform.python_version()}", platform.platform()]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {package}")
    return ", ".join(found)
