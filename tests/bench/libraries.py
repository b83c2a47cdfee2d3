"""Releases of libraries with which runs were made, beside those that are installed.

A model's code takes part in its memory, and it changes: transformers 5 computes T5's attention in one
kernel, transformers 4 kept all scores. What ran has to be traced with the code that ran.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from autofit import paths

# What a release wants that differs from what is installed too.
_WITH = {"transformers==4.51.3": ("huggingface_hub==0.30.2", "tokenizers==0.21.1")}


def install(release: str) -> bool:
    """Puts a release into a folder of its own, unless it is there; whether it could be had."""
    folder = _folder(release)
    if folder.exists():
        return True
    # A whole folder at once: what pip leaves half done has another name.
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade"]
    wanted = [f"--target={unfinished}", release, *_WITH.get(release, ())]
    if subprocess.run([*pip, *wanted], check=False).returncode:
        return False
    unfinished.rename(folder)
    return True


def use(release: str) -> None:
    """Makes this process import a release that was installed; it must not have imported another.

    Raises:
        ImportError: another is imported.
    """
    name, _, version = release.partition("==")
    sys.path.insert(0, str(_folder(release)))
    if name in sys.modules or importlib.metadata.version(name) != version:
        raise ImportError(f"{name} {version} cannot be imported: another release is there")


def _folder(release: str) -> Path:
    return paths.state_dir() / "bench-libraries" / release
