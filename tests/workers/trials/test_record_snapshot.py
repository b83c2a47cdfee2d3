"""The recorder of memory snapshots: what it writes and says, with the card's part faked by its door."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch

from autofit_workers.replay.snapshots.files import open_snapshot, read_snapshots
from autofit_workers.spec.protocol import Probe, TrialSpec, WorkloadRef
from autofit_workers.trials import record
from autofit_workers.trials.record_snapshot import Recorder, record_snapshot
from tests.workers.replay.snapshots.made_up import MIB, MadeUp, frame

SPEC = TrialSpec(
    workload=WorkloadRef(kind="builtin", target="gpt2"), batch_size=4, probe=Probe.CUDA, num_steps=3
)


def test_a_snapshot_and_its_configuration_are_written_and_it_is_said_what_to_send(tmp_path: Path) -> None:
    done: list[object] = []
    made = MadeUp()
    made.alloc(0, 3 * MIB, frame("/me/net.py:4"))

    def run(spec: TrialSpec) -> dict[str, object]:
        done.append(spec)
        return {"steady": {"reserved_bytes": 100 * MIB}}

    recorder = Recorder(begin=lambda: done.append("begun"), run=run, snapshot=made.document)
    path = tmp_path / "run.pickle"
    said = record_snapshot(
        path, SPEC, {"workload": "gpt2", "batch_size": 4}, {"name": "NVIDIA A10G"}, recorder
    )
    assert done == ["begun", SPEC]
    (found,) = read_snapshots(open_snapshot(path)).values()
    assert [event.size for event in found.events] == [100 * MIB, 3 * MIB]
    row = json.loads((tmp_path / "run.pickle.json").read_text())
    assert row["schema"] == "autofit.ground-truth/1"
    assert (row["kind"], row["workload"], row["device"]["name"]) == ("snapshot", "gpt2", "NVIDIA A10G")
    assert row["steady"]["reserved_bytes"] == 100 * MIB
    assert "send both files" in said
    assert f"--snapshot {path} --model gpt2 --batch-size 4" in said
    assert pickle.loads(path.read_bytes()) == made.document()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name one of --out"),
        (["--out", "a", "--snapshot", "b"], "name one of --out"),
        (["--snapshot", "b"], "is of one model"),
        (["--snapshot", "b", "--models", "gpt2", "--batch-size", "0"], "1 or more"),
        (["--out", "a", "--batch-size", "4"], "--batch-size is that of --snapshot"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record.main(arguments) == record.EXIT_USAGE
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.pickle"
    assert record.main(["--snapshot", str(path), "--models", "gpt2"]) == record.EXIT_NO_DEVICE
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "finds no CUDA device" in told
    assert not path.exists()
