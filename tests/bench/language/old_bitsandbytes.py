"""bitsandbytes 0.42, whose kernels are no operators of PyTorch: what it keeps, and takes.

All that it allocates, Python allocates, before it gives addresses to a compiled library. So the library is
one that does nothing, and the rest is its own. It dequantizes a weight of 4 bits to the type that
this was quantized from, and converts that to the input's; and backward keeps the input.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def without_its_library() -> None:
    """Lets the bitsandbytes that will be imported call nothing compiled."""
    extension: Any = ModuleType("bitsandbytes.cextension")
    extension.lib, extension.COMPILED_WITH_CUDA = _Nothing(), True
    sys.modules[extension.__name__] = extension
    import bitsandbytes

    functional: Any = bitsandbytes.functional
    functional.get_ptr = lambda _tensor: None
    # What 0.41 has as a list, 0.42 means to have as one too, under a name that Python does not know.
    functional.QuantState.__getitem__ = functional.QuantState.__get_item__


class _Nothing:
    """A compiled library in which each function does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _do_nothing


def _do_nothing(*_addresses: object) -> int:
    return 0
