"""Who is asked for cuDNN's plans."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autofit.plan_sources import AskedPlans, plan_source
from workers.predict.cudnn import CudnnError
from workers.predict.cudnn_plans import CudnnPlans
from workers.predict.formula_plans import FormulaPlans
from workers.predict.table_plans import TablePlans

needs_libcudnn = pytest.mark.skipif(
    not CudnnPlans.is_available(), reason="needs libcudnn: pip install 'autofit[cudnn]'"
)


@pytest.fixture(autouse=True)
def forgetful():
    """The sources of other tests, and to them those of this one, are unknown."""
    plan_source.cache_clear()
    yield
    plan_source.cache_clear()


@needs_libcudnn
def test_libcudnn_is_asked_where_it_is_installed():
    source = plan_source("sm_80")
    assert source.name.startswith("cuDNN ")
    assert source is plan_source("sm_80")
    assert source is not plan_source("sm_90")


@needs_libcudnn
def test_an_architecture_that_libcudnn_cannot_be_told_of_has_formulas_and_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        assert plan_source("sm_61") == FormulaPlans("sm_61")
    assert "not planned by libcudnn" in caplog.text
    assert "sm_61" in caplog.text


@pytest.mark.parametrize("library", [None, "no library at all"], ids=["absent", "broken"])
def test_without_a_libcudnn_that_works_there_is_the_table(library, tmp_path: Path):
    folder = tmp_path / "nvidia" / "cudnn" / "lib"
    folder.mkdir(parents=True)
    (tmp_path / "nvidia" / "__init__.py").touch()
    if library is not None:
        (folder / "libcudnn.so.9").write_text(library)
    code = "from autofit import plan_sources as p; p.prepare(); print(p.plan_source('sm_80'))"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(TablePlans.for_torch(importlib.metadata.version("torch"), "sm_80"))
    assert ("cannot be loaded" in done.stderr) == (library is not None)


def test_libcudnn_that_fails_later_gives_way_to_the_table(caplog):
    class Failing(FormulaPlans):
        name = "a library"

        def plans(self, calls):
            raise CudnnError("its process died")

    source = AskedPlans(Failing("sm_80"), TablePlans("sm_80"))
    assert source.name == "a library"
    with caplog.at_level(logging.WARNING):
        assert source.plans([]) == []
    assert source.name == TablePlans("sm_80").name
    assert "its process died" in caplog.text
