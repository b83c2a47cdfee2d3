"""Reads libraries of other platforms, Mach-O and ELF: their symbols, and the room that each has."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import lief

lief.disable_leak_warning()  # its classes live as long as the process

_EXTERNAL, _PRIVATE = 0x01, 0x10  # N_EXT and N_PEXT of mach-o/nlist.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """Symbol of a library's data.

    Attributes:
        num_bytes: bytes up to the next symbol or the section's end, or its size where the format tells it.
        is_writable: whether the segment that holds it may be written to.
    """

    num_bytes: int
    is_writable: bool


class WheelLibrary:
    """Shared library of a wheel, for any platform; it is read and never loaded.

    Args:
        path: the library's file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if lief.is_macho(str(path)):
            universal = lief.MachO.parse(str(path), lief.MachO.ParserConfig.quick)
            assert universal is not None and universal.size == 1, f"{path} is for several machines"
            self._binary: Any = universal.at(0)
        else:
            self._binary = lief.ELF.parse(str(path))
        self._is_macho = isinstance(self._binary, lief.MachO.Binary)
        # A C name has an underscore before it in Mach-O, which dlsym(3) adds.
        self._prefix = "_" if self._is_macho else ""

    @cached_property
    def is_64_bit(self) -> bool:
        """Whether pointers take eight bytes."""
        if self._is_macho:
            return self._binary.header.magic == lief.MachO.MACHO_TYPES.MAGIC_64
        return self._binary.header.identity_class == lief.ELF.Header.CLASS.ELF64

    def exports(self, name: str) -> bool:
        """Whether dlsym(3) finds a symbol in the library itself."""
        symbol = self._symbols.get(self._prefix + name)
        return symbol is not None and symbol.value > 0 and self._is_global(symbol)

    def imports(self, name: str) -> bool:
        """Whether the library uses a symbol of another library."""
        symbol = self._symbols.get(self._prefix + name)
        return symbol is not None and symbol.value == 0

    def variable(self, name: str) -> Variable:
        """Place of an exported symbol.

        Raises:
            KeyError: the library has no such symbol.
        """
        symbol = self._symbols[self._prefix + name]
        if not self._is_macho:
            segment = self._binary.segment_from_virtual_address(symbol.value)
            return Variable(
                num_bytes=symbol.size,
                is_writable=lief.ELF.Segment.FLAGS.W in lief.ELF.Segment.FLAGS(segment.flags),
            )
        section = next(
            each
            for each in self._binary.sections
            if each.virtual_address <= symbol.value < each.virtual_address + each.size
        )
        addresses = sorted({each.value for each in self._symbols.values()})
        place = bisect_right(addresses, symbol.value)
        end = section.virtual_address + section.size
        following = addresses[place] if place < len(addresses) else end
        return Variable(
            num_bytes=min(following, end) - symbol.value,
            # `__DATA_CONST` is made read-only once the library is loaded.
            is_writable=section.segment_name == "__DATA",
        )

    def holds_text(self, text: str) -> bool:
        """Whether the library holds a text, such as the name of a function that it gives to Python."""
        return b"\0" + text.encode() + b"\0" in self._content

    @cached_property
    def _content(self) -> bytes:
        return self.path.read_bytes()

    @cached_property
    def _symbols(self) -> dict[str, Any]:
        symbols = self._binary.symbols if self._is_macho else self._binary.dynamic_symbols
        return {str(symbol.name): symbol for symbol in symbols}

    def _is_global(self, symbol: Any) -> bool:
        if self._is_macho:
            return bool(symbol.raw_type & _EXTERNAL) and not symbol.raw_type & _PRIVATE
        return symbol.binding in (lief.ELF.Symbol.BINDING.GLOBAL, lief.ELF.Symbol.BINDING.WEAK)
