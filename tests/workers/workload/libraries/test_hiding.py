"""An optional library that another one cannot use is hidden from it, and from it alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from autofit_workers.workload.libraries.hiding import hidden, holds, unusable

ASKING = """
import functools, importlib.util
@functools.lru_cache
def is_hidable_available():
    if importlib.util.find_spec("hidable") is None:
        return False
    raise ImportError("found an incompatible version of hidable")
"""


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "hidable.py").write_text("class Weight: ...\n")
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("hidable", "asking"):
        sys.modules.pop(name, None)


def raised_by(statement: str) -> ImportError:
    with pytest.raises(ImportError) as found:
        exec(statement, {})
    return found.value


def test_a_name_that_an_installed_library_lacks_is_why_it_cannot_be_used() -> None:
    assert unusable(raised_by("from hidable import quantized"), "asking") == "hidable"


def test_a_library_that_another_one_refuses_is_found_by_the_function_that_looked_for_it() -> None:
    assert unusable(raised_by("import asking; asking.is_hidable_available()"), "asking") == "hidable"


@pytest.mark.parametrize("statement", ["import not_there_at_all", "from asking import nothing"])
def test_other_errors_of_imports_are_not_taken_for_it(statement: str) -> None:
    assert unusable(raised_by(statement), "asking") is None


def test_a_hidden_library_is_not_found_and_nobody_remembers_it() -> None:
    import asking
    import hidable

    raised_by("import asking; asking.is_hidable_available()")
    with hidden("hidable", "asking"):
        assert importlib.util.find_spec("hidable") is None
        assert not asking.is_hidable_available()
    assert sys.modules["hidable"] is hidable
    with pytest.raises(ImportError):
        asking.is_hidable_available()


def test_a_library_that_was_not_imported_can_be_imported_after_it_was_hidden() -> None:
    with hidden("hidable", "asking"):
        raised_by("import hidable")
    assert importlib.import_module("hidable").Weight


def test_a_model_holds_a_library_whose_class_its_weights_or_layers_have() -> None:
    layer = type("Layer", (nn.Linear,), {"__module__": "hidable.layers"})
    weight = type("Weight", (nn.Parameter,), {"__module__": "hidable"})
    plain = nn.Sequential(nn.Linear(2, 2))
    assert not holds(plain, "hidable")
    assert holds(nn.Sequential(layer(2, 2)), "hidable")
    plain[0].weight = weight(torch.empty(2, 2))
    assert holds(plain, "hidable")
