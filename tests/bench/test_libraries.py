"""A release in a folder of its own is the one that a process imports."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.bench import libraries
from tests.bench.accuracy import with_releases
from tests.bench.tables.setting import Setting
from tests.bench.test_scoring import row

pytestmark = pytest.mark.process

RELEASE = "made-up==4.0"


@pytest.fixture(autouse=True)
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that pip finds without a network."""
    info = "made_up-4.0.dist-info"
    with zipfile.ZipFile(tmp_path / "made_up-4.0-py3-none-any.whl", "w") as file:
        file.writestr("made_up/__init__.py", "version = 4\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: made-up\nVersion: 4.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def test_a_process_imports_the_release_that_was_installed() -> None:
    assert libraries.install(RELEASE)
    assert libraries.install(RELEASE)  # it is there
    code = (
        "from tests.bench import libraries\n"
        f"libraries.use({RELEASE!r})\nlibraries.use({RELEASE!r})\n"
        "import made_up\nassert made_up.version == 4"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_a_process_that_has_imported_another_release_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries.install(RELEASE)
    monkeypatch.setitem(sys.modules, "made_up", sys)
    with pytest.raises(ImportError, match="another made_up"):
        libraries.use(RELEASE)


def test_what_pip_cannot_find_is_not_installed() -> None:
    assert not libraries.install("made-up==5.0")
    assert libraries.install(RELEASE)


def test_runs_of_a_release_that_cannot_be_had_are_traced_with_what_is_here_and_said() -> None:
    releases = (RELEASE, "made-up==5.0", "")
    rows = [row(setting=Setting(source="timm", model="net", release=each)) for each in releases]
    kept, missing = with_releases(rows)
    assert [each.setting.release for each in kept] == [RELEASE, "", ""]
    assert missing == ["made-up==5.0"]
