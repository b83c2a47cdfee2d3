"""Revisions of a project: each is checked out into a folder of its own, and predicted there by a process.

    git worktree add ─▶ temporary folder ─▶ python in it ─▶ peaks with all holders ─▶ worktree removed

The user's checkout, index and stash are not touched: a worktree has its own. Hooks do not run, and content of
Git LFS is not fetched. The worktree and its folder are removed however the block ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autofit.errors import InfrastructureError, UsageError
from autofit.locks.apart import predict_apart
from autofit.locks.configurations import Configuration
from autofit.locks.holders import is_of_libraries
from autofit.locks.lock_file import LockedConfiguration

_TWO_DOTS, _THREE_DOTS = "..", "..."
_NUM_DIGITS = 10  # of a commit's identifier, as it is shown
_FOLDER_OF_COMMIT = "revision"
_OWN_SETTINGS = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
_MOST_MESSAGE = 300
_FATAL = "fatal: "
_OF_HOOKS = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_DIR",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_WORK_TREE",
    }
)


@dataclass(frozen=True, slots=True)
class Revision:
    """Commit of a repository, with the name that the user gave it.

    Attributes:
        name: the name, such as `main`.
        commit: the whole identifier.
    """

    name: str
    commit: str

    @property
    def title(self) -> str:
        """Name with the beginning of the identifier: `main (0123456789)`."""
        short = self.commit[:_NUM_DIGITS]
        return short if self.commit.startswith(self.name) else f"{self.name} ({short})"


@dataclass(frozen=True, slots=True)
class Repository:
    """Repository of git in which a folder of the user's lies.

    Attributes:
        git: path of the command git.
        root: top of the user's working tree.
        within: the user's folder, relative to it.
    """

    git: str
    root: Path
    within: Path

    @classmethod
    def of(cls, folder: Path) -> Repository:
        """Repository of a folder.

        Raises:
            UsageError: git is not installed, or the folder lies in no working tree.
        """
        git = shutil.which("git")
        if git is None:
            raise UsageError("git is not installed: install it, or compare two locks or saved profiles")
        found = _run(git, folder, "rev-parse", "--show-toplevel")
        if found.returncode or not found.stdout.strip():
            raise UsageError(
                f"{folder} lies in no working tree that git may use ({_message(found)}): --rev compares the "
                "revisions of one"
            )
        root = Path(found.stdout.rstrip("\n")).resolve()
        return cls(git, root, folder.resolve().relative_to(root))

    def revision(self, name: str) -> Revision:
        """Revision of a name, such as `HEAD~2`, `v1.0` or `0123abc`.

        Raises:
            UsageError: there is none.
        """
        wanted = f"{name}^{{commit}}"
        found = _run(self.git, self.root, "rev-parse", "--verify", "--quiet", "--end-of-options", wanted)
        if found.returncode or not name:
            raise UsageError(f"git knows no revision {name!r}: {self._where_to_look()}")
        return Revision(name, found.stdout.strip())

    def revisions(self, text: str) -> tuple[Revision, Revision | None]:
        """Revisions before and after, from a text such as `main..HEAD`; None for the working tree.

        `main...HEAD` begins where HEAD left main, as a pull request is shown. `main` alone is compared with
        the working tree, changes that are not committed included.

        Raises:
            UsageError: git does not know one of them.
        """
        if _THREE_DOTS in text:
            before, after = (name or "HEAD" for name in text.split(_THREE_DOTS, 1))
            ends = self.revision(before), self.revision(after)
            found = _run(self.git, self.root, "merge-base", ends[0].commit, ends[1].commit)
            if found.returncode:
                raise UsageError(
                    f"{before} and {after} have no common beginning: write {before}..{after}, or "
                    f"{self._where_to_look()}"
                )
            return Revision(f"where {after} left {before}", found.stdout.strip()), ends[1]
        if _TWO_DOTS in text:
            before, after = (name or "HEAD" for name in text.split(_TWO_DOTS, 1))
            return self.revision(before), self.revision(after)
        return self.revision(text), None

    def _where_to_look(self) -> str:
        """Clause on where a revision that is missing may be."""
        if _run(self.git, self.root, "rev-parse", "--is-shallow-repository").stdout.strip() == "true":
            return "fetch it first, as this clone is shallow (`git fetch --unshallow`)"
        return "look at `git log --all`"

    @contextlib.contextmanager
    def checked_out(self, revision: Revision) -> Iterator[Path]:
        """Temporary folder with a worktree of a revision, which is removed however the block ends.

        Raises:
            InfrastructureError: git cannot check it out.
        """
        with tempfile.TemporaryDirectory(prefix="autofit-revision-", ignore_cleanup_errors=True) as temporary:
            folder = Path(temporary).resolve() / _FOLDER_OF_COMMIT
            try:
                words = ("worktree", "add", "--quiet", "--detach", str(folder), revision.commit)
                made = _run(self.git, self.root, *words)
                if made.returncode:
                    raise InfrastructureError(
                        f"git cannot check {revision.title} out ({_message(made)}): try `git worktree add`"
                    )
                yield folder
            finally:
                if _run(self.git, self.root, "worktree", "remove", "--force", str(folder)).returncode:
                    shutil.rmtree(folder, ignore_errors=True)
                    _run(self.git, self.root, "worktree", "prune")

    def predicted_at(
        self, revision: Revision, wanted: Sequence[Configuration]
    ) -> tuple[tuple[LockedConfiguration, ...], tuple[str, ...]]:
        """Predicted memory of configurations at a revision, with all holders, and notes on it.

        Args:
            revision: the revision.
            wanted: the configurations; files that they name are those of the revision.

        Raises:
            AutofitError: the revision cannot be checked out, or a configuration cannot be predicted at it.
        """
        with self.checked_out(revision) as top:
            folder = top / self.within
            if not folder.is_dir():
                raise UsageError(f"{revision.title} has no folder {self.within.as_posix()}: run it elsewhere")
            found = predict_apart(
                wanted,
                folder,
                state_dir=top.parent / "state",
                variables=self._variables(top),
                checkout=self.root,
                what=revision.title,
            )
            return found, self._notes(revision, top)

    def _variables(self, top: Path) -> dict[str, str]:
        """Environment of a process that predicts a revision.

        Folders of the checkout that Python imports from, as an editable installation adds them, stand first
        with their counterparts in the worktree.
        """
        given = _without_gits(os.environ)
        mapped = [
            str(top / Path(folder).relative_to(self.root))
            for folder in sys.path
            if folder and Path(folder).is_relative_to(self.root) and not is_of_libraries(Path(folder))
        ]
        paths = [*mapped, *filter(None, given.get("PYTHONPATH", "").split(os.pathsep))]
        return {**given, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}

    def _notes(self, revision: Revision, top: Path) -> tuple[str, ...]:
        if not (top / ".gitmodules").is_file():
            return ()
        return (f"submodules are not checked out at {revision.title}: code in them is missing there",)


def _without_gits(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment without the variables by which git names a repository to its hooks."""
    return {name: value for name, value in variables.items() if name not in _OF_HOOKS}


def _run(git: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = {**_without_gits(os.environ), "GIT_LFS_SKIP_SMUDGE": "1", "GIT_TERMINAL_PROMPT": "0"}
    return subprocess.run(  # noqa: S603 - the words are ours, and names of revisions are checked by git
        [git, *_OWN_SETTINGS, *words],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _message(finished: subprocess.CompletedProcess[str]) -> str:
    """Line with which git says why it failed, without the full stop."""
    lines = [line for line in finished.stderr.splitlines() if line.strip()] or ["it gives no reason"]
    line = next((line for line in lines if line.startswith(_FATAL)), lines[-1])
    return line.removeprefix(_FATAL).rstrip(".")[:_MOST_MESSAGE]
