"""What `import autofit` offers, and what it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import autofit


def test_all_names_what_is_public_and_nothing_else_is_there() -> None:
    assert set(autofit.__all__) == {"errors", *autofit._PLACES}
    assert dir(autofit) == sorted(autofit.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'tuen'"):
        _ = autofit.tuen


def test_a_name_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys, autofit\n"
        "before = 'autofit.api' in sys.modules\n"
        "from autofit import Knobs, tune\n"
        "print(before, tune is sys.modules['autofit.api'].tune, autofit.Knobs is Knobs)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "True"]


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
