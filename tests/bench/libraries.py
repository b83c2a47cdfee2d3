"""Releases of libraries with which runs were made, beside those that are installed.

A model's code takes part in its memory, and it changes: transformers 5 computes T5's attention in one
kernel, transformers 4 kept all scores. What ran has to be traced with the code that ran.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

from autofit import paths

# What a release wants that differs from what is installed too.
_WITH = {
    "transformers==4.38.1": ("huggingface_hub==0.20.3", "tokenizers==0.15.2"),
    "transformers==4.51.3": ("huggingface_hub==0.30.2", "tokenizers==0.21.1"),
}


def install(release: str) -> bool:
    """Puts a release into a folder of its own, unless it is there; whether it could be had."""
    folder = _folder(release)
    if folder.exists():
        return True
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as unfinished:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", f"--target={unfinished}/done"]
        if subprocess.run([*pip, release, *_WITH.get(release, ())], check=False).returncode:
            return False
        # A whole folder at once; another bench may have been first.
        with contextlib.suppress(OSError):
            Path(unfinished, "done").rename(folder)
    return folder.exists()


def use(release: str) -> None:
    """Makes this process import a release that was installed; it must not have imported another.

    Raises:
        ImportError: another is imported.
    """
    folder = _folder(release)
    if str(folder) in sys.path:
        return
    imported = sorted({each.name for each in folder.iterdir()} & sys.modules.keys())
    if imported:
        raise ImportError(f"{release} cannot be used: another {imported[0]} is imported already")
    sys.path.insert(0, str(folder))


def _folder(release: str) -> Path:
    return paths.state_dir() / "bench-libraries" / "+".join((release, *_WITH.get(release, ())))
