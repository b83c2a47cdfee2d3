"""Packages that are not installed, and found all the same."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator

import pytest

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.tracing.kernels.stand_ins.finder import StandIn, StandInFinder

STAND_IN = StandIn(
    package="not_installed",
    distribution="not-installed",
    version="1.2.3",
    modules={
        "not_installed": "autofit_workers.tracing.kernels.stand_ins.flash_attn2",
        "not_installed.padding": "autofit_workers.tracing.kernels.stand_ins.flash_attn2_padding",
    },
)


@pytest.fixture
def finder() -> Iterator[StandInFinder]:
    found = StandInFinder()
    found.offer(STAND_IN)
    yield found
    found.withdraw()


@pytest.mark.usefixtures("finder")
def test_a_package_is_found_with_its_modules_and_its_version() -> None:
    package = importlib.import_module("not_installed")
    padding = importlib.import_module("not_installed.padding")
    assert (package.__version__, callable(package.flash_attn_func)) == ("1.2.3", True)
    assert callable(padding.pad_input)
    assert STAND_IN.is_installed
    assert importlib.metadata.version("not_installed") == "1.2.3"
    assert importlib.metadata.packages_distributions()["not_installed"] == ["not-installed"]


@pytest.mark.usefixtures("finder")
def test_a_module_of_it_that_nothing_stands_in_for_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_installed.layers")


def test_withdrawn_it_is_as_if_it_had_never_been(finder: StandInFinder) -> None:
    importlib.import_module("not_installed")
    finder.withdraw()
    assert importlib.util.find_spec("not_installed") is None
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("not_installed")


def test_an_installed_release_that_calls_no_operators_is_refused() -> None:
    old = StandIn(package="torch", distribution="torch", version="0.0.1", modules={}, oldest=(99, 0))
    with pytest.raises(UnsupportedError, match=r"whose calls are no operators .*: install 99.0 or newer"):
        old.require_followed()
    STAND_IN.require_followed()  # it is not there


def test_an_installed_package_goes_before(finder: StandInFinder) -> None:
    finder.offer(StandIn(package="torch", distribution="torch", version="0.0.1", modules={}))
    assert importlib.metadata.version("torch") != "0.0.1"
    assert importlib.util.find_spec("torch.nn") is not None
