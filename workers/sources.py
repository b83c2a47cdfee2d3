"""Which of a user's own source files a process has loaded, and what was in them."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from pathlib import Path

_WORKERS = f"{Path(__file__).parent}/"
_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
# A user's own installations, and Debian's, lie elsewhere.
_PACKAGES = ("/site-packages/", "/dist-packages/")

_digests: dict[str, str] = {}


def is_installed(path: str) -> bool:
    """Whether a file is Python's own or of an installed package, rather than the user's."""
    return path.startswith(_INSTALLED) or any(folder in path for folder in _PACKAGES)


def loaded_sources() -> dict[str, str]:
    """The files of all modules that are loaded, neither installed nor of `workers`: path → SHA-256.

    A file is read when it is first seen here: what is changed later was not what ran.
    """
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    for file in files - _digests.keys():
        if isinstance(file, str) and not is_installed(file) and not file.startswith(_WORKERS):
            path = Path(file).absolute()
            if path.is_file():
                _digests[file] = hashlib.sha256(path.read_bytes()).hexdigest()
    return {str(Path(file).absolute()): digest for file, digest in _digests.items()}
