"""Scripts where there are no namespaces: what Python tells of them is all that keeps them from anything."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autofit_workers.spec.trace import UNPROTECTED

ROOT = Path(__file__).parents[3]


_PREDICT = """
import json, sys
from autofit_workers.spec.protocol import Probe, TrialSpec
from autofit_workers.trials.run import run
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.spec.setup import Setup
if __name__ == "__main__":
    path, setup, deadline = json.loads(sys.argv[1])
    outcome = run(TrialSpec(
        workload=Script(path=path).reference(), batch_size=8, probe=Probe.PREDICT,
        setup=Setup(**setup), deadline_seconds=deadline))
    print(outcome.to_json())
"""
_STEPS = """
import torch
model = torch.nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8, num_workers=2)
for x in loader:
    optimizer.zero_grad(); model(x.cuda()).sum().backward(); optimizer.step()
"""


def _without_namespaces() -> list[str]:
    """What starts a command that can make no namespaces; nothing where none can be made anyway."""
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return command


@pytest.fixture
def predict(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Predicts a script of these lines before some steps, in `users/`, with `temporary/`; its outcome."""
    users, temporary = tmp_path / "users", tmp_path / "temporary"
    for each in (users, temporary):
        each.mkdir()

    def predicted(*lines: str, deadline: float = 120.0, **setup: Any) -> dict[str, Any]:
        path = users / "train.py"
        path.write_text(textwrap.dedent("\n".join(lines)) + _STEPS)
        environment = {
            **os.environ,
            "TMPDIR": str(temporary),
            "PYTHONPATH": f"{ROOT / 'workers'}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        said = subprocess.run(
            [
                *_without_namespaces(),
                sys.executable,
                "-c",
                _PREDICT,
                json.dumps([str(path), setup, deadline]),
            ],
            cwd=users,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        outcome: dict[str, Any] = json.loads(said)
        if outcome["trace_json"]:
            notes = json.loads(outcome["trace_json"])["notes"]
            assert any(note.startswith(UNPROTECTED) for note in notes), notes
        return outcome

    return predicted


@pytest.mark.process
def test_nothing_of_a_script_takes_effect_to_its_last_thread(predict, tmp_path):
    users = tmp_path / "users"
    (users / "settings.json").write_text("{}")
    (users / "model.pt").write_text("of an earlier run")
    (tmp_path / "temporary" / "old").write_text("old")
    before = {each.name: each.read_bytes() for each in users.iterdir()}
    outcome = predict(
        """
        import atexit, json, os, pathlib, tempfile, threading, weakref
        tempfile.mkdtemp()
        json.load(open("settings.json"))
        json.dump({"changed": 1}, open("settings.json", "w"))
        pathlib.Path("../temporary/old").write_text("new")
        os.makedirs("made/deep")
        class Kept:
            def __del__(self):
                open("model.pt", "w").close()
        kept, watched = Kept(), Kept()
        weakref.finalize(watched, lambda: open("of_finalize", "w").close())
        atexit.register(lambda: (open("model.pt", "w").close(), os.remove("settings.json")))
        atexit.register(lambda: os.system("touch of_exit"))
        def write():
            while True:
                open("model.pt", "w").close()
                os.close(os.open("of_thread", os.O_CREAT | os.O_WRONLY))
        threading.Thread(target=write).start()
        threading.Thread(target=write, daemon=True).start()
        """
    )
    assert outcome["verdict"] == "TRACED", outcome["error"]
    after = {each.name: each.read_bytes() for each in users.iterdir()}
    assert after.pop("train.py")
    assert after == before
    assert (tmp_path / "temporary" / "old").read_text() == "old"
    assert [each.name for each in (tmp_path / "temporary").iterdir()] == ["old"]
    assert outcome["sources"][str(users / "settings.json")] == hashlib.sha256(b"{}").hexdigest()


@pytest.mark.process
def test_processes_and_connections_of_a_script_are_refused_unless_they_are_allowed(predict, tmp_path):
    lines = """
        import os, socket, subprocess
        assert subprocess.check_output("uname -s", shell=True)
        open("written", "w").close()
        subprocess.run(["touch", "of_a_process"], check=True)
        """
    refused = predict(lines)
    assert "(touch of_a_process)" in refused["error"]["message"]
    assert "--allow-subprocesses" in refused["error"]["message"]
    allowed = predict(lines, allows_subprocesses=True)
    assert allowed["verdict"] == "TRACED", allowed["error"]
    assert "other processes" in " ".join(json.loads(allowed["trace_json"])["notes"])
    assert (tmp_path / "users" / "of_a_process").exists()
    offline = predict("import socket; socket.create_connection(('192.0.2.1', 80), 1)")
    assert "connect to 192.0.2.1:80" in offline["error"]["message"]


@pytest.mark.process
def test_a_script_that_is_killed_leaves_nothing(predict, tmp_path):
    outcome = predict("import os, time", "os.makedirs('made/deep'); time.sleep(600)", deadline=15.0)
    assert outcome["verdict"] == "TIMEOUT"
    assert [each.name for each in (tmp_path / "users").iterdir()] == ["train.py"]
    assert not list((tmp_path / "temporary").glob("autofit-*"))
