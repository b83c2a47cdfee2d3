"""Stubs of libraries that are not there: the loader is content, and a call names its function and aborts."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.versions import stub_libraries

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or platform.machine() != "x86_64", reason="needs gcc for x86-64"
)

_CALLS = """
extern int cufoo_answer(void);
extern int cubar_count(void);
int main(int count, char **arguments) { return count > 1 ? cufoo_answer() : cubar_count(); }
"""


def compiled(folder: Path, *arguments: str) -> None:
    subprocess.run(["gcc", *arguments], cwd=folder, check=True)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Program that needs two libraries, of which one has versions, and which are gone."""
    (tmp_path / "foo.c").write_text("int cufoo_answer(void) { return 42; }")
    (tmp_path / "foo.map").write_text("libcufoo.so.12 { global: cufoo_answer; };")
    (tmp_path / "bar.c").write_text("int cubar_count(void) { return 7; }")
    (tmp_path / "main.c").write_text(_CALLS)
    version = ("-Wl,--version-script=foo.map", "-Wl,-soname,libcufoo.so.12")
    compiled(tmp_path, "-shared", "-fPIC", *version, "-o", "libcufoo.so", "foo.c")
    compiled(tmp_path, "-shared", "-fPIC", "-Wl,-soname,libcubar.so.1", "-o", "libcubar.so", "bar.c")
    compiled(tmp_path, "-o", "program", "main.c", "-L.", "-lcufoo", "-lcubar")
    for name in ("libcufoo.so", "libcubar.so"):
        (tmp_path / name).unlink()
    return tmp_path / "program"


def stubs_of(program: Path, **numbers: int) -> Path:
    folder = program.parent / "stubs"
    needed = stub_libraries.needed_by([program], present=[])
    assert needed["libcufoo.so.12"]["libcufoo.so.12"] == {"cufoo_answer"}
    assert set(needed) == {"libcufoo.so.12", "libcubar.so.1"}
    defined = stub_libraries.functions_of(stub_libraries.of_the_system())
    stub_libraries.write(needed, defined, folder, numbers=numbers)
    return folder


def test_a_call_of_a_stub_names_the_function_and_aborts(program: Path):
    environment = {"LD_LIBRARY_PATH": str(stubs_of(program))}
    for arguments, function in ((["x"], "cufoo_answer"), ([], "cubar_count")):
        done = subprocess.run(
            [program, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == -6
        assert done.stderr == f"the stub of {function} was called\n"


def test_a_number_that_is_known_is_returned(program: Path):
    environment = {"LD_LIBRARY_PATH": str(stubs_of(program, cubar_count=91))}
    assert subprocess.run([program], env=environment, check=False).returncode == 91
