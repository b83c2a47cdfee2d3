"""The commands about jobs, as far as the storage alone answers them; no cluster is asked."""

from __future__ import annotations

import functools
import http.server
import json
import shlex
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from autofit.jobs.queue import JOBS_STUDY, JobQueue
from autofit.jobs.records import JobSpec, packed
from autofit.jobs.submission import entrypoint, job_options, storage_for_driver
from tests.commands import Finished
from tests.job_server import job_server

Autofit = Callable[..., Finished]
LENGTHS = Path(__file__).parents[3] / "data" / "lengths.txt"

BEST = {"batch_size": 86, "knobs": {"conv_algo": "cudnn"}, "evidence": "predicted"}
ANSWER = {"schema": "autofit.tune/1", "best": BEST}
NOTHING = {"schema": "autofit.tune/1", "best": None}
ERROR = {"schema": "autofit.error/1", "kind": "workload", "message": "typo in forward", "exit_code": 4}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("AUTOFIT_STORAGE", str(tmp_path / "jobs.journal"))


@pytest.fixture
def queue(clean_environment: None, tmp_path: Path) -> Iterator[JobQueue]:
    with JobQueue.open(str(tmp_path / "jobs.journal")) as opened:
        yield opened


@pytest.fixture
def add(queue: JobQueue) -> Callable[..., None]:
    """Adds a job, which is over where a document is given."""

    def add_one(
        job_id: str,
        document: dict[str, Any] | None = None,
        *,
        gpu: str | None = None,
        fleet: str | None = None,
    ) -> None:
        spec = JobSpec(
            options={"model": "davenet", "gpu-mem": "16G"}, workload="davenet", gpu=gpu, fleet=fleet
        )
        queue.enqueue(job_id, spec)
        if document is not None:
            claimed = queue.claim_next()
            assert claimed is not None
            queue.finish(queue.record_attempt(claimed, f"{job_id}.1"), document)

    return add_one


def test_jobs_are_listed_with_their_answers(autofit: Autofit, add: Callable[..., None]) -> None:
    add("davenet-16g-1", ANSWER)
    add("davenet-16g-2", ERROR)
    add("davenet-16g-3", NOTHING)
    add("davenet-16g-4")
    lines = autofit("jobs").out.splitlines()
    assert lines[1].split()[:5] == ["davenet-16g-1", "succeeded", "86", "cudnn", "predicted"]
    assert lines[2].split()[:3] == ["davenet-16g-2", "failed", "–"]
    assert lines[2].rstrip().endswith("typo in forward")
    assert lines[3].split()[:3] == ["davenet-16g-3", "succeeded", "none"]
    assert lines[4].split()[:3] == ["davenet-16g-4", "queued", "–"]
    document = autofit("jobs", "--json").document
    assert document["schema"] == "autofit.jobs/1"
    assert [job["exit_code"] for job in document["jobs"]] == [0, 4, 3, None]


def test_a_result_is_what_its_tune_said(
    autofit: Autofit, add: Callable[..., None], results: types.SimpleNamespace
) -> None:
    found, nothing = results.answer(), results.nothing_fits()
    add("a", found.to_dict())
    add("b", nothing.to_dict())
    for job, answer in (("a", found), ("b", nothing)):
        tune = functools.partial(
            autofit, "tune", "--model=davenet", "--gpu-mem=16G", tune=lambda *_, answer=answer: answer
        )
        assert autofit("result", job) == tune()
        assert autofit("result", job, "--json").document == tune("--json").document


def test_an_answer_of_another_autofit_is_shown_as_it_is(autofit: Autofit, add: Callable[..., None]) -> None:
    add("a", ANSWER)
    assert autofit("result", "a", "--json").document == ANSWER
    refused = autofit("result", "a")
    assert (refused.code, "add --json" in refused.err) == (5, True)


def test_a_failed_job_fails_as_its_tune_did(autofit: Autofit, add: Callable[..., None]) -> None:
    add("a", ERROR)
    assert autofit("result", "a") == Finished(4, "", "error: typo in forward\n")
    failed = autofit("result", "a", "--json")
    assert (failed.code, failed.document) == (4, ERROR)
    assert autofit("wait", "a").code == 4


