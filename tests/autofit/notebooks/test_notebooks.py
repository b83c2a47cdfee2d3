"""The example notebook runs cell by cell in IPython, whose shell is what a kernel of Jupyter runs too.

A kernel itself (nbclient, ipykernel) would bring ZeroMQ, a server's loop and a debugger for the same cells.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autofit.events import Noted, Progress, TrialFinished, TrialStarted, ignore
from autofit.notebooks.progress import Bar, notebook_progress
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    Device,
    Evidence,
    Probe,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)

EXAMPLE = Path(__file__).parents[3] / "configs" / "examples" / "sizing.ipynb"


@pytest.fixture
def shell(monkeypatch, tmp_path):
    """IPython's shell of this process, without history or profile; it ends with the test."""
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    # The shell puts a module of its own there, which later tests' processes could not be started from.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    made = interactive.InteractiveShell.instance()
    yield made
    made.history_manager.enabled = False
    made.reset(new_session=False)
    made.restore_sys_module_state()
    interactive.InteractiveShell.clear_instance()


@pytest.mark.process
def test_the_example_runs_and_shows_its_answers(shell, tmp_path, monkeypatch, warm_tracer):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(tmp_path / "state"))
    shown = []
    for cell in json.loads(EXAMPLE.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            assert not cell.get("outputs")
            continue
        done = shell.run_cell("".join(cell["source"]), store_history=False)
        done.raise_error()
        if done.result is not None:
            shown.append(shell.display_formatter.format(done.result)[0])
    estimate, curve, _points, result, written = shown
    assert "likely to reserve" in estimate["text/html"]
    assert "<svg" in curve["text/html"]
    assert "mlp fits at batch" in result["text/html"]
    assert "accelerate.yaml" in written["text/plain"]
    assert (tmp_path / "accelerate.yaml").read_text().startswith("compute_environment: LOCAL_MACHINE\n")


def test_without_ipython_there_is_no_bar():
    with notebook_progress() as emit:
        assert emit is ignore


def test_the_bar_follows_the_stages_and_the_batches(shell, capsys):
    pytest.importorskip("tqdm")
    spec = TrialSpec(workload=WorkloadRef(kind="builtin", target="davenet"), batch_size=94, probe=Probe.CUDA)
    outcome = TrialOutcome(
        verdict=Verdict.OOM,
        evidence=Evidence.MEASURED,
        device=Device(kind="cuda", name="a card"),
        batch_size=94,
        knobs=Knobs(),
    )
    with notebook_progress() as emit:
        assert isinstance(emit, Bar)
        emit(Progress(stage="predicting curves", done=2, total=5))
        emit(TrialStarted(study="s", trial=1, spec=spec, started_seconds=0.0))
        emit(Noted(text="a note"))
        emit(TrialFinished(study="s", trial=1, spec=spec, outcome=outcome))
    said = capsys.readouterr().err
    assert "predicting curves" in said
    assert "batch 94 is running" in said
    assert "a note" in said
    assert "2/5" in said
