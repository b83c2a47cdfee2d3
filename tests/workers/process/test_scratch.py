"""The folder of a child goes with it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from autofit_workers.process.scratch import Scratch, _sweep

ROOT = Path(__file__).parents[3]


def test_the_folder_of_a_command_that_was_killed_goes_with_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "autofit-script-of-others").mkdir()
    code = (
        "import os, signal; from autofit_workers.process.scratch import Notes, Scratch; scratch = Scratch(); "
        f"notes = Notes(scratch.folder); notes.made({str(tmp_path / 'made')!r}); "
        f"os.mkdir({str(tmp_path / 'made')!r}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT / "workers")}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 3
    living = Scratch()
    _sweep.cache_clear()
    other = Scratch()
    kept = {Path(living.folder).name, Path(other.folder).name, "autofit-script-of-others"}
    assert {each.name for each in tmp_path.iterdir()} == kept
    for each in (living, other):
        each.remove()
    assert [each.name for each in tmp_path.iterdir()] == ["autofit-script-of-others"]
