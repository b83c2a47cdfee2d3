"""Finds plotly.js: in the wheel of autofit, else in the package `plotly`."""

from __future__ import annotations

from importlib import resources
from importlib.util import find_spec
from typing import TYPE_CHECKING

from autofit.errors import MissingLibraryError

if TYPE_CHECKING:
    from importlib.abc import Traversable  # in importlib.resources.abc since 3.11


def require_plotly_js() -> None:
    """Checks that plotly.js is installed; it takes no time.

    Raises:
        MissingLibraryError: plotly.js is not installed.
    """
    if not _packaged().is_file() and find_spec("plotly") is None:
        raise MissingLibraryError("a report needs plotly.js, which is not installed here: pip install plotly")


def plotly_js() -> str:
    """Text of plotly.js, which draws the figures of a report.

    Raises:
        MissingLibraryError: it is not installed.
    """
    require_plotly_js()
    if (packaged := _packaged()).is_file():
        return packaged.read_text(encoding="utf-8")
    from plotly.offline import get_plotlyjs

    found: str = get_plotlyjs()
    return found


def _packaged() -> Traversable:
    """File of plotly.js in a wheel of autofit, where deploy/wheel/build_hook.py puts it."""
    return resources.files(__package__).joinpath("plotly.min.js")
