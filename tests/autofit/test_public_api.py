"""What `import autofit` offers, and what it costs."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import types

import pytest

import autofit


def test_all_names_what_is_public() -> None:
    public = {
        name
        for name, value in vars(autofit).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert set(autofit.__all__) == public | {"errors"}
    assert len(set(autofit.__all__)) == len(autofit.__all__)


@pytest.mark.parametrize("name", autofit.__all__)
def test_every_public_name_says_what_it_is_for(name: str) -> None:
    documentation = inspect.getdoc(getattr(autofit, name))
    assert documentation
    assert not documentation.startswith(f"{name}(")  # what a dataclass makes up for itself


def test_the_import_takes_neither_torch_nor_ray_nor_optuna() -> None:
    code = (
        "import sys, autofit, autofit.tuning.tuner\n"
        "print(*sorted({'torch', 'ray', 'optuna', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("former", "now", "name"),
    [
        ("autofit.service.events", "autofit.events", "TrialFinished"),
        ("autofit.service.metrics", "autofit.serve.metrics", "Metrics"),
    ],
)
def test_a_module_that_moved_answers_to_its_former_name_and_says_so(former: str, now: str, name: str) -> None:
    sys.modules.pop(former, None)
    with pytest.warns(DeprecationWarning, match=f"{former} is now {now}"):
        moved = importlib.import_module(former)
    assert getattr(moved, name) is getattr(importlib.import_module(now), name)
