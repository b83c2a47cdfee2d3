"""Notes of which models have traces that are kept, found without importing what predicts.

By them the command line decides whether to start the process that traces while it is still importing. A note
may be out of date, as the user's files may have changed: the process is then started when a trace is needed.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

from autofit import paths
from autofit.errors import StorageError


def note(target: str, *, with_calls: bool) -> None:
    """Notes that traces of a workload are kept.

    Args:
        target: name of a built-in or library's model, import path, or absolute path of a file with attribute.
        with_calls: whether the traces list the operators that ran, as `autofit profile` needs it.
    """
    paths.keep(paths.kept_dir, _name(target, with_calls=with_calls), lambda: "")


def is_any_known(words: Iterable[str], *, with_calls: bool) -> bool:
    """Whether traces are kept of a workload that one of the words of a command names.

    Args:
        words: arguments of the command, such as `davenet`, `--model=davenet` or `train_setup.py:workload`.
        with_calls: as for `note`.
    """
    try:
        folder = paths.kept_path()
        names = (word.rpartition("=")[2] for word in words)
        targets = (target for name in names for target in (name, str(Path(name).absolute())))
        return any((folder / _name(target, with_calls=with_calls)).exists() for target in targets)
    except (OSError, ValueError, StorageError):  # no file can have such a name, or there is no folder
        return False


def _name(target: str, *, with_calls: bool) -> str:
    key = f"{sys.prefix}\0{target}\0{with_calls}"
    return f"known-{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()[:40]}"
