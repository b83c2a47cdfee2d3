"""Keeps Python's garbage collector from running while many objects are made that will stay."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Nothing of a million objects of a long profile is garbage: to look costs a third of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """What modules make stays for the life of the process: it is not looked through, now or later.

    Where nothing was imported, nothing is kept: what else there is may be garbage.
    """
    num_modules = len(sys.modules)
    with without_collections():
        yield
        if len(sys.modules) > num_modules:
            gc.freeze()


@contextmanager
def looked_through() -> Iterator[None]:
    """Meanwhile the collector knows of what it does not look through otherwise, too."""
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    try:
        yield
    finally:
        if is_frozen:
            gc.freeze()
