"""Jobs that are signed with the storage's key: what the signature holds together, and what is refused."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from autofit.cli import main
from autofit.errors import StorageError, UsageError
from autofit.jobs import packages
from autofit.jobs.driver import driving
from autofit.jobs.queue import JOBS_STUDY, JobQueue, JobSpec, WorkingDir
from autofit.jobs.signing import Key, key_out_of_environment, storage_key
from autofit.settings.resolve import resolve_settings
from autofit.study.damage import Kind
from tests.conformance.dispatcher import ROOT

SECRET = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
SPEC = JobSpec(
    options={"model": "train.py:workload", "gpu-mem": "16G"},
    workload="train",
    working_dir=WorkingDir(digest="a" * 64, where="working-dir-a"),
)


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = str(tmp_path / "jobs.journal")
    monkeypatch.setenv("AUTOFIT_STORAGE", url)
    return url


@pytest.fixture
def open_queue(storage: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | None], JobQueue]]:
    """Opens the queue as somebody with that key in the environment."""
    opened = []

    def open_one(secret: str | None = SECRET) -> JobQueue:
        if secret is None:
            monkeypatch.delenv("AUTOFIT_STORAGE_KEY", raising=False)
        else:
            monkeypatch.setenv("AUTOFIT_STORAGE_KEY", secret)
        opened.append(JobQueue.open(storage))
        return opened[-1]

    yield open_one
    for queue in opened:
        queue.close()


def stored(queue: JobQueue, job_id: str = "a") -> dict[str, Any]:
    """The attributes of a job as they lie in the storage."""
    return dict(queue._trials()[job_id].user_attrs)


def write(queue: JobQueue, attributes: dict[str, Any], state: TrialState = TrialState.WAITING) -> None:
    """Writes a job as whoever may write the storage can, past the queue."""
    backend = queue.storage.backend
    queue._study(create=True)
    backend.create_new_trial(
        backend.get_study_id_from_name(JOBS_STUDY), create_trial(state=state, user_attrs=attributes)
    )


def forget_all(queue: JobQueue) -> None:
    """Deletes the jobs, as whoever may write the storage can."""
    backend = queue.storage.backend
    backend.delete_study(backend.get_study_id_from_name(JOBS_STUDY))


def refused(queue: JobQueue) -> list[str]:
    """The jobs that a queue refuses, none of which it starts."""
    assert queue.claim_next() is None
    assert {each.kind for each in queue.unreadable} <= {Kind.JOB}
    assert all("is not signed with the key in AUTOFIT_STORAGE_KEY" in each.why for each in queue.unreadable)
    return [each.name for each in queue.unreadable]


Change = Callable[[dict[str, Any]], Any]


def test_a_signed_job_is_shown_and_started(open_queue: Any) -> None:
    job, _ = open_queue().enqueue("a", SPEC)
    assert (job.spec, job.is_signed) == (SPEC, True)
    again = open_queue()
    assert again.records() == [job]
    assert again.claim_next().job_id == "a"


def test_without_a_key_all_is_as_it_was(open_queue: Any) -> None:
    job, _ = open_queue(None).enqueue("a", SPEC)
    assert not job.is_signed
    assert "signature" not in stored(open_queue(None))["job"]
    open_queue().enqueue("b", SPEC)
    assert [record.job_id for record in open_queue(None).records()] == ["a", "b"]


def test_an_unsigned_job_and_one_of_another_key_are_refused(open_queue: Any) -> None:
    open_queue(None).enqueue("unsigned", SPEC)
    open_queue(OTHER).enqueue("forged", SPEC)
    queue = open_queue()
    assert refused(queue) == ["job unsigned", "job forged"]
    with pytest.raises(StorageError, match=r"job unsigned is not signed .* is refused .*--again"):
        queue.record("unsigned")
    with pytest.raises(StorageError, match="job forged is not signed"):
        queue.enqueue("forged", SPEC)
    assert queue.enqueue("forged", SPEC, again=True)[0].job_id == "forged-2"


@pytest.mark.parametrize(
    "change",
    [
        lambda job: job["options"].update(model="/tmp/evil.py:workload"),
        lambda job: job["working_dir"].update(digest="b" * 64),
        lambda job: job["working_dir"].update(digest=None, where="https://evil.example/code.zip"),
        lambda job: job.update(working_dir=None),
        lambda job: job.update(fleet="another"),
        lambda job: job.update(max_drivers=1000),
        lambda job: job.update(submitted_seconds=0.0),
        lambda job: job.update(unknown=True),
        lambda job: job.update(schema=0),
        lambda job: job.pop("signature"),
        lambda job: job.update(signature=None),
        lambda job: job.update(signature=job["signature"].upper()),
        lambda job: job.update(signature="é" * 64),
    ],
)
def test_a_job_that_was_changed_in_any_way_is_not_started(open_queue: Any, change: Change) -> None:
    queue = open_queue()
    queue.enqueue("a", SPEC)
    attributes = stored(queue)
    altered = json.loads(json.dumps(attributes["job"]))
    change(altered)
    forget_all(queue)
    forged = open_queue()
    write(forged, {**attributes, "job": altered})
    assert forged.claim_next() is None
    assert [each.name for each in forged.unreadable] == ["job a"]


def test_a_signed_record_under_another_id_is_refused(open_queue: Any) -> None:
    queue = open_queue()
    queue.enqueue("a", SPEC)
    write(queue, {**stored(queue), "job_id": "b"})
    assert queue.claim_next().job_id == "a"
    assert refused(queue) == ["job b"]


def test_a_record_that_waits_again_runs_what_was_signed_and_nothing_else(open_queue: Any) -> None:
    """A replay repeats a job at most: its state, attempts and answer are not signed."""
    queue = open_queue()
    queue.enqueue("a", SPEC)
    attributes = stored(queue)
    forget_all(queue)
    replayed = open_queue()
    write(replayed, {**attributes, "attempts": [{"submission_id": "x", "started_seconds": 1.0}]})
    claimed = replayed.claim_next()
    assert claimed.spec == SPEC
    assert [attempt.submission_id for attempt in claimed.attempts] == ["a.1"]  # no other's driver


def test_code_that_is_not_the_signed_package_is_not_handed_on(open_queue: Any, tmp_path: Path) -> None:
    queue = open_queue()
    (tmp_path / "train.py").write_text("signed = True")
    package = packages.pack(tmp_path, [tmp_path / "train.py"])
    folder = packages.store(queue.storage, package)
    backend = queue.storage.backend
    study = backend.get_study_id_from_name(folder.where)
    backend.delete_study(study)
    evil = backend.create_new_study([StudyDirection.MAXIMIZE], folder.where)
    swapped = create_trial(value=1.0, user_attrs={"zip_base64": "ZXZpbA=="})
    backend.create_new_trial(evil, swapped)
    with pytest.raises(packages.PackageGoneError):
        packages.load(queue.storage, folder)
    assert packages.store(queue.storage, package) == folder  # whoever submits again mends it
    assert packages.load(queue.storage, folder) == package


def test_a_driver_without_the_key_ends_its_signed_job_and_starts_no_other(
    open_queue: Any, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is not on the head, where every job's code could read it."""
    queue = open_queue()
    queue.enqueue("a", SPEC)
    queue.enqueue("b", SPEC)
    claimed = queue.claim_next()
    monkeypatch.delenv("AUTOFIT_STORAGE_KEY")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # which nobody may ask
    said: list[str] = []
    with (
        pytest.raises(UsageError, match="the search's own"),
        driving(claimed.job_id, storage, warn=said.append),
    ):
        raise UsageError("the search's own")
    assert [job.state for job in queue.records()] == ["failed", "queued"]
    (line,) = said
    assert "AUTOFIT_STORAGE_KEY" in line
    assert "SECURITY.md" in line


