"""Surroundings that decide an answer besides its question: variables, packages and autofit's own code."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path

import autofit_workers
from autofit.identity import fingerprint
from autofit_workers.process.boundary.variables import public

_OWN_PACKAGES = (Path(__file__).parent, Path(autofit_workers.__path__[0]))
_OWN_SUFFIXES = (".py", ".toml", ".gz", ".c")  # of autofit's code and tables

# Environment variables that differ between two terminals of one machine, or are autofit's own.
_TERMINAL_NAMES = (
    r"_|(OLD)?PWD|SHLVL|COLUMNS|LINES|(COLOR)?TERM.*|LS_COLORS|(NO|FORCE|CLI)_COLOR.*|PS[1-4]|HIST\w+|LESS\w*|PAGER"
    r"|WINDOWID|TMUX\w*|STY|INVOCATION_ID|JOURNAL_STREAM|WT_SESSION"
    r"|(AUTOFIT|SSH|VSCODE|PYTEST|ITERM|KITTY|KONSOLE)_\w+"
)
_OF_TERMINALS = re.compile(_TERMINAL_NAMES)
# And those of users, sessions and schedulers, which differ between two equal questions on two machines. All
# others may decide an answer: libraries and users' code read what they like.
_NOT_READ = re.compile(
    _TERMINAL_NAMES + r"|.*PWD|EDITOR|VISUAL|SHELL|USER|USERNAME|LOGNAME|MAIL|HOME|HOSTNAME|TMPDIR|DISPLAY|CI"
    r"|SESSION_MANAGER|JOB_ID|PATH|MANPATH|VIRTUAL_ENV\w*"
    r"|(RAY|SLURM|PBS|LSB|KUBERNETES|GITHUB|GITLAB|XDG|DBUS|WAYLAND|GNOME|KDE|CONDA|PYENV|SGE|OMPI|PMI|PMIX)_\w+"
    r"|\w+_(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+_\w+)"  # of services, in a Kubernetes pod
)


def environment(kept_variables: Collection[str], *, with_secrets: bool, on_this_machine: bool = False) -> str:
    """Digest of the environment variables that may decide an answer.

    A predicted workload does not get variables that hold secrets, unless the user keeps them.

    Args:
        kept_variables: names of variables that predicted workloads get although they may hold secrets.
        with_secrets: whether to include all variables, as measured trials get them.
        on_this_machine: whether the digest is only compared on this machine; then variables such as `HOME`
            and `CI` are included.
    """
    left_out = _OF_TERMINALS if on_this_machine else _NOT_READ
    read = {name: value for name, value in os.environ.items() if not left_out.fullmatch(name)}
    return fingerprint(read if with_secrets else public(read, kept_variables))


def installed_packages() -> str:
    """Digest of the packages that can be imported here, with their versions.

    A package that was installed from a folder, a repository or an address, as by `pip install .`, may change
    at one version: its files count too.
    """
    folders = (Path(folder).absolute() for folder in sys.path if folder)
    # An installation changes the folder, so the digest needs to be found once for each of its states.
    return _packages_in(tuple((folder, folder.stat().st_mtime_ns) for folder in folders if folder.is_dir()))


@functools.lru_cache(maxsize=4)
def _packages_in(states: tuple[tuple[Path, int], ...]) -> str:
    """Digest of the packages in some folders, each given with the time when it last changed."""
    folders = {folder for folder, _ in states}
    # Packages that another package brings along, as Ray does once it is imported, count with its version.
    installed = {folder for folder in folders if folder.name in ("site-packages", "dist-packages")}
    packages = sorted(
        (entry.name, _own_files_of(Path(entry.path)))
        for folder in folders
        if not installed.intersection(folder.parents)
        for entry in os.scandir(folder)
        if entry.name.endswith((".dist-info", ".egg-info"))
    )
    return hashlib.sha256("\n".join(map("".join, packages)).encode()).hexdigest()


def _own_files_of(metadata: Path) -> str:
    """Names and digests of the code files of a package that comes from no index; else empty.

    Args:
        metadata: the package's `.dist-info` folder.
    """
    if not (metadata / "direct_url.json").exists():
        return ""
    try:
        lines = (metadata / "RECORD").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    return "\n".join(sorted(line for line in lines if line.partition(",")[0].endswith((".py", ".so"))))


def own_code() -> str:
    """Digest of autofit's own code and tables, which may change in a work tree at one version number."""
    digest = hashlib.sha256()
    for package in _OWN_PACKAGES:
        for path in sorted(package.rglob("*")):
            if path.suffix in _OWN_SUFFIXES:
                digest.update(f"{path.relative_to(package.parent)}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def own_files() -> str:
    """Digest of the names, sizes and times of change of autofit's code and tables, whose content is not read.

    It takes a sixth of the time of `own_code`, and differs between two installations of the same code.
    """
    found = (
        (entry.path, status.st_size, status.st_mtime_ns)
        for package in _OWN_PACKAGES
        for folder, _, _ in os.walk(package)
        for entry in os.scandir(folder)
        if entry.name.endswith(_OWN_SUFFIXES) and (status := entry.stat())
    )
    return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()