def test_what_is_not_over_has_no_result(autofit: Autofit, add: Callable[..., None]) -> None:
    add("a")
    pending = autofit("result", "a")
    assert (pending.code, pending.err) == (5, "error: a is queued: wait for it with `autofit wait a`\n")
    timed_out = autofit("wait", "a", "--timeout", "0.01")
    assert (timed_out.code, "not over after 0.01 s: 1 queued" in timed_out.err) == (5, True)
    assert "no driver was started for it" in autofit("logs", "a").err


@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.FAIL])
def test_a_recorded_result_is_the_answer_once_the_job_is_over(
    autofit: Autofit, add: Callable[..., None], queue: JobQueue, state: TrialState
) -> None:
    add("a")
    assert queue.claim_next() is not None
    backend = queue.storage.backend
    [trial] = optuna.load_study(study_name=JOBS_STUDY, storage=backend).trials
    backend.set_trial_user_attr(trial._trial_id, "packed_result", packed(ANSWER))
    if state.is_finished():
        backend.set_trial_state_values(trial._trial_id, state)
    result, listed = autofit("result", "a", "--json"), autofit("jobs", "--json").document["jobs"][0]
    if state.is_finished():
        assert (result.code, result.document) == (0, ANSWER)
        assert (listed["exit_code"], listed["best_batch"]) == (0, 86)
        assert "answer     batch 86" in autofit("status", "a").out
    else:
        assert (result.code, result.document["kind"]) == (5, "not-over")
        assert "a is running: wait for it" in result.document["message"]
        assert (listed["exit_code"], listed["best_batch"]) == (None, None)


def test_a_fleet_is_answered_by_one_table(autofit: Autofit, add: Callable[..., None]) -> None:
    add("t4-job", ANSWER, gpu="t4", fleet="davenet-fleet-1")
    add("h200-job", gpu="h200", fleet="davenet-fleet-1")
    table = autofit("result", "davenet-fleet-1")
    assert table.code == 5
    assert [line.split()[:2] for line in table.out.splitlines()[1:]] == [["t4", "86"], ["h200", "–"]]
    document = autofit("result", "davenet-fleet-1", "--json").document
    assert [(card["gpu"], card["result"]) for card in document["cards"]] == [("t4", ANSWER), ("h200", None)]
    assert "is a fleet: name one of its jobs, t4-job, h200-job" in autofit("logs", "davenet-fleet-1").err


def test_all_about_one_job_is_told(autofit: Autofit, add: Callable[..., None]) -> None:
    add("a", ANSWER)
    told = autofit("status", "a").out
    assert "a is succeeded" in told
    assert "--model=davenet --gpu-mem=16G" in told
    assert "a.1" in told
    assert "batch 86, cudnn, predicted" in told


@pytest.mark.parametrize("command", ["status", "logs", "stop", "result", "wait"])
def test_a_job_that_does_not_exist_is_named_with_those_like_it(
    autofit: Autofit, add: Callable[..., None], command: str
) -> None:
    add("davenet-16g-0123")
    unknown = autofit(command, "davenet-16g-0124")
    assert unknown.code == 2
    assert "no job or fleet 'davenet-16g-0124'. Did you mean davenet-16g-0123?" in unknown.err


def test_a_queued_job_is_stopped_without_a_cluster(autofit: Autofit, add: Callable[..., None]) -> None:
    add("a")
    assert autofit("stop", "a").out == "a is stopped\n"
    assert autofit("stop", "a").out == "a was over already: stopped\n"
    assert autofit("result", "a").code == 130


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpu-mem=16G",), "which cluster?"),
        (("--gpu-mem=16G", "--address=http://127.0.0.1:1"), "nobody answers at http://127.0.0.1:1"),
        (("--gpu-mem=16G", "--address=head:x"), "is not a Ray address"),
        (("--address=http://127.0.0.1:1",), "name one with --gpu, such as rtx-3090, or give --gpu-mem"),
        (("--gpu=all", "--address=http://127.0.0.1:1"), "name those of the cluster"),
        (
            ("--gpu-mem=16G", "--address=http://127.0.0.1:1", f"--lengths={LENGTHS}"),
            "--lengths reads a file of this machine",
        ),
        (("--gpu=t4,h1000", "--address=http://127.0.0.1:1"), "Did you mean h100-80g?"),
        (
            ("--gpu=t4,h200", "--study=mine", "--address=http://127.0.0.1:1"),
            "card of a fleet has its own",
        ),
        (
            ("--gpu-mem=16G", "--address=http://127.0.0.1:1", "--storage=postgresql://me:secret@db/x"),
            "contains a password",
        ),
        (
            ("--gpu-mem=16G", "--address=http://127.0.0.1:1", "--working-dir=https://me:secret@host/x.zip"),
            "contains a password or token",
        ),
    ],
)
def test_a_submission_that_cannot_be_is_refused_and_nothing_queued(
    autofit: Autofit, queue: JobQueue, arguments: tuple[str, ...], said: str
) -> None:
    refused = autofit("submit", "--model=davenet", *arguments)
    assert (refused.code in (2, 5), said in refused.err) == (True, True), refused.err
    assert "secret" not in refused.err
    assert queue.records() == []


