"""The Dockerfile, as far as it can be followed without Docker.

Its `pip install` is the README's first command with the driver of PostgreSQL; CI runs that one with all
its dependencies in a fresh environment. Here the same line is run on nothing but what the file copies,
without them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.deploy.places import DEPLOY, ROOT

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
# https://pytorch.org/get-started/previous-versions: whl/cpu, whl/cu126, whl/cu128, whl/cu130, …
PYTORCH_INDEX = re.compile(r"https://download\.pytorch\.org/whl/(?:cpu|cu\d{3})")


def instructions() -> list[tuple[str, str]]:
    """The instructions with their arguments, comments left out and continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines if line.strip()]


def of(name: str) -> list[str]:
    return [argument for instruction, argument in instructions() if instruction == name]


def pip_line() -> str:
    (line,) = [command for command in of("RUN") if "pip install" in command]
    return line


def copied() -> list[str]:
    return [source for argument in of("COPY") for source in argument.split()[:-1]]


def test_pip_is_given_the_pins_and_what_the_readme_installs() -> None:
    _, index, *command = shlex.split("_ " + pip_line())
    readme = re.search(r"pip install -c constraints\.txt \.(?= )", (ROOT / "README.md").read_text("utf-8"))
    assert readme is not None
    assert command == ["pip", "install", "--no-cache-dir", "-c", "constraints.txt", ".[postgres]"]
    assert [word for word in command if word != "--no-cache-dir"] == shlex.split(
        f"{readme.group()}[postgres]"
    )
    assert index.startswith("PIP_EXTRA_INDEX_URL=")


def test_builds_of_pytorch_come_from_its_own_index() -> None:
    _, _, address = shlex.split(pip_line())[0].partition("=")
    built = re.findall(r"--build-arg TORCH=(\S+)", DOCKERFILE.read_text(encoding="utf-8"))
    assert of("ARG") == ["TORCH=cpu"]
    assert built
    for build in ("cpu", *built):
        assert PYTORCH_INDEX.fullmatch(address.replace("$TORCH", build))


def test_every_dependency_has_a_pin() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needed = re.search(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    extra = re.search(r"^postgres = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert needed is not None
    assert extra is not None
    for name in re.findall(r'^  "([\w.-]+)', needed.group(1) + extra.group(1), re.MULTILINE):
        pattern = re.escape(name).replace(r"\-", "[-_]")
        assert re.search(f"^{pattern}==", pins, re.MULTILINE), name


def test_what_is_copied_is_there_and_not_kept_from_docker() -> None:
    let_in = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    for source in copied():
        assert (ROOT / source).exists()
        assert f"!{source}" in let_in
    assert let_in[0] == "*"


def test_the_image_serves_as_a_user_without_rights_and_is_watched() -> None:
    names = [name for name, _ in instructions()]
    assert of("USER") == ["autofit"]
    assert names.index("USER") > names.index("RUN")
    (command,) = of("CMD")
    assert command == '["autofit", "serve", "--host", "0.0.0.0"]'
    (check,), (port,) = of("HEALTHCHECK"), of("EXPOSE")
    assert f"http://127.0.0.1:{port}/healthz" in check
    assert "wget" in check
    assert any("install" in run and "wget" in run for run in of("RUN"))


@pytest.mark.process
def test_what_is_copied_is_enough_to_install(tmp_path: Path) -> None:
    tree, environment = tmp_path / "tree", tmp_path / "venv"
    tree.mkdir()
    for source in copied():
        path = ROOT / source
        if path.is_dir():
            shutil.copytree(path, tree / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, tree / source)
    venv.create(environment, with_pip=True)
    line = pip_line().replace("pip install", "pip install --no-deps --quiet --retries=0")
    # The index of PyTorch's builds has nothing that this line, without dependencies, would ask it for.
    line = re.sub(r"^PIP_EXTRA_INDEX_URL=\S+ ", "", line)
    installed = subprocess.run(
        ["bash", "-euc", line],
        cwd=tree,
        env={
            **os.environ,
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if "hatchling" in installed.stderr and "No matching distribution" in installed.stderr:
        pytest.skip("no package index answers, which building a package needs")
    assert installed.returncode == 0, installed.stderr
    library = (
        environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    )
    for package in (ROOT / "autofit", ROOT / "workers" / "autofit_workers"):
        there = {path.relative_to(library) for path in (library / package.name).rglob("*") if path.is_file()}
        wanted = {path.relative_to(package.parent) for path in package.rglob("*") if path.is_file()}
        assert {path for path in wanted - there if "__pycache__" not in path.parts} == set()
    assert (environment / "bin" / "autofit").exists()
