"""Wheels of other platforms are read as they are: on this environment's library, and on a tiny Mach-O."""

from __future__ import annotations

import ast
import struct
from pathlib import Path

import pytest
import torch

import autofit_workers
from autofit_workers.pytorch import device_guards

pytest.importorskip("lief", reason="reads libraries of other platforms; `pip install -e '.[test]'` brings it")

from tests.versions import platforms
from tests.versions.wheel_libraries import WheelLibrary

LIBRARIES = Path(torch.__file__).parent / "lib"
WORKERS = Path(autofit_workers.__path__[0])
# Modules that look up names in libraries by ctypes; in PyTorch's, the first alone.
LOOKING_UP = {
    "pytorch/device_guards.py",
    "process/boundary/kernel.py",  # the C library's, on Linux
    "process/descendants.py",  # likewise
    "replay/allocator/compiled_replay.py",
    "replay/plans/cudnn.py",
    "replay/plans/driver_stub.py",
}
HEADER = """
// virtual int in_a_comment() = 0;
enum class DeviceType : int8_t {
  CPU = 0,
  CUDA = 1, // CUDA.
  COMPILE_TIME_MAX_DEVICE_TYPES = 21,
};
struct DeviceGuardImplInterface {
  virtual DeviceType type() const = 0;
  virtual Stream getStream(
      Device) const {
    return other();
  }
  int plain() const;
  virtual ~DeviceGuardImplInterface() = default;
};
extern std::array<
    std::atomic<const DeviceGuardImplInterface*>,
    static_cast<size_t>(DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)>
    device_guard_impl_registry;
"""


def tiny_macho(segment: str) -> bytes:
    """A Mach-O library for arm64 with 256 bytes of data at 0x4000, in which two variables are.

    Source: mach-o/loader.h and mach-o/nlist.h of macOS.

    Args:
        segment: name of the segment that has the data.
    """
    names = b"\0_registry\0_next\0_elsewhere\0"
    data_at, symbols_at = 0x200, 0x300
    names_at = symbols_at + 3 * 16
    section = struct.pack(
        "<16s16sQQIIIIIIII", b"__data", segment.encode(), 0x4000, 0x100, data_at, 3, 0, 0, 0, 0, 0, 0
    )
    segments = struct.pack(
        "<II16sQQQQiiII", 0x19, 72 + 80, segment.encode(), 0x4000, 0x1000, data_at, 0x100, 3, 3, 1, 0
    )
    table = struct.pack("<IIIIII", 2, 24, symbols_at, 3, names_at, len(names))
    commands = segments + section + table
    header = struct.pack("<IIIIIIII", 0xFEEDFACF, 0x0100000C, 0, 6, 2, len(commands), 0x85, 0)
    defined, undefined = 0x0F, 0x01  # N_SECT | N_EXT; N_UNDF | N_EXT
    symbols = struct.pack("<IBBHQ", 1, defined, 1, 0, 0x4010)
    symbols += struct.pack("<IBBHQ", 11, defined, 1, 0, 0x40B8)
    symbols += struct.pack("<IBBHQ", 17, undefined, 0, 0x100, 0)
    return (header + commands).ljust(data_at, b"\0") + bytes(0x100) + symbols + names


def test_the_library_of_this_environment_is_read():
    library = WheelLibrary(LIBRARIES / "libc10.so")
    assert library.is_64_bit
    assert library.exports(device_guards.REGISTRY)
    assert not library.exports("_ZN3c104impl8no_thingE")
    variable = library.variable(device_guards.REGISTRY)
    assert (variable.num_bytes, variable.is_writable) == (8 * 21, True)
    assert library.imports("malloc")
    assert not library.imports(device_guards.REGISTRY)


def test_what_may_not_be_written_to_is_told():
    library = WheelLibrary(LIBRARIES / "libc10.so")
    assert not library.variable("_ZN3c104impl24ensureCUDADeviceGuardSetEv").is_writable  # code


@pytest.mark.parametrize(("segment", "is_writable"), [("__DATA", True), ("__DATA_CONST", False)])
def test_a_library_of_macos_is_read(tmp_path: Path, segment: str, is_writable: bool):
    path = tmp_path / "libtiny.dylib"
    path.write_bytes(tiny_macho(segment))
    library = WheelLibrary(path)
    assert library.is_64_bit
    assert library.exports("registry") and not library.imports("registry")
    assert library.imports("elsewhere") and not library.exports("elsewhere")
    variable = library.variable("registry")
    assert (variable.num_bytes, variable.is_writable) == (0xA8, is_writable)  # up to the next variable
    assert library.variable("next").num_bytes == 0x100 - 0xB8  # up to the section's end
    assert library.holds_text("_next") and not library.holds_text("nex")


def test_headers_are_read():
    assert platforms.device_types(HEADER) == {"CPU": 0, "CUDA": 1, "COMPILE_TIME_MAX_DEVICE_TYPES": 21}
    assert platforms.virtual_functions(HEADER) == [
        "DeviceType type() const",
        "Stream getStream( Device) const",
        "~DeviceGuardImplInterface()",
    ]
    assert platforms.is_array_of_pointers(HEADER)
    assert not platforms.is_array_of_pointers(HEADER.replace("*>", ">"))


def test_headers_of_this_environment_have_what_the_hooks_rely_on():
    include = LIBRARIES.parent / "include"
    header = (include / "c10/core/impl/DeviceGuardImplInterface.h").read_text()
    assert platforms.is_array_of_pointers(header)
    assert "Device exchangeDevice(Device) const" in platforms.virtual_functions(header)


def test_names_that_the_hooks_use_are_found():
    assert {"_accelerator_exchangeDevice", "_get_accelerator"} <= platforms.names_of_extension()
    assert {"torch/cuda/__init__.py", "torch/_subclasses/fake_tensor.py"} <= platforms.sources_of_hooks()


def test_no_other_module_looks_up_names_in_libraries():
    found = set()
    for path in sorted(WORKERS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("CDLL", "PyDLL", "pythonapi", "in_dll"):
                found.add(str(path.relative_to(WORKERS)))
    assert found == LOOKING_UP


def test_each_symbol_that_is_looked_up_is_checked():
    source = (WORKERS / "pytorch" / "device_guards.py").read_text(encoding="utf-8")
    mangled = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("_Z")
    ]
    assert mangled == [name for names in device_guards.SYMBOLS.values() for name in names]
