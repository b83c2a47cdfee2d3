"""Goes on without an optional library that another library finds, and cannot use.

Libraries look for others that a model may be made of, such as quantized weights of torchao for peft, and
import names of theirs that only some releases have. Where the model holds nothing of such a library, it is
hidden, and the model is made as on a machine without it.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

# A function of a library that looks for another one, and refuses some of its releases.
_LOOKING = re.compile(r"is_(?P<package>\w+?)_available$")


def unusable(error: ImportError, asking: str) -> str | None:
    """Package that is installed, and that a library cannot use; None where the error is another.

    Args:
        error: what was raised.
        asking: package of the library that wanted the other.
    """
    package = (error.name or _looked_for(error) or asking).partition(".")[0]
    if package == asking or importlib.util.find_spec(package) is None:
        return None
    return package


def _looked_for(error: ImportError) -> str | None:
    """Package that the function which raised an error of its own looked for."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    match = None if at is None else _LOOKING.match(at.tb_frame.f_code.co_name)
    return None if match is None else match["package"]


def holds(model: nn.Module, package: str) -> bool:
    """Whether a module, a parameter or a buffer of a model is of a class of a package."""
    held = (*model.modules(), *model.parameters(), *model.buffers())
    return any(
        base.__module__.partition(".")[0] == package for each in set(map(type, held)) for base in each.__mro__
    )


@contextmanager
def hidden(package: str, asking: str) -> Iterator[None]:
    """Context in which a package seems not to be installed.

    Args:
        package: what is hidden; its modules that are imported already stay so.
        asking: package whose functions remember whether it is installed.
    """
    before = sys.modules.get(package)
    sys.modules[package] = None  # type: ignore[assignment] # as importlib.util.find_spec reads it
    _forget(asking)
    try:
        yield
    finally:
        if before is None:
            del sys.modules[package]
        else:
            sys.modules[package] = before
        _forget(asking)


def _forget(asking: str) -> None:
    """Clears what functions of a package remember of which others are installed."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == asking:
            for found in list(vars(module).values()):
                _clear(found)


def _clear(found: Any) -> None:
    if _LOOKING.match(getattr(found, "__name__", None) or "") and hasattr(found, "cache_clear"):
        found.cache_clear()
