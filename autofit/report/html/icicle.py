"""Icicle plots of memory and time by module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from autofit.answers.figures import Node, Times
from autofit.answers.words.numbers import seconds_in_words
from autofit.report.html.figures import BRANCH_COLORS, Figure
from autofit.units import format_bytes

_ROOT = "/"
_BILLION = 10**9


def memory_by_module(nodes: Sequence[Node]) -> Figure:
    """Icicle plot of a model's modules, each as wide as the memory that is alive at the peak in it."""
    return _icicle(
        [(node.path, node.own_bytes) for node in nodes],
        in_words=format_bytes,
        whole="the peak",
    )


def time_by_module(times: Times) -> Figure:
    """Icicle plot of a model's modules, each as wide as the time that its kernels take on the GPU."""
    timing = times.timing

    def in_words(billionths: int) -> str:
        share = billionths / _BILLION
        seconds = timing.seconds_of(share)
        return f"{share:.1%}" if seconds is None else seconds_in_words(seconds)

    return _icicle(
        # Whole numbers, as plotly.js draws nothing if the parts exceed their sum by a rounding error.
        [(each.path, round(_BILLION * each.own_share)) for each in times.modules],
        in_words=in_words,
        whole="the device's time",
    )


def _icicle(modules: Sequence[tuple[str, int]], *, in_words: Callable[[int], str], whole: str) -> Figure:
    """Icicle plot of a tree of modules: each module is a box above those of its submodules.

    Args:
        modules: path of each module, such as `features.0`, and its size without submodules; parents come
            before their children. The model's own path is empty.
        in_words: function from a size to the text that shows it.
        whole: name of the total, such as `the peak`.
    """
    totals = _totals(modules)
    listed: list[tuple[str, str, str, int]] = []
    with_children = {_parent(path) for path, _ in modules if path}
    for path, own in modules:
        if not totals[path]:
            continue
        name = path.rpartition(".")[2] or "the model and its step"
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
            "iciclecolorway": list(BRANCH_COLORS),
        },
    }


def _totals(modules: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Size of each module with all its submodules, by the module's path.

    Args:
        modules: path of each module, and its size without submodules.
    """
    totals: dict[str, int] = {}
    for path, own in modules:
        above: str | None = path
        totals.setdefault(path, 0)
        while above is not None:
            totals[above] = totals.get(above, 0) + own
            above = _parent(above) if above else None
    return totals


def _parent(path: str) -> str:
    return path.rpartition(".")[0]
