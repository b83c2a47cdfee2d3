"""Where torch and nothing else is installed, `autofit_workers` measures all the same."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import autofit_workers
from autofit_workers.spec.protocol import Probe, TrialSpec, WorkloadRef
from autofit_workers.spec.pythons import arguments_for

FAULTY = Path(__file__).parents[1] / "faults" / "faulty.py"
DRIVER = """
import importlib.util, sys
from autofit_workers.trials.run import run
from autofit_workers.spec.protocol import TrialSpec
for name in ("numpy", "click", "optuna", "ray", "psutil", "prometheus_client", "autofit", "pynvml"):
    assert importlib.util.find_spec(name) is None, name
print(run(TrialSpec.from_json(sys.argv[1])).to_json())
"""


def distributions_of(name: str, seen: set[str]) -> Iterator[importlib.metadata.Distribution]:
    """A distribution and whatever of its requirements is installed, without its extras."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in seen:
        return
    seen.add(key)
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return  # a requirement of other platforms
    yield distribution
    for requirement in distribution.requires or ():
        if "extra ==" not in requirement:
            yield from distributions_of(re.match(r"[\w.-]+", requirement).group(), seen)


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """An environment's interpreter that has this environment's torch, and `autofit_workers`."""
    folder = tmp_path_factory.mktemp("torch-alone")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in distributions_of("torch", set()):
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            # Several share folders such as `nvidia`, which is there as a whole then.
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))
    shutil.copytree(
        autofit_workers.__path__[0], site / "autofit_workers", ignore=shutil.ignore_patterns("__pycache__")
    )
    return folder / "bin" / "python"


@pytest.mark.process
def test_a_trial_runs_where_torch_alone_is_installed(python, tmp_path):
    workload = WorkloadRef(kind="file", target=f"{shutil.copy(FAULTY, tmp_path)}:healthy")
    spec = TrialSpec(workload=workload, batch_size=2, probe=Probe.CPU, num_threads=1, budget_bytes=2**31)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, *arguments_for(DRIVER), spec.to_json()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert (outcome["verdict"], outcome["num_steps_done"]) == ("FITS", 4), outcome
    assert outcome["steady"]["allocated_bytes"] > 0
    assert "checkpoint_bytes" in outcome["environment"]
