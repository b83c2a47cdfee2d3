"""Puts plotly.js, which draws the figures of reports, into the wheel.

It is one file of the package `plotly`, whose other files take 60 MB and are not used. Building a wheel needs
that package; using the wheel does not. An editable installation takes the file from the package itself, see
`autofit/report/html/plotly_js.py`.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import PurePosixPath
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = PurePosixPath("autofit/report/html")
# Names of plotly's files at the end of their paths, and those that they have in the wheel.
_FILES = {"plotly/package_data/plotly.min.js": "plotly.min.js", "LICENSE.txt": "plotly.LICENSE.txt"}


class PlotlyJs(BuildHookInterface):  # type: ignore[type-arg]  # hatchling gives its parameter no default
    """Hook of hatchling, which calls it before it builds a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Names plotly.js and its licence among the files of a wheel, unless it is an editable one.

        Raises:
            FileNotFoundError: the installed plotly lacks one of them.
        """
        if version == "editable":
            return
        installed = importlib.metadata.files("plotly") or ()
        for end, name in _FILES.items():
            found = [path for path in installed if path.as_posix().endswith(end)]
            if len(found) != 1:
                raise FileNotFoundError(
                    f"plotly {importlib.metadata.version('plotly')} has {len(found)} files {end}"
                )
            build_data["force_include"][str(found[0].locate())] = str(_FOLDER / name)
