"""Base class of answers that notebooks show as HTML."""

from __future__ import annotations

import importlib

_PAGES = "autofit.report.notebook"  # above all answers, so it is imported when one is shown


class ShownInNotebooks:
    """Base class of answers that notebooks show as HTML: tables and figures of the report, small."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """HTML that Jupyter and other notebooks show for the object; it loads nothing."""
        html: str = importlib.import_module(_PAGES).html_of(self)
        return html
