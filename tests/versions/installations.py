"""Installs other releases of PyTorch beside this one, without NVIDIA's libraries.

A release is the wheel of PyPI, unpacked; stubs of the libraries that it loads; the small CUDA runtime, which
is called at import; and links to all other packages of this environment, except those that are built for one
release of PyTorch. Nothing is installed into this environment.

For another Python, that Python's wheels are taken, and pip installs the other packages: compiled ones
run with one Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from tests.versions import other_pythons, stub_libraries
from tests.versions.other_pythons import Python

ROOT = Path(__file__).parents[2]
KEPT = platformdirs.user_cache_path("autofit-versions")  # downloads and installations, for the next run
_PACKAGES = Path(sysconfig.get_path("purelib"))
# Packages of this environment that other releases do not take, as they are built for one release.
_OF_ONE_RELEASE = ("torch", "torchgen", "functorch", "torchvision", "torchao", "triton", "nvidia", "autofit")


@dataclass(frozen=True, slots=True)
class Release:
    """Release of PyTorch, with what of PyPI runs with it.

    Attributes:
        version: version of the wheel.
        runtime: requirement of the CUDA runtime.
        torchvision: version of torchvision; None where it has none for this release.
    """

    version: str
    runtime: str
    torchvision: str | None


RELEASES = {
    "2.6": Release("2.6.0", "nvidia-cuda-runtime-cu12==12.4.*", "0.21.0"),
    "2.7": Release("2.7.1", "nvidia-cuda-runtime-cu12==12.6.*", "0.22.1"),
    "2.8": Release("2.8.0", "nvidia-cuda-runtime-cu12==12.8.*", "0.23.0"),
    "2.9": Release("2.9.1", "nvidia-cuda-runtime-cu12==12.8.*", "0.24.1"),
    "2.10": Release("2.10.0", "nvidia-cuda-runtime-cu12==12.8.*", "0.25.0"),
    "2.11": Release("2.11.0", "nvidia-cuda-runtime==13.0.*", "0.26.0"),
    "2.12": Release("2.12.1", "nvidia-cuda-runtime==13.0.*", "0.27.1"),
    "2.14": Release("2.14.1", "nvidia-cuda-runtime==13.0.*", "0.29.1"),
    "2.15": Release("2.15.0", "nvidia-cuda-runtime==13.2.*", None),
}
# The release of this environment, which other Pythons run too.
OWN_RELEASE = "2.13"
WITH_THE_OWN = {**RELEASES, OWN_RELEASE: Release("2.13.0", "nvidia-cuda-runtime==13.0.*", "0.28.0")}


@dataclass(frozen=True, slots=True)
class Installation:
    """Installation of a release, whose Python runs programs.

    Attributes:
        folder: folder that holds all of it.
    """

    folder: Path

    def run(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts this installation's Python with arguments; its output is read by the caller."""
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.folder / "lib"),
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "workers"))),
        }
        python = self.folder / "venv" / "bin" / "python"
        return subprocess.Popen(
            [python, *arguments], env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )


def installed(release: Release, folder: Path, python: Python | None = None) -> Installation:
    """Installation of a release, which is made where `folder` does not hold it yet.

    Args:
        release: what is downloaded from PyPI: about a gigabyte.
        folder: folder for this release's files, 2 GB; with another Python's packages 4 GB.
        python: another Python that runs it; None for the one that runs.

    Raises:
        subprocess.CalledProcessError: pip, or the compiler of the stubs (gcc), fails.
    """
    done = folder / "installed"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        site = folder / "site"
        of_python = () if python is None else ("--python-version", python.version)
        _unpack(f"torch=={release.version}", site, *of_python)
        if release.torchvision is not None:
            _unpack(f"torchvision=={release.torchvision}", site, *of_python)
        (site / "torch" / "bin" / "torch_shm_manager").chmod(0o755)
        if python is None:
            _link_other_packages(site)
        _add_libraries(release, site, folder / "lib")
        _make_environment(folder / "venv", site, sys.executable if python is None else python.path)
        if python is not None:
            other_pythons.install_packages(
                folder / "venv", site, has_torchvision=release.torchvision is not None
            )
        done.touch()
    return Installation(folder)


def _unpack(requirement: str, folder: Path, *of_python: str, only: str = "") -> None:
    """Downloads a wheel and unpacks it, or those of its files whose names end with `only`, into a folder."""
    wheels = folder.parent / "wheels"
    command = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:")
    subprocess.run(
        [*command, *of_python, "-d", str(wheels), requirement],
        env={**os.environ, **other_pythons.PIP},
        check=True,
    )
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if only and member.filename.endswith(only):
                    member.filename = Path(member.filename).name
                    archive.extract(member, folder)
                elif not only and "/include/" not in member.filename:
                    archive.extract(member, folder)
    shutil.rmtree(wheels)


def _link_other_packages(site: Path) -> None:
    for path in _PACKAGES.iterdir():
        first = re.split(r"[-._]", path.name.lstrip("_"))[0].lower()
        is_of_autofit = "autofit" in path.name
        if first not in _OF_ONE_RELEASE and not is_of_autofit and path.suffix != ".pth":
            (site / path.name).symlink_to(path)
    for path in _PACKAGES.glob("nvidia_ml_py*"):  # which reads the driver, and needs no library of CUDA
        (site / path.name).symlink_to(path)


def _add_libraries(release: Release, site: Path, folder: Path) -> None:
    """Puts the CUDA runtime into a folder, and stubs of all other libraries of NVIDIA."""
    folder.mkdir()
    major = "12" if "cu12" in release.runtime else "13"
    runtime = f"libcudart.so.{major}"
    _unpack(release.runtime, folder, only=f"/{runtime}")
    own = [*(site / "torch" / "lib").glob("*.so*"), *(site / "torch").glob("_C*.so")]
    others = list((site / "torchvision").glob("*.so"))
    present = {path.name for path in own} | {runtime}
    needed = stub_libraries.needed_by([*own, *others], present)
    defined = stub_libraries.functions_of([*own, *stub_libraries.of_the_system()])
    stub_libraries.write(needed, defined, folder, numbers={"cudnnGetVersion": _cudnn_version(site)})


def _cudnn_version(site: Path) -> int:
    """Number that `cudnnGetVersion` returns for the cuDNN that the wheel requires, such as 91900."""
    (metadata,) = site.glob("torch-*.dist-info/METADATA")
    found = re.search(r"nvidia-cudnn-cu\d+\s*\(?==(\d+)\.(\d+)\.(\d+)", metadata.read_text(encoding="utf-8"))
    assert found is not None, metadata
    major, minor, patch = map(int, found.groups())
    return 10_000 * major + 100 * minor + patch


def _make_environment(folder: Path, site: Path, python: str) -> None:
    subprocess.run([python, "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "versions.pth").write_text(f"{site}\n", encoding="utf-8")
