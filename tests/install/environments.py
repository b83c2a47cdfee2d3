"""Environments that autofit is installed into, and a user's folder whose modules have names like ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
KINDS = ("wheel", "editable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment with autofit and, from this process's environment, what it requires.

    Attributes:
        folder: where it is.
        kind: `wheel` or `editable`.
    """

    folder: Path
    kind: str

    @property
    def site(self) -> Path:
        """Its folder of packages."""
        return next(self.folder.glob("lib/python*/site-packages"))

    def run(self, program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment as a user's shell would: no variable tells it of the checkout."""
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [str(self.folder / "bin" / program), *arguments],
            cwd=cwd,
            env={
                **variables,
                "PATH": f"{self.folder / 'bin'}{os.pathsep}{variables['PATH']}",
                "COLUMNS": "80",
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def pip(self, *arguments: str) -> None:
        """Runs this process's pip on the environment, without a package index."""
        command = [sys.executable, "-m", "pip", "--python", str(self.folder / "bin" / "python")]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def environment(folder: Path, kind: str) -> Environment:
    """Makes an environment with autofit as a wheel, or as an editable installation of the checkout."""
    venv.create(folder, symlinks=True)
    made = Environment(folder=folder, kind=kind)
    # Files of this kind are read in the environment's own folder alone, so no editable installation of this
    # process's environment comes along. Its name is read before that of an editable installation, which needs
    # a package from there.
    (made.site / "0-requirements.pth").write_text(sysconfig.get_path("purelib"))
    editable = ["--editable"] if kind == "editable" else []
    made.pip("install", "-q", "--no-index", "--no-deps", "--no-build-isolation", *editable, str(ROOT))
    return made


def project(folder: Path) -> Path:
    """Makes a user's folder with modules that are called as folders of this repository, and the examples."""
    examples = ROOT / "configs" / "examples"
    for source in sorted(path for path in examples.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        target = folder / source.relative_to(examples)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    for module, line in (
        ("workers.py", "NUM_WORKERS = 0"),
        ("utils.py", "WIDTH = 16"),
        ("tests/__init__.py", "SEED = 3"),
        ("deploy/__init__.py", "NAME = 'mine'"),
    ):
        (folder / module).parent.mkdir(exist_ok=True)
        (folder / module).write_text(f"{line}\n")
    (folder / "beside.py").write_text(_SCRIPT)
    (folder / "beside_setup.py").write_text(_SETUP)
    return folder


def document(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    """The JSON that a command printed."""
    assert done.returncode == 0, done.stderr
    read: dict[str, object] = json.loads(done.stdout)
    return read


_SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import deploy
from tests import SEED
from utils import WIDTH
from workers import NUM_WORKERS

torch.manual_seed(SEED)
assert deploy.NAME == "mine"
model = nn.Linear(WIDTH, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, WIDTH), torch.randint(4, (64,)))
for rows, labels in DataLoader(data, batch_size=8, num_workers=NUM_WORKERS):
    loss = nn.functional.cross_entropy(model(rows.cuda()), labels.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_SETUP = """
import torch
from torch import nn

import autofit
from tests import SEED
from utils import WIDTH
from workers import NUM_WORKERS


def make_batch(n, gpu):
    torch.manual_seed(SEED + NUM_WORKERS)
    return torch.randn(n, WIDTH, device=gpu), torch.randint(4, (n,), device=gpu)


workload = autofit.Workload(
    build_model=lambda: nn.Linear(WIDTH, 4),
    make_batch=make_batch,
    loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
)
"""
