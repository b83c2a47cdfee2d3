"""Checks PyTorch's wheels for other platforms: whether they have all that autofit's hooks rely on.

    python -m tests.versions.platforms [--folder FOLDER] [RELEASE…]

Downloads three wheels of a release from PyPI, up to two gigabytes: those for Linux on x86-64, with which
predictions are tested, for Linux on aarch64, and for macOS on arm64. Nothing of them is run. Prints a line
for each check, and exits with 1 where one fails.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

import autofit_workers
from autofit_workers.pytorch import device_guards
from tests.versions.installations import KEPT
from tests.versions.other_pythons import PIP
from tests.versions.wheel_libraries import WheelLibrary

_HOOKS = Path(autofit_workers.__path__[0]) / "pytorch"
_POINTER_BYTES = 8
# Headers; the numbers of device types moved with 2.9.
_GUARDS = "torch/include/c10/core/impl/DeviceGuardImplInterface.h"
_TYPES = ("torch/include/torch/headeronly/core/DeviceType.h", "torch/include/c10/core/DeviceType.h")
# Name of the type, as `typeid` has it, of the guard that does nothing, which PyTorch registers for `meta`.
_GUARD_OF_META = f"N3c104impl19NoOpDeviceGuardImplILNS_10DeviceTypeE{device_guards.META}EEE"
_TYPE_NAMES = {"CUDA": device_guards.CUDA, "XLA": device_guards.XLA, "Meta": device_guards.META}


@dataclass(frozen=True, slots=True)
class Platform:
    """Platform that PyTorch has wheels for.

    Attributes:
        tags: what pip calls it, any of which a wheel may have.
        suffix: ending of libraries in its wheels.
    """

    name: str
    tags: tuple[str, ...]
    suffix: str


TESTED = Platform("Linux x86-64", ("manylinux_2_28_x86_64", "manylinux2014_x86_64"), "so")
OTHERS = (
    Platform("Linux aarch64", ("manylinux_2_28_aarch64", "manylinux2014_aarch64"), "so"),
    Platform("macOS arm64", ("macosx_14_0_arm64", "macosx_11_0_arm64"), "dylib"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Result of one check of a wheel."""

    holds: bool
    text: str


class Wheel:
    """Wheel of PyTorch for a platform.

    Args:
        platform: the platform.
        path: the wheel's file.
        folder: folder into which its libraries are unpacked.
    """

    def __init__(self, platform: Platform, path: Path, folder: Path) -> None:
        self.platform = platform
        self.name = path.name
        self._archive = zipfile.ZipFile(path)
        self._folder = folder

    def library(self, stem: str) -> WheelLibrary:
        """A library of PyTorch, such as `c10`.

        Raises:
            KeyError: the wheel has no such library.
        """
        member = f"torch/lib/lib{stem}.{self.platform.suffix}"
        return WheelLibrary(Path(self._archive.extract(member, self._folder)))

    def header(self, *names: str) -> str:
        """Text of the first header that the wheel has."""
        name = next(name for name in names if name in self._archive.namelist())
        return self._archive.read(name).decode()

    @cached_property
    def sources(self) -> dict[str, int]:
        """Checksums of the Python files, by path."""
        return {
            member.filename: member.CRC
            for member in self._archive.infolist()
            if member.filename.startswith("torch/") and member.filename.endswith(".py")
        }


def checks(wheel: Wheel, tested: Wheel) -> Iterator[Check]:
    """Checks that a wheel has what the hooks look up, as the wheel has that predictions are tested with."""
    yield from _checks_of_symbols(wheel)
    yield from _checks_of_registry(wheel, tested)
    yield from _checks_of_python(wheel, tested)


def _checks_of_symbols(wheel: Wheel) -> Iterator[Check]:
    for stem, names in device_guards.SYMBOLS.items():
        library = wheel.library(stem)
        for name in names:
            yield Check(holds=library.exports(name), text=f"{library.path.name} exports {name}")


def _checks_of_registry(wheel: Wheel, tested: Wheel) -> Iterator[Check]:
    library, name = wheel.library(device_guards.LIBRARY), device_guards.REGISTRY
    yield Check(holds=library.is_64_bit, text="pointers have 8 bytes")
    types = device_types(wheel.header(*_TYPES))
    numbers = {each: types.get(each) for each in _TYPE_NAMES}
    told = ", ".join(f"{each} {number}" for each, number in numbers.items())
    yield Check(holds=numbers == _TYPE_NAMES, text=f"device types have the numbers of the hooks: {told}")
    declared = _POINTER_BYTES * types["COMPILE_TIME_MAX_DEVICE_TYPES"]
    header = wheel.header(_GUARDS)
    yield Check(holds=is_array_of_pointers(header), text="the registry is declared as an array of pointers")
    if library.exports(name):
        found = library.variable(name)
        needed = _POINTER_BYTES * device_guards.NUM_GUARDS
        yield Check(
            holds=found.num_bytes == declared >= needed,
            text=f"it has {found.num_bytes} bytes, {declared} by its header, of which hooks use {needed}",
        )
        yield Check(holds=found.is_writable, text="its data may be written to")
    own, reference = virtual_functions(header), virtual_functions(tested.header(_GUARDS))
    yield Check(
        holds=own == reference and len(own) > 1,
        text=f"its guards have {len(own)} virtual functions in the order of {tested.platform.name}",
    )
    user = wheel.library("torch_cpu")
    yield Check(holds=user.imports(name), text=f"{user.path.name} uses the registry of {library.path.name}")
    yield Check(
        holds=user.holds_text(_GUARD_OF_META),
        text=f"{user.path.name} has the guard of meta, {_GUARD_OF_META}",
    )


