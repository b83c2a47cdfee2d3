"""Context managers that control when Python's garbage collector examines long-lived objects."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Turns the garbage collector off in a `with` block that makes many long-lived objects.

    None of the million objects of a long profile is garbage, and examining them costs a third of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """Exempts all objects alive after a `with` block of imports from garbage collection, for good.

    Modules live as long as the process. If the block imported nothing, nothing is exempted, as the new
    objects may be garbage.
    """
    num_modules = len(sys.modules)
    with without_collections():
        yield
        if len(sys.modules) > num_modules:
            gc.freeze()


@contextmanager
def looked_through() -> Iterator[None]:
    """Lets the garbage collector also examine exempted (frozen) objects, in a `with` block."""
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    try:
        yield
    finally:
        if is_frozen:
            gc.freeze()
