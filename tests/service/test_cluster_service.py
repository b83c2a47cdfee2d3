"""More jobs at once than a real cluster has places, of which a node and a driver are killed."""

from __future__ import annotations

import collections
import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from autofit import api
from autofit.dispatch.inline import InlineDispatcher
from autofit.events import ignore
from autofit.jobs.records import JobRecord, JobState
from autofit.settings.resolve import resolve_settings
from autofit.settings.workloads import refer
from autofit_workers.spec.protocol import Verdict
from tests.conformance.dispatcher import survivors
from tests.conformance.searches import Search
from tests.deploy.expressions import all_expressions
from tests.postgres import running_postgres
from tests.prometheus import Prometheus, needs_prometheus
from tests.ray_cluster import RayCluster
from tests.service.stack import (
    Client,
    arguments_of,
    await_answer,
    driver_of,
    finished,
    node_of,
    prometheus,
    serve,
    text_of,
)

pytestmark = [pytest.mark.process, needs_prometheus, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
CARDS = ("t4", "a100-40g")
PREDICTED = ("tunable.py:healthy",)
# What goes wrong in these does so once: they come to the same answer as the healthy one.
NODE_DIES, DRIVER_DIES = MEASURED = ("hangs_once", "hangs_at_its_second_trial")
OF_A_MEASURED = {"gpu_mem": "415M", "max_batch": "16", "soak_steps": "0", "deadline": "600"}
AT_ONCE = 2  # measured trials, on all nodes together
HANGS_SECONDS = 400  # until a trial has come so far
PASSWORD = "correct-horse-battery"
NUM_DRIVERS, NUM_NODES, NUM_GPUS = 3, 2, 2  # GPUs of a node
NUM_JOBS = len(PREDICTED) * len(CARDS) + len(MEASURED)


@dataclass(frozen=True)
class Night:
    """What was left when all jobs were over.

    Attributes:
        searches: the folders of the measured workloads, by their name.
        killed: everything that ran on the killed node, and the killed driver with its trial.
    """

    client: Client
    cluster: RayCluster
    prometheus: Prometheus
    metrics_url: str
    records: list[JobRecord]
    searches: dict[str, Search]
    killed: list[psutil.Process]

    def record(self, workload: str, gpu: str | None = None) -> JobRecord:
        (found,) = [job for job in self.records if job.spec.workload == workload and job.spec.gpu == gpu]
        return found


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    """Jobs submitted at once; a node is killed that runs a trial, and the driver of another job."""
    folder = tmp_path_factory.mktemp("night")
    searches = {name: _search(folder / name, name) for name in MEASURED}
    with contextlib.ExitStack() as stack:
        storage = stack.enter_context(running_postgres()).url_of("postgres", password=PASSWORD)
        environment = {"AUTOFIT_STORAGE": storage, "AUTOFIT_STATE_DIR": str(folder / "drivers")}
        cluster = stack.enter_context(RayCluster(num_drivers=NUM_DRIVERS, environment=environment))
        nodes = cluster.add_nodes(NUM_NODES, num_cpus=AT_ONCE // NUM_NODES, num_gpus=NUM_GPUS)
        client = Client(cluster, storage, folder)
        daemon, metrics_url = serve(client, cluster, folder / "serve.log")
        stack.enter_context(daemon)
        server = stack.enter_context(prometheus(cluster, metrics_url, folder))
        with client.explaining():
            _submit_all(client, searches, folder / "code")
            names = [job.job_id for job in client.records()]

            first = [psutil.Process(pid) for pid in searches[DRIVER_DIES].wait_until_it_hangs(HANGS_SECONDS)]
            driver = driver_of(cluster, _job_of(client, DRIVER_DIES))
            driver.kill()
            second = [psutil.Process(pid) for pid in searches[NODE_DIES].wait_until_it_hangs(HANGS_SECONDS)]
            node = node_of(nodes, second[0])
            killed = [driver, *first, *second, *node.processes]
            node.kill_raylet()

            waited = client.run("wait", *names, "--quiet", "--timeout=450")
            assert waited.code == 0, waited.out + waited.err
        yield Night(client, cluster, server, metrics_url, client.records(), searches, killed)


def _search(folder: Path, workload: str) -> Search:
    search = Search(folder, workload, study=None, storage=None, **OF_A_MEASURED)
    search.will_hang()
    return search


def _submit_all(client: Client, searches: dict[str, Search], code: Path) -> None:
    """A fleet for each predicted workload, whose code travels; all nodes see that of the others."""
    code.mkdir()
    shutil.copy(HERE.parent / "conformance" / "tunable.py", code)
    predicted = [f"--gpu={','.join(CARDS)}", "--probe=predict", "--conv-algo=native", f"--working-dir={code}"]
    asked = [search.arguments[2:] for search in searches.values()]
    asked += [[f"--model={model}", *predicted] for model in PREDICTED]
    for command in [client.start("submit", "--json", *arguments) for arguments in asked]:
        submitted = finished(command)
        assert submitted.code == 0, submitted.err
        assert all(job["is_new"] for job in submitted.document["jobs"])


def _job_of(client: Client, workload: str) -> str:
    (job,) = [
        job for job in client.records() if job.spec.workload == f"tunable.py:{workload}" and not job.spec.gpu
    ]
    return job.job_id


def answer(document: dict[str, Any]) -> dict[str, Any]:
    """What has to be equal wherever a search was made."""
    frontier = [
        (entry["knobs"], entry["largest_batch"], entry["first_failing_batch"], entry["evidence"])
        for entry in document["frontier"]
    ]
    return {"best": document["best"]["batch_size"], "frontier": frontier}


def test_all_jobs_are_over_and_each_has_its_result(night: Night):
    assert len(night.records) == NUM_JOBS > NUM_DRIVERS
    assert {job.state for job in night.records} == {JobState.SUCCEEDED}
    attempts = {job.spec.workload: len(job.attempts) for job in night.records if not job.spec.gpu}
    assert attempts == {f"tunable.py:{name}": 2 if name == DRIVER_DIES else 1 for name in MEASURED}


def test_what_was_killed_left_nothing_behind(night: Night):
    assert survivors(night.killed) == []


@pytest.mark.parametrize("model", PREDICTED)
def test_predicted_results_are_those_of_a_local_tune(night: Night, model: str, tmp_path: Path):
    shutil.copytree(night.searches[NODE_DIES].path.parent / "code", tmp_path / "code")
    for card in CARDS:
        local = api.tune(f"{tmp_path / 'code' / model}", gpu=card, conv_algo="native", probe="predict")
        assert answer(night.record(model, card).document) == answer(local.to_dict())


def test_measured_results_are_those_of_a_local_tune(night: Night, tmp_path: Path):
    options = Search(tmp_path, "healthy", **OF_A_MEASURED).options
    settings = resolve_settings(options, {}, None)
    # Trials on this machine without another Ray, which would take longer to start than they do.
    local = api.run(settings, refer(settings.model), emit=ignore, connect=lambda *_: InlineDispatcher())
    expected = answer(local.to_dict())
    (entry,) = expected["frontier"]
    assert entry[2] == entry[1] + 1  # the next size was measured to fail
    for name in MEASURED:
        assert answer(night.record(f"tunable.py:{name}").document) == expected, name


def test_a_fleet_is_one_table(night: Night):
    """Cards that no node of the cluster has are predicted."""
    (fleet,) = {night.record("tunable.py:healthy", card).spec.fleet for card in CARDS}
    waited = night.client.run("wait", fleet, "--json")
    assert waited.code == 0, waited.err
    assert waited.document["fleet"] == fleet
    cards = [(card["gpu"], card["best_batch"], card["evidence"]) for card in waited.document["cards"]]
    best = {card: night.record("tunable.py:healthy", card).document["best"]["batch_size"] for card in CARDS}
    assert cards == [(card, best[card], "predicted") for card in CARDS]
    table = night.client.run("result", fleet).out.splitlines()
    assert [line.split()[:2] for line in table[1:]] == [[card, str(best[card])] for card in CARDS]


def test_result_prints_the_stored_answer(night: Night):
    job = night.record("tunable.py:" + DRIVER_DIES)
    printed = night.client.run("result", job.job_id, "--json")
    assert (printed.code, printed.document) == (0, job.document)


def test_each_trial_is_counted_once(night: Night):
    """By the workload, which knows what ran, by the study and by the result."""
    for name, search in night.searches.items():
        job = night.record(f"tunable.py:{name}")
        outcomes = night.client.outcomes(job)
        assert job.document["num_trials"] == len(outcomes)
        lost = [outcome.batch_size for outcome in outcomes if outcome.verdict is Verdict.LOST]
        told = collections.Counter(
            outcome.batch_size for outcome in outcomes if outcome.verdict is not Verdict.LOST
        )
        assert set(told.values()) == {1}, "a size that had returned was tried again"
        ran = collections.Counter(search.ran)
        assert told <= ran
        # What was in flight when its driver was killed never returned.
        repeated = (ran - told).total()
        assert repeated <= len(lost) + (AT_ONCE if name == DRIVER_DIES else 0)
        assert repeated > 0


def test_prometheus_counts_the_trials_that_the_storage_holds(night: Night):
    counted = collections.Counter(
        (("probe", "predict" if job.spec.gpu else "cpu"), ("verdict", outcome.verdict.value))
        for job in night.records
        for outcome in night.client.outcomes(job)
    )
    await_answer(night.prometheus, "sum by (probe, verdict) (autofit_trials_total)", counted)


def test_the_dashboards_queries_answer_with_the_numbers_of_the_results(night: Night):
    batches, budgets, used, recommended = {}, {}, {}, []
    by_algorithm: dict[Any, int] = collections.defaultdict(int)
    for job in night.records:
        target = ("workload", job.spec.workload), ("gpu", job.spec.gpu or "cpu")
        budgets[target] = job.document["budget"]["usable_bytes"]
        best = job.document["best"]
        peak = best["device_peak_bytes"] if job.spec.gpu is None else best["interval"]["high_bytes"]
        used[target] = peak / budgets[target]
        recommended.append(job.document["recommended"]["batch_size"])
        for entry in job.document["frontier"]:
            algorithm = ("conv_algo", entry["knobs"]["conv_algo"])
            batches[(*target, algorithm)] = entry["largest_batch"]
            of_card = algorithm, target[1]
            by_algorithm[of_card] = max(by_algorithm[of_card], entry["largest_batch"])
    shown = {
        "overview.json: Jobs": {(("state", "succeeded"),): NUM_JOBS},
        "overview.json: Running jobs": {},
        "overview.json: Waiting jobs": {},
        "overview.json: Failed meanwhile": {},
        "overview.json: Storage": {(): 1},
        "overview.json: Trials in flight": {},
        "overview.json: Largest batches": batches,
        "overview.json: Used budget": used,
        "job.json: Recommended and largest batch": {(): max(recommended)},
        "job.json: Largest batch": by_algorithm,
        "job.json: Largest batch as it was found": batches,
        "job.json: Budget": {(): max(budgets.values())},
        # From Ray's own exporter: the head, and the node that was left.
        "cluster.json: Nodes": {(): NUM_NODES},
        "cluster.json: Driver places": {(): NUM_DRIVERS},
        "cluster.json: Drivers": {},
        "cluster.json: GPUs": {(): NUM_GPUS},
    }
    expressions = collections.defaultdict(list)
    for expression in all_expressions():
        expressions[expression.where].append(expression.as_sent())
    for where, numbers in shown.items():
        await_answer(night.prometheus, expressions[where][0], numbers)


def test_the_password_of_the_storage_is_nowhere_to_be_read(night: Night):
    processes = [process for node in night.cluster.nodes for process in node.processes]
    assert processes
    seen = {
        "results": json.dumps([job.document for job in night.records]),
        "metrics": text_of(night.metrics_url),
        "arguments": " ".join(argument for process in processes for argument in arguments_of(process)),
        **{str(file): file.read_text(errors="replace") for file in night.cluster.logs},
    }
    assert [where for where, text in seen.items() if PASSWORD in text] == []
