"""Who is asked for cuDNN's plans."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autofit.predict.plan_sources import (
    AskedPlans,
    offline_plan_source,
    plan_source,
    plan_sources_for,
    prepare,
)
from autofit_workers.replay.plans import cudnn_plans
from autofit_workers.replay.plans.cudnn import CudnnError
from autofit_workers.replay.plans.cudnn_plans import CudnnPlans
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.replay.plans.table_plans import TablePlans
from tests.workers.replay.plan_servers import servers
from tests.workers.replay.plan_tables import CONVOLUTION

needs_libcudnn = pytest.mark.skipif(
    not CudnnPlans.is_available(), reason="needs libcudnn: pip install -c constraints.txt '.[cudnn]'"
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
    assert "libcudnn cannot plan" in caplog.text
    assert "sm_61" in caplog.text


@pytest.mark.parametrize("library", [None, "no library at all"], ids=["absent", "broken"])
def test_without_a_libcudnn_that_works_there_is_the_table(library, tmp_path: Path):
    folder = tmp_path / "nvidia" / "cudnn" / "lib"
    folder.mkdir(parents=True)
    (tmp_path / "nvidia" / "__init__.py").touch()
    if library is not None:
        (folder / "libcudnn.so.9").write_text(library)
    code = (
        "from autofit.predict import plan_sources as p\n"
        "p.prepare('sm_80', None); print(p.plan_source('sm_80').name)"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    table = TablePlans.for_torch(importlib.metadata.version("torch"), "sm_80")
    assert done.stdout.strip() == table.name
    assert ("cannot be loaded" in done.stderr) == (library is not None)


@pytest.mark.parametrize("asked", ["plans", "name"])
def test_libcudnn_that_fails_gives_way_to_the_table_for_good(asked, caplog):
    class Failing(FormulaPlans):
        name = "a library"

        def plans(self, calls):
            raise CudnnError("its process died")

    source = AskedPlans(Failing("sm_80"), TablePlans("sm_80"))
    with caplog.at_level(logging.WARNING):
        source.plans([]) if asked == "plans" else source.name
    assert "its process died" in caplog.text
    assert source.name == TablePlans("sm_80").name
    assert source.knows_the_order


@needs_libcudnn
def test_libcudnns_process_is_prepared_only_where_no_answers_are_known(no_server, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(tmp_path))
    prepare("sm_80", None)
    assert len(servers()) == 1
    asked = plan_source("sm_80")
    plans = asked.plans([CONVOLUTION])
    cudnn_plans._server.close()
    plan_source.cache_clear()
    prepare("sm_80", None)
    assert plan_source("sm_80").plans([CONVOLUTION]) == plans
    assert plan_source("sm_80").name == asked.name
    assert servers() == []


@needs_libcudnn
def test_to_name_a_source_that_libcudnn_may_answer_starts_nothing(no_server):
    assert isinstance(plan_source("sm_80"), AskedPlans)
    assert servers() == []


def test_the_other_cards_that_may_be_meant_are_never_asked_of_libcudnn():
    assert isinstance(offline_plan_source("sm_90"), TablePlans)
    assert offline_plan_source("sm_90") is offline_plan_source("sm_90")


def test_another_release_of_pytorch_has_the_plans_of_its_own_cudnn():
    likely, elsewhere = plan_sources_for("2.6")
    assert likely("sm_80").name == "table of cuDNN 9.8, nearest to 9.1"
    assert elsewhere("sm_80") is likely("sm_80")


@pytest.mark.parametrize("release", [None, "2.12"])
def test_a_release_with_the_same_cudnn_has_the_installed_one_s_plans(release, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "2.13.0+cpu")
    assert plan_sources_for(release) == (plan_source, offline_plan_source)
