"""Without what Linux alone has, every module is imported and predictions have the same numbers.

`lacking/sitecustomize.py` takes it from this machine's Python: a simulation of what macOS lacks, not macOS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

LACKING = Path(__file__).parent / "lacking"
IMPORTS = """
import importlib, pkgutil, sys
import autofit, autofit_workers
assert sys.platform == "darwin"
frameworks = ("composer", "lightning", "transformers")  # whose classes these modules derive from
of_frameworks = [f"autofit.integrations.{name}" for name in frameworks]
for package in (autofit, autofit_workers):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__") and module.name not in of_frameworks:
            importlib.import_module(module.name)
print(len([name for name in sys.modules if name.startswith("autofit")]))
"""
SCRIPT = """
import argparse, os, torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
batch_size = parser.parse_args().batch_size
model = torch.nn.Linear(256, 8).cuda()
optimizer = torch.optim.Adam(model.parameters())
data = TensorDataset(torch.randn(64, 256), torch.randint(8, (64,)))
if __name__ == "__main__":
    for inputs, labels in DataLoader(data, batch_size=batch_size, num_workers=2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs.cuda()), labels.cuda()).backward()
        optimizer.step()
    torch.save(model.state_dict(), os.path.join(os.path.dirname(__file__), "weights.pt"))
"""
ESTIMATE = ("estimate", "--gpu", "rtx-3090", "--json")
ON_WINDOWS = """
import sys
sys.platform = "win32"
from autofit_workers.installation import enter
sys.exit(enter())
"""
OF_MODEL = (*ESTIMATE, "--model", "davenet", "--batch-size", "8")
OF_SCRIPT = (*ESTIMATE, "--script", "train.py", "--batch-arg", "--batch-size", "--batch-size", "4")


def run(folder: Path, *arguments: str, lacking: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs Python in a folder, of which what Linux alone has was taken unless `lacking` is False."""
    state = folder / f"state-{lacking}"
    variables = {**os.environ, "AUTOFIT_STATE_DIR": str(state), "COLUMNS": "80"}
    variables.pop("PYTHONPATH", None)
    if lacking:
        variables["PYTHONPATH"] = str(LACKING)
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def document(folder: Path, *arguments: str, lacking: bool = True) -> dict:
    done = run(folder, "-m", "autofit.cli", *arguments, lacking=lacking)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_every_module_is_imported(tmp_path: Path):
    done = run(tmp_path, "-c", IMPORTS)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 700


def test_a_model_has_the_same_numbers(tmp_path: Path):
    assert document(tmp_path, *OF_MODEL) == document(tmp_path, *OF_MODEL, lacking=False)


def test_a_script_has_the_same_numbers_and_what_is_not_kept_is_said(tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    here, there = document(tmp_path, *OF_SCRIPT), document(tmp_path, *OF_SCRIPT, lacking=False)
    assert not (tmp_path / "weights.pt").exists()
    (note,) = here.pop("notes")
    assert there.pop("notes") == []
    assert here.pop("trace_digest") != there.pop("trace_digest")  # the trace has the note
    assert here == there
    assert "macOS has neither namespaces, Landlock nor seccomp" in note


def test_doctor_says_that_nobody_ran_it_and_what_is_missing(tmp_path: Path):
    checks = {check["name"]: check for check in document(tmp_path, "doctor", "--json")["checks"]}
    warned = {name for name, check in checks.items() if check["status"] != "ok"}
    assert warned == {"platform", "isolation", "measuring on the CPU"}
    assert checks["platform"]["detail"].startswith("macOS arm64: nobody ran autofit here")
    assert checks["prediction"]["status"] == "ok"


def test_measuring_on_the_cpu_is_refused_in_a_sentence(tmp_path: Path):
    done = run(tmp_path, "-m", "autofit.cli", "tune", "davenet", "--device", "cpu", "--gpu-mem", "2G")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: this machine cannot measure on the CPU, as macOS limits no process's"
    )


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_on_windows_each_command_names_wsl_and_ends(tmp_path: Path, form: tuple[str, ...]):
    done = run(tmp_path, "-c", ON_WINDOWS, "tune", "davenet", *form, lacking=False)
    told = json.loads(done.stdout)["message"] if form else done.stderr.removeprefix("error: ").strip()
    assert done.returncode == 2
    assert told.startswith("autofit does not run on Windows itself: run it in WSL")
