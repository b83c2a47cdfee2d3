"""Stub of `libcuda.so.1` for machines without NVIDIA's driver.

cuDNN plans without a GPU, but one of its libraries is linked against the driver's library and is not loaded
without it. The stub has the functions that cuDNN is linked against; each only reports that there is no
device, and planning calls none of them.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import tempfile
from pathlib import Path

SONAME = "libcuda.so.1"
# Functions that cuDNN's engines are linked against; they look up others by name, and work without them.
_FUNCTIONS = (
    "cuGetErrorString",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeIm2col",
    "cuTensorMapEncodeTiled",
)
# `return CUDA_ERROR_NO_DEVICE` (100), by ELF machine number.
_X86_64, _AARCH64 = 62, 183
_MACHINES = {
    "x86_64": (_X86_64, bytes.fromhex("b864000000c3")),  # mov eax, 100; ret
    "aarch64": (_AARCH64, bytes.fromhex("800c8052c0035fd6")),  # mov w0, #100; ret
}
_PAGE_BYTES = 0x10000  # the largest page size of either machine
_HEADER_BYTES, _PROGRAM_HEADER_BYTES, _SYMBOL_BYTES = 64, 56, 24
_LOAD, _DYNAMIC, _GNU_STACK = 1, 2, 0x6474E551
_READ_EXECUTE, _READ_WRITE = 5, 6
_NUM_PROGRAM_HEADERS = 4
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 4, 5, 6, 10, 11, 14


def load() -> None:
    """Loads a `libcuda.so.1`, so that libcudnn can be loaded: the driver's own, or a stub that does nothing.

    Raises:
        OSError: neither can be loaded on this machine.
    """
    try:
        ctypes.CDLL(SONAME, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        if platform.machine() not in _MACHINES:
            raise
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / SONAME
            path.write_bytes(shared_object(*_MACHINES[platform.machine()]))
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def shared_object(machine: int, code: bytes) -> bytes:
    """Returns the bytes of an ELF shared library whose functions all run the same machine code.

        headers │ hash │ symbols │ names │ code ┊ next page: dynamic section
        ────────────── read, execute ────────── ┊ ── read, write ──────────

    Source: System V ABI, chapters 4 and 5 (Object Files; Program Loading and Dynamic Linking).

    Args:
        machine: ELF's number of the processor architecture.
        code: the machine code.
    """
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*_FUNCTIONS, SONAME))
    num_symbols = len(_FUNCTIONS) + 1  # the first symbol is the undefined one
    hash_start = _HEADER_BYTES + _NUM_PROGRAM_HEADERS * _PROGRAM_HEADER_BYTES
    # A single bucket whose chain passes through every symbol.
    chain = (*range(2, num_symbols), 0)
    hash_table = struct.pack(f"<{4 + len(chain)}I", 1, num_symbols, 1, 0, *chain)
    symbols_start = -(-(hash_start + len(hash_table)) // 8) * 8
    names_start = symbols_start + num_symbols * _SYMBOL_BYTES
    code_start = -(-(names_start + len(names)) // 16) * 16
    symbols = bytes(_SYMBOL_BYTES) + b"".join(
        # name, global function, default visibility, any defined section, value, size
        struct.pack("<IBBHQQ", names.index(name.encode()), 0x12, 0, 1, code_start, len(code))
        for name in _FUNCTIONS
    )
    entries = (
        (_DT_SONAME, names.index(SONAME.encode())),
        (_DT_HASH, hash_start),
        (_DT_SYMTAB, symbols_start),
        (_DT_SYMENT, _SYMBOL_BYTES),
        (_DT_STRTAB, names_start),
        (_DT_STRSZ, len(names)),
        (0, 0),
    )
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    code_end = code_start + len(code)
    text = bytearray(_headers(machine, code_end, len(dynamic)).ljust(code_start, b"\0") + code)
    for start, part in ((hash_start, hash_table), (symbols_start, symbols), (names_start, names)):
        text[start : start + len(part)] = part
    return bytes(text).ljust(_PAGE_BYTES, b"\0") + dynamic


def _headers(machine: int, code_end: int, dynamic_bytes: int) -> bytes:
    """ELF file header and program headers of a shared library with code and a dynamic section."""
    identity = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)  # 64 bits, little-endian, version 1
    file_header = identity + struct.pack(
        "<HHIQQQIHHHHHH",
        3,
        machine,
        1,
        0,
        _HEADER_BYTES,
        0,
        0,
        _HEADER_BYTES,
        _PROGRAM_HEADER_BYTES,
        _NUM_PROGRAM_HEADERS,
        0,
        0,
        0,
    )

    def program_header(kind: int, flags: int, start: int, size: int, align: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, flags, start, start, start, size, size, align)

    return (
        file_header
        + program_header(_LOAD, _READ_EXECUTE, 0, code_end, _PAGE_BYTES)
        + program_header(_LOAD, _READ_WRITE, _PAGE_BYTES, dynamic_bytes, _PAGE_BYTES)
        + program_header(_DYNAMIC, _READ_WRITE, _PAGE_BYTES, dynamic_bytes, 8)
        # Without it glibc makes the process's stack executable, or from 2.41 on loads nothing.
        + program_header(_GNU_STACK, _READ_WRITE, 0, 0, 16)
    )
