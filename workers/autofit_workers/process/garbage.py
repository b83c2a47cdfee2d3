"""Context managers that control when Python's garbage collector looks at lasting objects."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Turns the garbage collector off in a `with` block that makes many lasting objects.

    None of a million objects of a long profile is garbage: looking for it costs a third of the time.
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

    Modules' objects stay for the life of the process. Where nothing was imported, nothing is exempted: the
    other objects may be garbage.
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
