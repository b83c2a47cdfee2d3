"""Searches on a cluster that loses workers and nodes under them."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ray.cluster_utils import Cluster

from autofit_workers.spec.protocol import Verdict
from tests.conformance.dispatcher import survivors, trial_processes
from tests.conformance.searches import (
    SEARCHES,
    Ended,
    Search,
    SearchConformance,
    finished,
    run_all,
    tries_by_verdict,
)

# The first test waits for all the searches.
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

OPTIONS: dict[str, dict[str, str | None]] = {
    **SEARCHES,
    "worker_killed": {"max_batch": "2"},
}


@pytest.fixture(scope="module")
def cluster(mark: str) -> Iterator[Cluster]:
    """A head that takes no trials, and one node with room for two at once."""
    notices_soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Ray looks for a port and leaves the socket open
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": notices_soon}
        )
        cluster.add_node(num_cpus=2)
        gc.collect()
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def ended(cluster: Cluster, mark: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    return run_all(tmp_path_factory.mktemp("searches"), OPTIONS, address=cluster.address)


class TestConformance(SearchConformance):
    pass


def test_a_worker_that_is_killed_again_is_lost_and_exits_with_5(ended: dict[str, Ended]):
    end = ended["worker_killed"]
    assert end.finished.code == 5
    assert end.finished.document["kind"] == "dispatch"
    assert tries_by_verdict(end.search) == {Verdict.LOST: 2}


def test_a_trial_whose_node_leaves_runs_again_on_another(cluster: Cluster, tmp_path: Path, mark: str):
    node = cluster.add_node(num_cpus=3)
    search = Search(tmp_path, "hangs_once", address=cluster.address, threads="3", max_batch="2")
    search.will_hang()
    coordinator = search.start()
    trial = [psutil.Process(process_id) for process_id in search.wait_until_it_hangs()]
    cluster.add_node(num_cpus=3)
    cluster.remove_node(node, allow_graceful=False)
    end = finished(coordinator)
    assert end.answer == (2, None)  # the cap
    first, *others = search.verdicts()
    assert first is Verdict.LOST
    assert set(others) == {Verdict.FITS}
    assert survivors([*trial, *trial_processes(mark)]) == []
