"""Differences between Pythons: what 3.10 has instead of later parts of the standard library does the same."""

from __future__ import annotations

import dis
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from autofit_workers.spec import pythons
from autofit_workers.spec.protocol import Verdict
from autofit_workers.spec.pythons import (
    SQLITE_BUSY,
    SQLITE_CORRUPT,
    arguments_for,
    handled_parts,
    sqlite_code,
)
from tests.versions.other_pythons import found

ROOT = Path(__file__).parents[3]
COMPILES = """
import sys
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        compile(file.read(), path, "exec")
"""


def test_the_oldest_python_compiles_both_packages() -> None:
    python = found("3.10")
    if python is None:
        pytest.skip("no python3.10 on PATH")
    files = [str(path) for part in ("autofit", "workers") for path in (ROOT / part).rglob("*.py")]
    command = [python.path, "-c", COMPILES, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_member_of_an_enumeration_is_shown_as_its_text() -> None:
    assert [str(Verdict.FITS), f"{Verdict.FITS}", f"{Verdict.FITS:>6}"] == [
        Verdict.FITS.value,
        Verdict.FITS.value,
        f"{Verdict.FITS.value:>6}",
    ]


def test_toml_is_read_and_what_is_none_is_a_value_error() -> None:
    assert pythons.read_toml('a = [1, "b"]') == {"a": [1, "b"]}
    with pytest.raises(ValueError, match="Invalid value"):
        pythons.read_toml("a =")


@pytest.mark.parametrize(
    "arguments", [arguments_for, lambda code: ["-c", pythons._WITHOUT_THE_FOLDER + code]]
)
def test_code_imports_nothing_from_the_working_folder(arguments, tmp_path: Path) -> None:
    (tmp_path / "of_the_folder.py").touch()
    command = [sys.executable, *arguments("import sys, of_the_folder"), "more"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "No module named 'of_the_folder'" in done.stderr
    command = [sys.executable, *arguments("import sys; print(sys.argv)"), "more"]
    assert subprocess.check_output(command, cwd=tmp_path, text=True) == "['-c', 'more']\n"


def refused(folder: Path) -> Iterator[tuple[sqlite3.Error, int]]:
    """Yields errors of SQLite with their result codes: of a locked and of a damaged database."""
    path = folder / "studies.db"
    with sqlite3.connect(path) as first:
        first.execute("create table names (name text)")
    first.execute("begin exclusive")
    second = sqlite3.connect(path, timeout=0)
    with pytest.raises(sqlite3.OperationalError) as locked:
        second.execute("insert into names values ('a')")
    yield locked.value, SQLITE_BUSY
    first.close()
    second.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    third = sqlite3.connect(path)
    with pytest.raises(sqlite3.DatabaseError) as damaged:
        third.execute("select * from names").fetchall()
    yield damaged.value, SQLITE_CORRUPT
    third.close()


def test_an_error_of_sqlite_has_its_code_by_number_and_by_message(tmp_path: Path) -> None:
    for error, code in refused(tmp_path):
        assert sqlite_code(error) == pythons._code_of_message(str(error)) == code
    assert pythons._code_of_message("no such table: names") == 0


def imports(code: CodeType) -> dict[str, int]:
    """Offset of the instruction that imports a module, by its name."""
    return {each.argval: each.offset for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME"}


def test_parts_of_code_that_handle_exceptions_are_found() -> None:
    lines = (
        "import before",
        "rate: float = 1e-3",
        "try:",
        "    import within",
        "except ImportError:",
        "    pass",
        "with manager:",
        "    import managed",
        "import after",
    )
    code = compile("\n".join(lines), "<script>", "exec")
    handled = {
        name for name, offset in imports(code).items() if any(offset in each for each in handled_parts(code))
    }
    assert handled == {"within", "managed"}
