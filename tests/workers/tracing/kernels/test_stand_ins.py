"""Packages that are not installed, and found all the same."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import runpy
import sys
from collections.abc import Iterator

import pytest

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.tracing.kernels.stand_ins import hub_kernels
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


@pytest.mark.parametrize(
    ("lines", "is_there"),
    [
        (("import not_installed",), True),
        (("from not_installed import flash_attn_func",), True),
        (("def late():", "    import not_installed", "late()"), True),
        (("try:", "    import not_installed", "except ImportError:", "    raise OSError"), False),
        (
            ("from contextlib import suppress", "with suppress(ImportError):", "    import not_installed"),
            False,
        ),
        (("import importlib.util", "assert importlib.util.find_spec('not_installed')"), False),
    ],
    ids=["import", "from", "in a function", "within try", "within suppress", "looked for"],
)
def test_a_package_that_a_program_cannot_do_without_is_found(lines, is_there, tmp_path, monkeypatch):
    finder = StandInFinder((STAND_IN,))
    path = tmp_path / "needs_it.py"
    path.write_text("\n".join(lines) + "\n")
    (tmp_path / "main.py").write_text("import needs_it\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with contextlib.suppress(ImportError, OSError, AssertionError):
            runpy.run_path(str(tmp_path / "main.py"))
        assert (STAND_IN.package in finder.offered) is is_there
    finally:
        finder.withdraw()
        sys.meta_path.remove(finder)
        sys.modules.pop("needs_it", None)


def test_known_kernels_of_the_hub_are_replaced_and_others_refused() -> None:
    module = hub_kernels.get_kernel("kernels-community/flash-attn3", version=1)
    assert module.flash_attn_func is module.flash_attn_interface.flash_attn_func
    assert hub_kernels.has_kernel("varunneal/flash-attention-3")
    (note,) = hub_kernels.notes()
    assert "kernels of kernels-community/flash-attn3 are not loaded here" in note
    with pytest.raises(UnsupportedError, match=r"compiled kernels of someone/relu, and what they allocate"):
        hub_kernels.get_kernel("someone/relu")
    hub_kernels.begin_program()
    assert hub_kernels.notes() == ()