def test_a_driver_with_a_key_refuses_a_job_that_was_not_signed(open_queue: Any, storage: str) -> None:
    open_queue(None).enqueue("a", SPEC)
    open_queue()
    with pytest.raises(StorageError, match="is not signed"), driving("a", storage, warn=print):
        pytest.fail("it was driven")


def test_refused_jobs_are_named_by_the_commands(open_queue: Any, capsys: pytest.CaptureFixture[str]) -> None:
    open_queue(None).enqueue("unsigned", SPEC)
    open_queue().enqueue("signed", SPEC)
    assert main(["jobs", "--json"]) == 0
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert [job["job_id"] for job in document["jobs"]] == ["signed"]
    (note,) = document["notes"]
    assert note.startswith("job unsigned is not signed with the key in AUTOFIT_STORAGE_KEY")
    assert told.err == f"note: {note}\n"
    assert main(["status", "unsigned"]) == 5
    assert "job unsigned is not signed" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["jobs", "jobs --json", "status a", "status a --json"])
def test_no_command_prints_the_key_or_a_signature(
    open_queue: Any, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    queue = open_queue()
    queue.enqueue("a", SPEC)
    assert main(command.split()) == 0
    told = "".join(capsys.readouterr())
    assert "a" in told
    assert SECRET not in told
    assert stored(queue)["job"]["signature"] not in told
    assert SECRET not in json.dumps(stored(queue))


def test_a_short_key_is_refused_and_not_repeated(open_queue: Any) -> None:
    with pytest.raises(UsageError, match=r"too short .*openssl rand -hex 32") as caught:
        open_queue("hunter2")
    assert "hunter2" not in caught.value.message


def test_the_key_is_a_known_variable_and_no_setting(open_queue: Any) -> None:
    settings = resolve_settings({"model": "davenet", "gpu_mem": "16G"}, {"AUTOFIT_STORAGE_KEY": SECRET}, None)
    assert SECRET not in repr(settings)


def test_what_a_command_starts_does_not_inherit_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFIT_STORAGE_KEY", SECRET)
    with key_out_of_environment():
        inherited = subprocess.run(
            [sys.executable, "-c", "import os; print(dict(os.environ))"],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        assert SECRET not in inherited.stdout
        key = storage_key()
        assert key is not None
        assert SECRET not in repr(key)
        key.require_signed("a", Key(SECRET).signed("a", {"schema": 1}))
    assert os.environ["AUTOFIT_STORAGE_KEY"] == SECRET


_AUTOFIT = (sys.executable, "-P", "-m", "autofit.cli")
_LOOKS = """
import os
import torch
from autofit_workers.workload import Workload

seen = [name for name, value in os.environ.items() if SECRET in value]
assert not seen, seen
assert os.environ["SHOWN"] == "shown"
net = Workload(
    build_model=lambda: torch.nn.Linear(2, 2),
    make_batch=lambda batch_size, device: torch.ones(batch_size, 2, device=device),
    loss=lambda model, batch: model(batch).sum(),
    optimizer="sgd",
)
"""


def test_a_workload_does_not_see_the_key(tmp_path: Path) -> None:
    (tmp_path / "looks.py").write_text(_LOOKS.replace("SECRET", repr(SECRET)))
    subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "autofit.cli",
            "estimate",
            "--model",
            "looks.py:net",
            "--batch-size",
            "1",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), "AUTOFIT_STORAGE_KEY": SECRET, "SHOWN": "shown"},
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )


def test_a_signature_is_the_documented_one() -> None:
    """As anybody can compute it, so that it stays the same."""
    text = '{"job":{"model":"\\u00e9","schema":1},"job_id":"a"}'
    expected = hmac.new(SECRET.encode(), b"autofit.job/1\0" + text.encode(), hashlib.sha256).hexdigest()
    assert Key(SECRET).signed("a", {"schema": 1, "model": "é"})["signature"] == expected
