"""Revisions of a real repository: growth is found to its line, and the checkout stays as it is."""

from __future__ import annotations

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from autofit.cli import main
from autofit.errors import UsageError
from autofit.locks.revisions import Repository

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]

MIB = 1024**2
TRAIN = """
import torch
from model import Net
from autofit_workers.workload import Workload


def loss(model, batch):
    return model(batch).square().mean()


def make_batch(batch_size, device):
    return torch.ones(batch_size, 256, device=device)


def workload():
    return Workload(build_model=Net, make_batch=make_batch, loss=loss, optimizer="sgd")
"""
MODEL = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(3))

    def forward(self, rows):
        for layer in self.layers:
            rows = torch.relu(layer(rows))
        return rows
"""
KEPT = MODEL.replace(
    "            rows = torch.relu(layer(rows))\n",
    "            rows = torch.relu(layer(rows))\n            layer.seen = rows.double()\n",
)
RENAMED = MODEL.replace("rows", "hidden").replace("layers", "blocks").replace("Net", "Network")


class Project:
    """Repository with a small model, whose commits are made by hand."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit({"train.py": TRAIN, "model.py": MODEL}, "small")

    def git(self, *words: str) -> str:
        named = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *named, *words], cwd=self.folder, check=True, capture_output=True, text=True
        )
        return done.stdout

    def commit(self, files: dict[str, str], tag: str, *, removed: tuple[str, ...] = ()) -> None:
        for name, text in files.items():
            (self.folder / name).write_text(text)
        for name in removed:
            (self.folder / name).unlink()
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", tag)
        self.git("tag", tag)

    def state(self) -> tuple[str, ...]:
        """All that a diff must leave alone: files, index, stash, branches, worktrees."""
        words = ("status --porcelain", "diff", "diff --cached", "stash list", "worktree list", "for-each-ref")
        return tuple(self.git(*each.split()) for each in words)


@pytest.fixture
def project(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Repository with a small model, in whose folder the test runs."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    made = Project(tmp_path / "project")
    monkeypatch.chdir(made.folder)
    return made


DIFF = ("--model", "train.py:workload", "--batch-size", "4096", "--gpu", "t4", "--quiet")


def test_a_planted_growth_is_found_to_its_line_and_nothing_is_touched(
    project: Project, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project.commit({"model.py": KEPT}, "kept")
    (project.folder / "model.py").write_text(KEPT + "# not committed\n")
    (project.folder / "staged.txt").write_text("staged")
    project.git("add", "staged.txt")
    hook = project.folder / ".git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n")
    hook.chmod(0o755)
    before = project.state()
    assert main(["diff", "--rev", "small..kept", *DIFF, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (one,) = document["configurations"]
    assert one["change"] == "grew"
    largest = one["lines"][0]
    line = KEPT.splitlines().index("            layer.seen = rows.double()") + 1
    assert (largest["file"], largest["line"]) == ("model.py", line)
    assert largest["code"] == "layer.seen = rows.double()"
    assert largest["difference_bytes"] == 3 * 8 * 4096 * 256
    assert project.state() == before
    assert list((tmp_path / "temporary").glob("autofit-*")) == []
    assert not (tmp_path / "hook-ran").exists()


def test_a_renaming_of_everything_changes_nothing(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    train = TRAIN.replace("from model import Net", "from net import Network as Net")
    renamed = {"net.py": RENAMED, "train.py": train}
    project.commit(renamed, "renamed", removed=("model.py",))
    assert main(["diff", "--rev", "small", *DIFF]) == 0
    out = capsys.readouterr().out
    assert "no line holds more or less at the peak" in out
    assert "same" in out


@pytest.mark.parametrize(
    ("files", "code", "says"),
    [
        ({"model.py": "import nothing_of_that_name\n"}, 4, "nothing_of_that_name"),
        ({"other.py": ""}, 2, "train.py"),
    ],
    ids=["import", "missing"],
)
def test_a_revision_that_cannot_be_predicted_is_told_in_a_sentence(
    project: Project,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, str],
    code: int,
    says: str,
) -> None:
    project.commit(files, "broken", removed=("train.py",) if code == 2 else ())
    assert main(["diff", "--rev", "broken..small", *DIFF]) == code
    captured = capsys.readouterr()
    said = captured.err.strip().splitlines()[-1]
    assert said.startswith("error: broken (")
    assert says in said
    assert project.git("worktree", "list").count("\n") == 1


# A process started in the background of a script ignores SIGINT, and so do its children.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from autofit.cli import main
sys.exit(main())
"""


def test_an_interrupted_diff_leaves_no_worktree(project: Project, tmp_path: pathlib.Path) -> None:
    slow = TRAIN.replace("def workload():", "def workload():\n    import time\n    time.sleep(60)")
    project.commit({"train.py": slow}, "slow")
    command = [sys.executable, "-P", "-c", INTERRUPTIBLE, "diff", "--rev", "slow..small", *DIFF]
    temporary = tmp_path / "temporary"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not list(temporary.glob("autofit-revision-*/revision/train.py")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()  # without effect once it has ended
    assert list(temporary.glob("autofit-*")) == []
    assert project.git("worktree", "list").count("\n") == 1


def test_revisions_are_named_as_git_names_them(project: Project) -> None:
    project.git("checkout", "--quiet", "-b", "topic")
    project.commit({"a.txt": "a"}, "on-topic")
    project.git("checkout", "--quiet", "main")
    project.commit({"b.txt": "b"}, "on-main")
    repository = Repository.of(project.folder)
    head, topic, small = (project.git("rev-parse", name).strip() for name in ("main", "topic", "small"))
    before, after = repository.revisions("main..topic")
    assert after is not None
    assert (before.commit, after.commit) == (head, topic)
    left, after = repository.revisions("main...topic")
    assert after is not None
    assert (left.commit, after.commit) == (small, topic)
    assert repository.revisions("topic..")[1] == repository.revision("HEAD")
    assert repository.revisions("topic") == (repository.revision("topic"), None)
    for wrong in ("nope", "--help", "", "main..nope"):
        with pytest.raises(UsageError, match="git knows no revision"):
            repository.revisions(wrong) if wrong else repository.revision(wrong)


def test_a_hooks_variables_name_no_other_repository(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    commit = project.git("rev-parse", "HEAD").strip()
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    assert Repository.of(project.folder).revision("HEAD").commit == commit


def test_a_shallow_clone_is_told_to_fetch(project: Project, tmp_path: pathlib.Path) -> None:
    project.commit({"a.txt": "a"}, "second")
    shallow = tmp_path / "shallow"
    project.git("clone", "--quiet", "--depth=1", project.folder.as_uri(), str(shallow))
    with pytest.raises(UsageError, match=r"git knows no revision 'small': fetch it first, as this clone is"):
        Repository.of(shallow).revisions("small..HEAD")


def test_submodules_and_folders_that_a_revision_lacks_are_told_of(project: Project) -> None:
    project.commit({".gitmodules": '[submodule "lib"]\n\tpath = lib\n\turl = ./lib\n'}, "with-submodules")
    within = project.folder / "new"
    within.mkdir()
    repository = Repository.of(within)
    with repository.checked_out(repository.revision("with-submodules")) as top:
        notes = repository._notes(repository.revision("with-submodules"), top)
        assert (top / "model.py").is_file()
    assert notes == (
        f"submodules are not checked out at {repository.revision('with-submodules').title}: code in them is "
        "missing there",
    )
    with pytest.raises(UsageError, match="has no folder new"):
        repository.predicted_at(repository.revision("small"), ())