def _checks_of_python(wheel: Wheel, tested: Wheel) -> Iterator[Check]:
    own = wheel.library("torch_python")
    reference = tested.library("torch_python")
    # A build without CUDA, as the tests' and macOS's, lacks some that a build with CUDA has.
    without_cuda = (Path(torch.__file__).parent / "lib" / "libtorch_python.so").read_bytes()
    names = [
        name
        for name in sorted(names_of_extension())
        if reference.holds_text(name) and b"\0" + name.encode() + b"\0" in without_cuda
    ]
    missing = [name for name in names if not own.holds_text(name)]
    yield Check(
        holds=not missing and bool(names),
        text=f"{own.path.name} names the {len(names)} functions of torch._C that the hooks use"
        + (f"; not {', '.join(missing)}" if missing else ""),
    )
    files = sorted(sources_of_hooks() & tested.sources.keys())
    different = [name for name in files if wheel.sources.get(name) != tested.sources[name]]
    yield Check(
        holds=not different and bool(files),
        text=f"the {len(files)} Python files that the hooks import from are those of {tested.platform.name}"
        + (f"; not {', '.join(different)}" if different else ""),
    )


def device_types(header: str) -> dict[str, int]:
    """Numbers of the device types that a header declares, by name."""
    declared = header[header.index("enum class DeviceType") :]
    return {name: int(number) for name, number in re.findall(r"^\s*(\w+) = (\d+),", declared, re.MULTILINE)}


def virtual_functions(header: str) -> list[str]:
    """Declarations of the virtual functions of a header's classes, in order, which is that of a vtable."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", header, flags=re.DOTALL)
    found = re.findall(r"\bvirtual\s+([^;{]+?)\s*(?:=\s*(?:0|default)\s*)?[;{]", code)
    return [re.sub(r"\s+", " ", declaration).strip() for declaration in found]


def is_array_of_pointers(header: str) -> bool:
    """Whether a header declares the registry as an array of pointers to guards, one for a device type."""
    code = re.sub(r"\s+", "", header)
    array = r"std::array<std::atomic<constDeviceGuardImplInterface\*>,static_cast<size_t>\("
    plain = r"std::atomic<constDeviceGuardImplInterface\*>device_guard_impl_registry\[static_cast<size_t>\("
    last = r"DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES\)"
    return bool(re.search(rf"{array}{last}>device_guard_impl_registry|{plain}{last}\]", code))


def names_of_extension() -> set[str]:
    """Names of `torch._C` and its modules that the hooks use."""
    found: set[str] = set()
    for tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).startswith("torch._C"):
                found.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch._C"):
                found |= {alias.name for alias in node.names}
            elif (
                isinstance(node, ast.Call) and len(node.args) > 1 and ast.unparse(node.args[0]) == "torch._C"
            ):
                values = [arg.value for arg in node.args[1:] if isinstance(arg, ast.Constant)]
                found |= {value for value in values if isinstance(value, str)}
    return found


def sources_of_hooks() -> set[str]:
    """Paths that the Python files of PyTorch have from which the hooks import, or whose names they use."""
    modules: set[str] = set()
    for tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
                modules |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
            elif isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names if alias.name.startswith("torch")}
            elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch."):
                modules.add(ast.unparse(node))
    folders = [module.replace(".", "/") for module in modules]
    return {f"{folder}.py" for folder in folders} | {f"{folder}/__init__.py" for folder in folders}


def _trees() -> Iterator[ast.Module]:
    for path in sorted(_HOOKS.glob("*.py")):
        yield ast.parse(path.read_text(encoding="utf-8"))


def downloaded(release: str, platform: Platform, folder: Path) -> Wheel:
    """Wheel of a release, which is downloaded where `folder` does not hold it yet.

    Raises:
        subprocess.CalledProcessError: pip fails.
    """
    place = folder / f"wheel-{release}-{platform.name.replace(' ', '-')}"
    if not list(place.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        tags = [part for tag in platform.tags for part in ("--platform", tag)]
        command += [*tags, "--python-version", "3.12", "-d", str(place), f"torch=={release}"]
        subprocess.run(command, env={**os.environ, **PIP}, check=True)
    (path,) = place.glob("*.whl")
    return Wheel(platform, path, place)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("releases", nargs="*", default=["2.13.0"], metavar="RELEASE")
    parser.add_argument("--folder", type=Path, default=KEPT)
    arguments = parser.parse_args()
    holds = True
    for release in arguments.releases:
        tested = downloaded(release, TESTED, arguments.folder)
        for platform in (TESTED, *OTHERS):
            wheel = tested if platform is TESTED else downloaded(release, platform, arguments.folder)
            print(f"{platform.name}: {wheel.name}")
            for check in checks(wheel, tested):
                print(f"  {'ok' if check.holds else 'FAILS'}  {check.text}", flush=True)
                holds = holds and check.holds
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
