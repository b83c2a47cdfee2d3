"""Imports of the libraries that integrations are for."""

from __future__ import annotations

import importlib
from typing import Any

from autofit.errors import UsageError


class MissingFrameworkError(UsageError, ImportError):
    """The library that an integration is for is not installed; an `ImportError` too."""


def framework(module: str, *others: str, install: str) -> Any:
    """Module of a library, or of another name of it, imported now.

    Args:
        module: name of the module.
        others: other names, tried in turn.
        install: what to give to `pip install`.

    Raises:
        MissingFrameworkError: none of them is installed.
    """
    for name in (module, *others):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if not (name == missing or name.startswith(f"{missing}.")):
                raise
    raise MissingFrameworkError(
        f"{module} is not installed, which this integration is for: pip install {install}"
    )