@pytest.mark.parametrize(
    ("model", "has_folder", "said"),
    [
        ("train.py:workload", False, "give its folder with --working-dir"),
        ("hf:other/config.json", False, "give its folder with --working-dir"),
        ("hf:other", True, "is not in the working directory"),
        ("trian.py:workload", True, "Did you mean train.py?"),
        ("../elsewhere.py:workload", True, "is not in the working directory"),
        ("davenett", False, "no built-in workload 'davenett'"),
    ],
)
def test_a_workload_that_the_cluster_would_not_find_is_refused_here(
    autofit: Autofit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    model: str,
    has_folder: bool,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("project/train.py", "elsewhere.py", "other/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    folder = (f"--working-dir={tmp_path / 'project'}",) if has_folder else ()
    submit = ("submit", f"--model={model}", "--gpu-mem=16G", "--address=http://127.0.0.1:1")
    refused = autofit(*submit, *folder)
    assert (refused.code, said in refused.err) == (2, True), refused.err


def test_what_runs_the_trials_of_a_job_is_its_cluster_whatever_is_said_here() -> None:
    given = {"dispatch": "inline", "address": "auto", "gpu-mem": "16G"}
    assert job_options(given) == {"gpu-mem": "16G"}


LINES = """
# a comment, and an empty line

davenet --gpu-mem 16G
{"model": "resnet50", "gpu": ["t4", "rtx-3090"], "max-batch": 64, "fresh": true}
davenet --gpu-mem "16G"  # the same as the first
"""


def test_a_batch_is_many_jobs_each_once(
    autofit: Autofit, queue: JobQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text(LINES)
    with job_server() as address:
        submit = ("submit", f"--batch={file}", "--margin=5%", f"--address={address}", "--json")
        document = autofit(*submit).document
        again = autofit(*submit).document
    assert (document["schema"], document["job_id"], document["fleet"]) == ("autofit.submit/1", None, None)
    jobs = document["jobs"]
    assert [job["line"] for job in jobs] == [4, 5, 5, 6]
    assert [job["is_new"] for job in jobs] == [True, True, True, False]
    assert [job["gpu"] for job in jobs] == [None, "t4", "rtx-3090", None]
    assert jobs[0]["job_id"] == jobs[3]["job_id"]
    assert (jobs[0]["fleet"], jobs[1]["fleet"]) == (None, jobs[2]["fleet"])
    queued = queue.records()
    assert [job.job_id for job in queued] == [job["job_id"] for job in jobs[:3]]
    assert [job.spec.options["margin"] for job in queued] == ["5%"] * 3
    assert (queued[1].spec.options["max-batch"], queued[1].spec.options["fresh"]) == ("64", "true")
    assert [job["is_new"] for job in again["jobs"]] == [False] * 4
    assert len(queue.records()) == 3


def test_a_batch_prints_a_name_for_each_line(autofit: Autofit, tmp_path: Path) -> None:
    (tmp_path / "jobs.txt").write_text(LINES)
    with job_server() as address:
        done = autofit("submit", f"--batch={tmp_path / 'jobs.txt'}", f"--address={address}")
    job, fleet = done.out.split()
    assert (job[:12], fleet[:15], done.code) == ("davenet-16g-", "resnet50-fleet-", 0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("davenet --gpu t5", "line 2: --gpu: no card named 't5'"),
        ("davenet --gpu-mem 16G --nope", "line 2: No such option '--nope'"),
        ("davenet", "line 2: a job does not use this machine's card"),
        ("davenett --gpu t4", "line 2: there is no built-in workload 'davenett'"),
        ('davenet --gpu "t4', "line 2: a quotation mark is not closed"),
        ('{"model": "davenet"', "line 2: it is no JSON object in one line"),
        ('{"model": {"a": 1}}', "line 2: the value of 'model' is no text"),
        ("davenet --gpu t4 --storage x.journal", "line 2: --storage is the same for all jobs"),
        ("davenet --model alexnet --gpu t4", "line 2: two models are named"),
        ("--help", "line 2: it asks for help"),
    ],
)
def test_of_a_batch_with_a_wrong_line_nothing_is_submitted(
    autofit: Autofit, queue: JobQueue, tmp_path: Path, line: str, said: str
) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text(f"davenet --gpu-mem 16G\n{line}\n")
    with job_server() as address:
        refused = autofit("submit", f"--batch={file}", f"--address={address}")
    assert (refused.code, refused.out) == (2, "")
    assert f"{file}, {said}" in refused.err
    assert refused.err.count("\n") == 1
    assert queue.records() == []


@pytest.mark.parametrize(
    ("content", "said"), [(b"# none\n", "has no jobs"), (b"davenet \xff", "is no text in UTF-8")]
)
def test_a_batch_without_jobs_is_refused(autofit: Autofit, tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "jobs.txt").write_bytes(content)
    refused = autofit("submit", f"--batch={tmp_path / 'jobs.txt'}", "--address=http://127.0.0.1:1")
    assert (refused.code, said in refused.err) == (2, True), refused.err


class _OldHead(http.server.BaseHTTPRequestHandler):
    """Tells a version as Ray's dashboard does."""

    def do_GET(self) -> None:
        body = json.dumps({"version": "4", "ray_version": "2.9.0", "session_name": "x"}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Keeps stderr clean."""


class _AnotherServer(_OldHead):
    def do_GET(self) -> None:
        self.send_error(404)


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (_OldHead, "runs Ray 2.9.0, but autofit's drivers need at least Ray 2.60"),
        (_AnotherServer, "is not a Ray dashboard"),
    ],
)
def test_what_answers_has_to_be_the_dashboard_of_a_usable_ray(
    autofit: Autofit, queue: JobQueue, handler: type[_OldHead], said: str
) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        refused = autofit("submit", "--model=davenet", "--gpu-mem=16G", f"--address={address}")
        server.shutdown()
    assert (refused.code, said in refused.err) == (5, True), refused.err
    assert queue.records() == []


def test_a_driver_is_told_all_but_secrets(queue: JobQueue, tmp_path: Path) -> None:
    options = {"model": "train.py:w", "gpu-mem": "16 G", "worst-case": "true", "fresh": "true"}
    job, _ = queue.enqueue("a", JobSpec(options=options, workload="train.py:w"))
    command = entrypoint(job, storage_url=None, first_attempt=True)
    program, code, of_code, *options = shlex.split(command)
    assert [program, code] == ["python", "-c"]
    assert "sys.path[:] = filter(None, sys.path); from autofit.cli import main" in of_code
    assert options == [
        "tune", "--model=train.py:w", "--gpu-mem=16 G", "--worst-case", "--fresh",
        "--address=auto", "--job=a",
    ]  # fmt: skip
    assert "--fresh" not in entrypoint(job, storage_url=None, first_attempt=False)
    assert storage_for_driver("postgresql://me:secret@db/x") is None
    assert storage_for_driver("postgresql://me@db/x?password=secret") is None
    assert storage_for_driver("postgresql://me@db/x") == "postgresql://me@db/x"
    assert storage_for_driver("jobs.journal") == str(Path.cwd() / "jobs.journal")
    assert storage_for_driver("sqlite:///jobs.db") == f"sqlite:///{Path.cwd() / 'jobs.db'}"


def test_a_job_that_no_storage_has_is_not_driven(autofit: Autofit) -> None:
    refused = autofit("tune", "--model=davenet", "--gpu-mem=16G", "--job=davenet-16g-1")
    assert refused.code == 2
    assert "has no job davenet-16g-1: set AUTOFIT_STORAGE on the cluster" in refused.err
