"""Clusters that change under a search, lack what it asks for, or lie to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.cluster_utils import Cluster

from tests.conformance.dispatcher import survivors, trial_processes
from tests.faults.searches import Search, finished
from workers.protocol import Verdict

pytestmark = pytest.mark.process

# The console entry, with workers that run another size than they were asked to, and say so or not.
LYING_WORKERS = """
import sys
from autofit import api
from autofit.cli import main
from autofit.cli.backend import Backend
from autofit.dispatch import RayDispatcher


def tune(settings, workload, emit):
    def lying(spec):  # travels by value, so it imports what it uses
        import dataclasses
        from workers.run import run

        return run(dataclasses.replace(spec, batch_size=1))

    def connect(settings, emit):
        return RayDispatcher(settings.address, runner=lying)

    return api.run(settings, workload, emit=emit, connect=connect)


sys.exit(main(backend=Backend(tune=tune)))
"""


@pytest.fixture
def add_node(cluster: Cluster) -> Iterator[Callable[..., Any]]:
    """Adds nodes for one test alone: those that it leaves would take the next one's trials."""
    nodes = []

    def add(**resources: Any) -> Any:
        nodes.append(cluster.add_node(**resources))
        return nodes[-1]

    yield add
    for node in nodes:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)


def test_a_trial_whose_node_leaves_runs_again_on_another(
    cluster: Cluster, add_node: Callable[..., Any], tmp_path: Path, mark: str
):
    node = add_node(num_cpus=3)
    search = Search(tmp_path, "hangs_once", address=cluster.address, threads="3", max_batch="2")
    search.will_hang()
    coordinator = search.start()
    trial = [psutil.Process(process_id) for process_id in search.wait_until_it_hangs()]
    add_node(num_cpus=3)
    cluster.remove_node(node, allow_graceful=False)
    end = finished(coordinator)
    assert end.answer == (2, None)  # the cap
    first, *others = search.verdicts()
    assert first is Verdict.LOST
    assert set(others) == {Verdict.FITS}
    assert survivors([*trial, *trial_processes(mark)]) == []


def test_a_type_of_gpu_that_no_node_has_exits_with_5_and_names_it(
    cluster: Cluster, add_node: Callable[..., Any], tmp_path: Path, mark: str
):
    add_node(num_cpus=1, num_gpus=1, resources={"accelerator_type:T4": 1})
    asked = {"device": "cuda", "gpu": "h100-80g", "gpu_mem": None, "node_wait": "1"}
    end = (search := Search(tmp_path, "healthy", address=cluster.address, **asked)).run()
    assert (end.code, end.document["kind"]) == (5, "dispatch")
    assert "h100" in end.document["message"].lower()
    assert "t4" in end.document["message"].lower()
    assert search.ran == []
    assert survivors(trial_processes(mark)) == []


def test_a_worker_that_ran_another_size_than_asked_is_not_believed(
    cluster: Cluster, tmp_path: Path, mark: str
):
    search = Search(tmp_path, "healthy", address=cluster.address)
    end = search.run(main=LYING_WORKERS)
    assert end.code == 4
    assert set(search.verdicts()) == {Verdict.INVALID}
    assert survivors(trial_processes(mark)) == []
