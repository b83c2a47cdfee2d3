"""The package that a Ray worker takes: the driver's own, where the worker sees its folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from autofit.dispatch.ray import _loader
_loader()(sys.argv[1])
import autofit_workers
print(autofit_workers.__file__)
"""


def taken(driver_root: Path) -> Path:
    """The file of the package that a worker has after it was told where the driver's lies."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(driver_root)], check=True, capture_output=True, text=True
    )
    return Path(done.stdout.strip())


@pytest.mark.process
def test_a_worker_takes_the_drivers_package_and_else_the_one_that_is_installed(tmp_path: Path) -> None:
    package = tmp_path / "autofit_workers" / "__init__.py"
    package.parent.mkdir()
    package.touch()
    assert taken(tmp_path) == package
    assert taken(tmp_path / "absent") != package
