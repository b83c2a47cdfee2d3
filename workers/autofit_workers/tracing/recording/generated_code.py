"""Places in the user's code that lines of generated code stand for.

A compiler's generated code allocates memory and calls kernels in place of the user's code; whoever runs
generated code registers here which line stands for which place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType


@dataclass(frozen=True, slots=True)
class Place:
    """Place in the user's code.

    Attributes:
        module: path of the module that runs there; empty if unknown.
        lines: call stack of lines `file:line:function`, outermost first.
    """

    module: str = ""
    lines: tuple[str, ...] = ()


_places: dict[str, Mapping[int, Place]] = {}


def register(path: str, places: Mapping[int, Place]) -> None:
    """Registers the places that generated code stands for.

    Args:
        path: file name of the generated code, as its frames have it.
        places: places by the line's number in the generated code.
    """
    _places[path] = places


def place_of(frame: FrameType | None) -> Place | None:
    """Place that the innermost generated code on the stack of `frame` stands for; None without such code."""
    if not _places:
        return None
    while frame is not None:
        places = _places.get(frame.f_code.co_filename)
        if places is not None:
            return places.get(frame.f_lineno, Place())
        frame = frame.f_back
    return None
