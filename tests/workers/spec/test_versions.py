from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from autofit_workers.spec.pythons import read_toml
from autofit_workers.spec.versions import (
    CUDNN_OF_WHEELS,
    SUPPORTED_RELEASES,
    is_supported,
    release_of,
    supported_releases,
    wheel_for,
)


@pytest.mark.parametrize(
    ("version", "release"), [("2.13.0+cpu", "2.13"), ("2.15.0", "2.15"), ("2.9.1.dev3", "2.9")]
)
def test_a_release_is_the_first_two_parts_of_a_version(version: str, release: str) -> None:
    assert release_of(version) == release


def test_what_is_no_version_is_refused() -> None:
    with pytest.raises(ValueError, match="main"):
        release_of("main")


def test_patches_and_builds_of_a_supported_release_are_supported() -> None:
    assert is_supported("2.13.0+cpu")
    assert is_supported("2.15.1")
    assert not is_supported("2.16.0")
    assert supported_releases() == "2.6 to 2.15"


def test_the_installed_release_is_supported_and_every_supported_one_has_a_wheel() -> None:
    assert is_supported(importlib.metadata.version("torch"))
    assert set(SUPPORTED_RELEASES) <= CUDNN_OF_WHEELS.keys()


def test_the_wheels_are_those_of_the_releases_that_may_be_installed() -> None:
    project = read_toml((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    assert "torch>=2.6,<2.17" in project["project"]["dependencies"]
    assert list(CUDNN_OF_WHEELS) == [f"2.{minor}" for minor in range(6, 16)]


@pytest.mark.parametrize(
    ("capability", "version", "install"),
    [(61, "2.13.0+cpu", "install 2.13 from"), (70, "2.15.0", "install a release up to 2.14 from")],
)
def test_cards_before_turing_need_a_wheel_that_is_named(capability: int, version: str, install: str) -> None:
    said = wheel_for(capability, version)
    assert said is not None
    assert install in said
    assert f"compute capability {capability / 10};" in said
    assert wheel_for(75, version) is None
