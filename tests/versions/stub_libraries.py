"""Stands in for NVIDIA's libraries, so that a CUDA build of PyTorch can be imported without gigabytes.

A stub library has each function that PyTorch's libraries need of the real one, with its version. The process
is aborted when such a function is called, and the function is named: no stub answers anything but
`cudnnGetVersion`, whose number is that of the library which the wheel requires.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

# Names of functions by the library that has them and the name of their version, empty for none.
Needed = dict[str, dict[str, set[str]]]

_OF_THE_SYSTEM = ("libc.so", "libm.so", "libgcc_s.so", "libgomp.so", "libstdc++.so")
# First letters of the names of NVIDIA's libraries; all other libraries are the system's, and are there.
_OF_NVIDIA = ("libcu", "libnv", "libnccl")

_ABORT = """
.section .text
autofit_called:
    movq %rdi, %rsi
    movq %rdi, %r12
    xorl %eax, %eax
    xorl %edx, %edx
1:  cmpb $0, (%rsi,%rdx)
    je 2f
    incq %rdx
    jmp 1b
2:  movl $1, %eax
    movl $2, %edi
    syscall
    movl $39, %eax
    syscall
    movl %eax, %edi
    movl $6, %esi
    movl $62, %eax
    syscall
    hlt
"""
_FUNCTION = """
.section .rodata
9:  .asciz "the stub of {name} was called\\n"
.section .text
.globl {name}
.type {name}, @function
{name}:
    leaq 9b(%rip), %rdi
    jmp autofit_called
"""


# A function that returns a number, as `cudnnGetVersion` does.
_NUMBER = """
.section .text
.globl {name}
.type {name}, @function
{name}:
    movq ${number}, %rax
    ret
"""


def needed_by(libraries: Iterable[Path], present: Iterable[str]) -> Needed:
    """Functions that shared libraries need of libraries which are not there.

    Args:
        libraries: the libraries that are read.
        present: names of libraries that are there, such as `libc10.so`.

    Returns:
        Names of functions by the library (`libcublas.so.12`) and the version that the loader looks for.
        Functions without a version are listed with the last missing library of each that needs them, as
        the loader looks for these in all of them.
    """
    there = set(present)
    needed: Needed = defaultdict(lambda: defaultdict(set))
    for path in libraries:
        with path.open("rb") as file:
            _add(ELFFile(file), there, needed)
    return needed


def _add(elf: ELFFile, present: set[str], needed: Needed) -> None:
    dynamic = next((each for each in elf.iter_sections() if isinstance(each, DynamicSection)), None)
    symbols = elf.get_section_by_name(".dynsym")
    if dynamic is None or not isinstance(symbols, SymbolTableSection):
        return
    names = [tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
    missing = [name for name in names if not _is_present(name, present)]
    for name in missing:
        needed[name].setdefault("", set())
    versions = _versions_of(elf)
    indices = elf.get_section_by_name(".gnu.version")
    for position, symbol in enumerate(symbols.iter_symbols()):
        if symbol["st_shndx"] != "SHN_UNDEF" or symbol["st_info"]["bind"] == "STB_WEAK" or not symbol.name:
            continue  # a weak symbol is asked for by its address, and may be missing
        index = indices.get_symbol(position)["ndx"] if isinstance(indices, GNUVerSymSection) else None
        library, version = versions.get(index, ("", ""))
        if library in missing:
            needed[library][version].add(symbol.name)
        elif not library and missing:
            needed[missing[-1]][""].add(symbol.name)


def _versions_of(elf: ELFFile) -> dict[int, tuple[str, str]]:
    """Library and version by the index that symbols refer to."""
    section = elf.get_section_by_name(".gnu.version_r")
    if not isinstance(section, GNUVerNeedSection):
        return {}
    return {
        version["vna_other"]: (library.name, version.name)
        for library, its_versions in section.iter_versions()
        for version in its_versions
    }


def _is_present(name: str, present: set[str]) -> bool:
    return name in present or not name.startswith(_OF_NVIDIA)


def write(
    needed: Mapping[str, Mapping[str, set[str]]],
    defined: set[str],
    folder: Path,
    *,
    numbers: Mapping[str, int],
) -> None:
    """Compiles a stub for each library into a folder.

    Args:
        needed: functions by library and version, of `needed_by`.
        defined: functions without a version that PyTorch's own libraries have; no stub defines these.
        folder: folder that holds the stubs.
        numbers: functions without arguments that return a number, such as `cudnnGetVersion`.

    Raises:
        subprocess.CalledProcessError: the compiler (gcc) fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for library, by_version in needed.items():
        functions = {version: names if version else names - defined for version, names in by_version.items()}
        source, script = folder / f"{library}.s", folder / f"{library}.map"
        names = sorted(set().union(*functions.values()))
        bodies = (
            (_NUMBER if name in numbers else _FUNCTION).format(name=name, number=numbers.get(name))
            for name in names
        )
        source.write_text(_ABORT + "".join(bodies), encoding="utf-8")
        script.write_text(_script(functions), encoding="utf-8")
        named = (f"-Wl,-soname,{library}", f"-Wl,--version-script={script}")
        command = ["gcc", "-shared", "-nostdlib", *named, "-o", str(folder / library), str(source)]
        subprocess.run(command, check=True)
        source.unlink()
        script.unlink()


def _script(functions: Mapping[str, set[str]]) -> str:
    """Version script of the linker; without any version, all functions are visible."""
    named = {version: sorted(names) for version, names in functions.items() if version}
    if not named:
        return "{ global: *; };"
    return "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in names)} }};\n"
        for version, names in named.items()
    )


def functions_of(libraries: Iterable[Path]) -> set[str]:
    """Names of the functions and variables that shared libraries define for others."""
    found: set[str] = set()
    for path in libraries:
        with path.open("rb") as file:
            symbols = ELFFile(file).get_section_by_name(".dynsym")
            if isinstance(symbols, SymbolTableSection):
                found.update(each.name for each in symbols.iter_symbols() if each["st_shndx"] != "SHN_UNDEF")
    return found


def of_the_system() -> list[Path]:
    """Libraries of the system that PyTorch needs, such as libstdc++, where the loader finds them."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    found = (line.split(" => ") for line in listed.splitlines() if " => " in line and "x86-64" in line)
    return [Path(path) for name, path in found if name.split()[0].startswith(_OF_THE_SYSTEM)]
