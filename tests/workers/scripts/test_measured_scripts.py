"""Training scripts measured as they are, on the CPU; and what they leave alone."""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path

import pytest

from autofit_workers.scripts.files import KeptFiles
from autofit_workers.spec.protocol import Evidence, Probe, TrialOutcome, TrialSpec, Verdict
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.trials.run import run

PLAIN = Path(__file__).parent / "examples" / "plain.py"
BATCH = 256
GIB = 1024**3

# What it asks for passes the limit, and is not touched where there is none.
_CAREFUL = """
import sys, torch
batch_size = int(sys.argv[2])
try:
    torch.empty(2 * 1024**3, dtype=torch.uint8)
except RuntimeError as error:
    DOES
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(batch_size, 4)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder, with what an earlier run of the script has left in it."""
    shutil.copy(PLAIN, tmp_path / "train.py")
    (tmp_path / "run").mkdir()
    for name in ("run/args.json", "model.pt"):
        (tmp_path / name).write_text("of an earlier run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def measured(script: Script, *, budget_bytes: int | None = None, probe: Probe = Probe.CPU) -> TrialOutcome:
    ref = script.reference()
    return run(TrialSpec(workload=ref, batch_size=BATCH, probe=probe, budget_bytes=budget_bytes))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.process
def test_a_script_is_measured_over_its_steps_and_leaves_its_folder_as_it_was(folder):
    """Four steps of two batches an epoch pass two checkpoints of the script's own."""
    before = contents(folder)
    outcome = measured(Script(path="train.py", arguments=["--out", "new"], batch_variable="BATCH"))
    assert outcome.verdict is Verdict.FITS, outcome.error
    assert outcome.evidence is Evidence.MEASURED_CPU
    assert outcome.num_steps_done == 4
    assert outcome.peaks.device_bytes > 100 * 2**20
    assert outcome.step_seconds > 0
    assert contents(folder) == before
    assert not (folder / "new").exists()


@pytest.mark.process
def test_a_budget_that_the_script_passes_is_out_of_memory(folder):
    outcome = measured(Script(path="train.py", batch_argument="--batch-size="), budget_bytes=GIB // 5)
    assert outcome.verdict is Verdict.OOM, outcome.error


@pytest.mark.process
@pytest.mark.parametrize("does", ["sys.exit('no memory left')", "batch_size //= 2"])
def test_a_script_that_catches_that_memory_ran_out_is_out_of_memory_still(folder, does):
    (folder / "careful.py").write_text(_CAREFUL.replace("DOES", does))
    outcome = measured(Script(path="careful.py", batch_argument="-n"), budget_bytes=GIB)
    assert outcome.verdict is Verdict.OOM, outcome.error
    assert "without the limit the same size completes " in outcome.environment["out_of_memory"]


@pytest.mark.process
def test_a_script_that_exits_says_the_last_line_of_what_it_printed(folder):
    outcome = measured(Script(path="train.py", batch_argument="--bs"))
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error.message == (
        "train.py exited with code 2 after 0 optimizer steps: "
        "train.py: error: unrecognized arguments: --bs 256. Give the script its arguments with --script-arg, "
        "one each: --script-arg --NAME=VALUE"
    )


def test_safetensors_saves_nothing(folder, monkeypatch):
    from importlib.util import find_spec, module_from_spec

    monkeypatch.delitem(sys.modules, "safetensors.torch", raising=False)  # of another test
    with KeptFiles(str(folder), saves=False):
        spec = find_spec("safetensors.torch")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        module.save_file({}, str(folder / "weights.safetensors"))
    assert not (folder / "weights.safetensors").exists()


def test_what_is_written_can_be_read_again_and_is_gone_at_the_end(folder):
    kept = folder / "kept.txt"
    kept.write_text("old")
    with KeptFiles(str(folder), saves=False):
        with kept.open("a") as file:
            file.write(" and new")
        assert kept.read_text() == "old and new"
        (folder / "other.tmp").write_text("moved")
        (folder / "other.tmp").replace(folder / "other.txt")
        assert (folder / "other.txt").read_text() == "moved"
        (folder / "logs" / "deep").mkdir(parents=True)
        with pytest.raises(
            PermissionError, match=r"does not let the script change .*kept\.txt \(os.remove\)"
        ):
            kept.unlink()
        with pytest.raises(FileNotFoundError):
            (folder / "nowhere" / "file.txt").open("w")
    assert kept.read_text() == "old"
    assert not (folder / "other.txt").exists()
    assert not (folder / "logs").exists()
    kept.unlink()


def test_a_file_opened_by_its_descriptor_is_kept_too(folder):
    kept = folder / "kept.txt"
    kept.write_text("old")
    with KeptFiles(str(folder), saves=False):
        file = os.open(kept, os.O_WRONLY | os.O_TRUNC)
        os.write(file, b"new")
        os.close(file)
        assert kept.read_text() == "new"
        with pytest.raises(PermissionError, match=r"does not let the script change .*model\.pt \(open\)"):
            io.FileIO(folder / "model.pt", "w")
        (folder / "done").touch()
        (folder / "done").replace(folder / "moved")
        (folder / "moved").write_text("and written")
    assert kept.read_text() == "old"
    assert not (folder / "done").exists() and not (folder / "moved").exists()


def test_a_file_that_libraries_lock_is_locked(folder):
    lock = folder / ".lock"
    lock.touch()
    with KeptFiles(str(folder), saves=False):
        os.close(os.open(lock, os.O_RDWR | os.O_TRUNC))
    assert lock.exists()


def test_a_script_may_remove_what_it_made_alone(folder):
    (folder / "ckpt-best").mkdir()
    (folder / "ckpt-best" / "model.pt").touch()
    with KeptFiles(str(folder), saves=False):
        (folder / "ckpt").mkdir()
        for name in ("one", "two"):
            (folder / name).write_text(name)
        (folder / "one").unlink()
        assert not (folder / "one").exists()
        (folder / "three").write_text("three")
        assert (folder / "two").read_text() == "two"
        with pytest.raises(PermissionError, match=r"ckpt-best .*rmtree"):
            shutil.rmtree(folder / "ckpt-best")
        shutil.rmtree(folder / "ckpt")
    assert (folder / "ckpt-best" / "model.pt").exists()


def test_what_is_written_in_a_temporary_folder_and_moved_is_gone_at_the_end(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with KeptFiles(str(folder), saves=False):
        for name in ("file", "tree/file"):
            (elsewhere / name).parent.mkdir(exist_ok=True)
            (elsewhere / name).write_text(name)
        shutil.move(elsewhere / "file", folder / "file")
        (folder / "file").chmod(0o600)
        assert (folder / "file").read_text() == "file"
        shutil.move(elsewhere / "tree", folder / "tree")
        assert (folder / "tree" / "file").read_text() == "tree/file"
        (folder / "ckpt.part").mkdir()
        (folder / "ckpt.part" / "model").write_text("model")
        (folder / "ckpt.part").rename(folder / "ckpt")
        assert (folder / "ckpt" / "model").read_text() == "model"
    assert not any((folder / name).exists() for name in ("file", "tree", "ckpt", "ckpt.part"))
