"""Which files of the user's a process has used; each test in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from autofit_workers.process.sources import content_digest, is_installed

ROOT = Path(__file__).parents[3]


def used_by(folder: Path, program: str) -> dict[str, str]:
    """What a program reports of itself that watches from its first line on, by the names of the files."""
    (folder / "main.py").write_text(
        f"import sys, json\nsys.path[:0] = [{str(ROOT)!r}, {str(folder)!r}]\n"
        "from autofit_workers.process.sources import used_files, watch\nwatch()\n"
        f"{program}\nprint(json.dumps(used_files()))\n"
    )
    done = subprocess.run(
        [sys.executable, folder / "main.py"], check=True, capture_output=True, text=True, cwd=folder
    )
    used: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert all(Path(path).parent == folder for path in used), used
    return {Path(path).name: digest for path, digest in used.items()}


def test_modules_and_files_that_were_read_are_reported_with_what_they_held(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text("import json\n")
    (tmp_path / "width.txt").write_text("8")
    used = used_by(tmp_path, "import layers\nopen('width.txt').read()\nopen('out.txt', 'w').write('x')")
    assert used == {name: content_digest(tmp_path / name) for name in ("main.py", "layers.py", "width.txt")}


def test_a_module_is_reported_as_it_was_loaded_and_a_file_as_it_was_last_read(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text("a = 1\n")
    (tmp_path / "width.txt").write_text("8")
    loaded = content_digest(tmp_path / "layers.py")
    used = used_by(
        tmp_path,
        "import layers, pathlib\npathlib.Path('width.txt').read_text()\nused_files()\n"
        "pathlib.Path('layers.py').write_text('a = 2')\npathlib.Path('width.txt').write_text('16')\n"
        "pathlib.Path('width.txt').read_text()\npathlib.Path('layers.py').read_text()",
    )
    assert used["layers.py"] == loaded
    assert used["width.txt"] == content_digest(tmp_path / "width.txt")


def test_installed_files_are_not_the_users() -> None:
    assert is_installed(json.__file__)
    assert is_installed("/home/me/.local/lib/python3.12/site-packages/timm/layers.py")
    assert not is_installed("/home/me/nets/layers.py")


def test_of_a_very_large_file_size_and_time_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    with path.open("wb") as file:
        file.truncate(65 * 1024**2)
    digest = content_digest(path)
    assert digest is not None
    assert digest.startswith(f"{65 * 1024**2} bytes of ")
