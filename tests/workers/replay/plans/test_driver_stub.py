"""The library that stands in for NVIDIA's driver, loaded in a process of its own."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autofit_workers.replay.plans import driver_stub

MACHINES = driver_stub._MACHINES
_ERROR_NO_DEVICE = 100  # of the driver's `CUresult`
needs_this_machine = pytest.mark.skipif(
    platform.machine() not in MACHINES, reason="the stub has no code for this machine"
)


def run_python(code: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def stub(tmp_path: Path):
    """Writes the stub for a machine."""

    def write(machine: str) -> Path:
        path = tmp_path / f"{machine}.so"
        path.write_bytes(driver_stub.shared_object(*MACHINES[machine]))
        return path

    return write


@needs_this_machine
def test_every_function_reports_that_there_is_no_device(stub):
    code = """if True:
        import ctypes, sys
        library = ctypes.CDLL(sys.argv[1])
        print([getattr(library, name)() for name in sys.argv[2:]])
    """
    names = driver_stub._FUNCTIONS
    told = run_python(code, str(stub(platform.machine())), *names)
    assert told == str([_ERROR_NO_DEVICE] * len(names))


@needs_this_machine
def test_what_it_lacks_is_not_found_in_it(stub):
    code = "import ctypes, sys; print(hasattr(ctypes.CDLL(sys.argv[1]), 'cuInit'))"
    assert run_python(code, str(stub(platform.machine()))) == "False"


@needs_this_machine
def test_once_loaded_it_is_found_by_name_and_its_file_is_gone(tmp_path):
    code = """if True:
        import ctypes, sys, tempfile
        from pathlib import Path
        from autofit_workers.replay.plans import driver_stub
        tempfile.tempdir = sys.argv[1]
        driver_stub.load()
        driver_stub.load()
        library = ctypes.CDLL(driver_stub.SONAME)
        print(hasattr(library, "cuModuleLoadData"), list(Path(sys.argv[1]).iterdir()))
    """
    assert run_python(code, str(tmp_path)) == "True []"


@needs_this_machine
def test_it_does_not_make_the_stack_executable(stub):
    code = """if True:
        import ctypes, sys
        from pathlib import Path
        ctypes.CDLL(sys.argv[1])
        maps = Path("/proc/self/maps").read_text().splitlines()
        print(*{line.split()[1] for line in maps if line.endswith("[stack]")})
    """
    assert run_python(code, str(stub(platform.machine()))) == "rw-p"


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf of GNU binutils")
@pytest.mark.parametrize(("machine", "told"), [("x86_64", "X86-64"), ("aarch64", "AArch64")])
def test_binary_tools_read_it_as_a_shared_library_for_the_machine(machine, told, stub):
    def readelf(option: str) -> str:
        command = ["readelf", "--wide", option, str(stub(machine))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout

    assert told in readelf("--file-header")
    assert "Library soname: [libcuda.so.1]" in readelf("--dynamic")
    headers = readelf("--program-headers")
    assert "GNU_STACK" in headers
    assert "RWE" not in headers  # nothing is both writable and executable
