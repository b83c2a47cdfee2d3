"""Other Pythons than the one that runs: where they are, and their packages beside PyTorch.

PyPI has wheels of PyTorch for some Pythons: up to 2.14 for 3.10, of all releases for 3.11 to 3.13, and since
2.9 for 3.14. Ray 2.60 has wheels for all of these. autofit is run with 3.10 to 3.13; 3.14 is unverified.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from autofit_workers.spec.pythons import read_toml

ROOT = Path(__file__).parents[2]
# PyPI serves no cap on releases here, whatever this machine's configuration of pip says.
PIP = {"PIP_CONFIG_FILE": os.devnull, "PIP_CONSTRAINT": "", "PIP_FIND_LINKS": ""}
# The release of PyTorch that each of the other Pythons is run with: an old one, the tests' and the newest.
RELEASE_OF = {"3.10": "2.8", "3.12": "2.13", "3.13": "2.15"}
# Extras whose packages the cases and the tests import.
_EXTRAS = ("models", "eight-bit", "finetune", "test")
# Installed with PyTorch itself; not needed by what is run; or without wheels.
_LEFT_OUT = ("torch", "torchvision", "autofit-gpu", "timm")


@dataclass(frozen=True, slots=True)
class Python:
    """Interpreter that is installed on this machine.

    Attributes:
        path: its program.
        version: first two parts of its version, such as `3.10`.
    """

    path: str
    version: str


def found(name: str) -> Python | None:
    """Interpreter by its version (`3.10`), looked for on PATH, or by its path; None if there is none."""
    path = shutil.which(f"python{name}" if re.fullmatch(r"\d+\.\d+", name) else name)
    if path is None:
        return None
    program = "import sys; print('{}.{}'.format(*sys.version_info))"
    done = subprocess.run([path, "-c", program], capture_output=True, text=True, check=False)
    return Python(path, done.stdout.strip()) if done.returncode == 0 else None


def requirements() -> list[str]:
    """Requirements of the project and of its tests, without PyTorch and what depends on its release."""
    project = read_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *(each for name in _EXTRAS for each in extras[name])]
    return [each for each in listed if re.split(r"[^\w-]", each)[0] not in _LEFT_OUT]


def install_packages(environment: Path, site: Path, *, has_torchvision: bool) -> None:
    """Installs the project's requirements into an environment that has PyTorch, without NVIDIA's libraries.

    Args:
        environment: the virtual environment, on whose path `site` is.
        site: folder that holds PyTorch, which from now on requires none of NVIDIA's libraries.
        has_torchvision: whether `site` holds torchvision, which timm requires; else timm is installed alone.

    Raises:
        subprocess.CalledProcessError: pip fails.
    """
    (metadata,) = site.glob("torch-*.dist-info/METADATA")
    lines = metadata.read_text(encoding="utf-8").splitlines(keepends=True)
    of_cuda = re.compile(r"Requires-Dist: (nvidia|cuda|triton)")
    metadata.write_text("".join(line for line in lines if not of_cuda.match(line)), encoding="utf-8")
    version = metadata.parent.name.removeprefix("torch-").removesuffix(".dist-info")
    python = environment / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-compile"]
    for more in (requirements(), ["timm"] if has_torchvision else ["--no-deps", "timm"]):
        subprocess.run([*command, f"torch=={version}", *more], env={**os.environ, **PIP}, check=True)
