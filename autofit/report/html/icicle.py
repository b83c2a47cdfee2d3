"""The tree of modules as an icicle, each module as wide as what it comes to with all below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Figure = dict[str, Any]

_ROOT = "/"


def module_icicle(
    modules: Sequence[tuple[str, float]],
    *,
    root: str,
    in_words: Callable[[float], str],
    whole: str,
    colors: Sequence[str],
) -> Figure:
    """The figure.

    Args:
        modules: the path of each, after its parent's, with what it has of its own; the model's path is empty.
        root: the name of what the model's path stands for.
        in_words: a size as text.
        whole: what all of it is, in words.
        colors: of the branches.
    """
    totals = _totals(modules)
    listed: list[tuple[str, str, str, float]] = []
    with_children = {_parent(path) for path, _ in modules if path}
    for path, own in modules:
        if not totals[path]:
            continue
        name = path.rpartition(".")[2] or root
        listed.append((path or _ROOT, name, "" if not path else _parent(path) or _ROOT, totals[path]))
        if own and path in with_children:
            listed.append((f"{path}/own", "in no submodule", path or _ROOT, own))
    return {
        "data": [
            {
                "type": "icicle",
                "ids": [each[0] for each in listed],
                "labels": [each[1] for each in listed],
                "parents": [each[2] for each in listed],
                "values": [each[3] for each in listed],
                "branchvalues": "total",
                "text": [in_words(each[3]) for each in listed],
                "texttemplate": "%{label}<br>%{text}",
                "hovertemplate": f"%{{id}}<br>%{{text}}, %{{percentRoot:.1%}} of {whole}<extra></extra>",
                "tiling": {"orientation": "v"},
                "pathbar": {"visible": True},
                "marker": {"line": {"width": 2, "color": "var:panel"}},
                "root": {"color": "var:line"},
                "textfont": {"size": 13},
            }
        ],
        "layout": {
            "height": 440,
            "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
            "iciclecolorway": list(colors),
        },
    }


def _totals(modules: Iterable[tuple[str, float]]) -> dict[str, float]:
    """What each module comes to with all that is within it."""
    totals: dict[str, float] = {}
    for path, own in modules:
        above: str | None = path
        totals.setdefault(path, 0)
        while above is not None:
            totals[above] = totals.get(above, 0) + own
            above = _parent(above) if above else None
    return totals


def _parent(path: str) -> str:
    return path.rpartition(".")[0]
