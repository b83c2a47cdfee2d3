"""The Ray dispatcher on a cluster that somebody else runs, and whose nodes come and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ray.cluster_utils import Cluster

from autofit.dispatch import Devices, RayDispatcher
from autofit.errors import DispatchError
from tests.conformance.dispatcher import TrialFolder, survivors
from workers.protocol import Probe, Verdict


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head that takes no trials; each test adds the node it needs."""
    notices_soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": notices_soon})
    yield cluster
    cluster.shutdown()


def test_a_trial_is_lost_when_the_last_node_that_could_run_it_leaves(
    cluster: Cluster, tmp_path: Path, mark: str
):
    trials = TrialFolder(tmp_path)
    node = cluster.add_node(num_cpus=1, num_gpus=2, resources={"accelerator_type:T4": 1})
    with RayDispatcher(cluster.address, patience_seconds=1.0) as dispatcher:
        assert dispatcher.capacity(Probe.CPU) == 1
        assert dispatcher.capacity(Probe.CUDA) == 2
        assert dispatcher.devices() == Devices(num_gpus=2, names=("T4", "T4"))
        future = dispatcher.submit(trials.spec("hangs"))
        processes = [psutil.Process(pid) for pid in trials.wait_until_it_hangs()]
        cluster.remove_node(node, allow_graceful=False)
        outcome = future.result()
        assert outcome.verdict is Verdict.LOST
        assert "left the cluster" in outcome.error.message
        assert survivors(processes) == []
        with pytest.raises(DispatchError, match="asks for 1 CPU, and the nodes offer 0 CPU"):
            dispatcher.submit(trials.spec("fits"))


def test_close_leaves_the_cluster_of_others_running_and_nothing_on_it(cluster: Cluster, tmp_path: Path):
    trials = TrialFolder(tmp_path)
    node = cluster.add_node(num_cpus=1)
    with RayDispatcher(cluster.address) as dispatcher:
        future = dispatcher.submit(trials.spec("hangs"))
        processes = [psutil.Process(pid) for pid in trials.wait_until_it_hangs()]
    assert future.cancelled()
    assert survivors(processes) == []
    with RayDispatcher(cluster.address) as dispatcher:
        assert dispatcher.capacity(Probe.CPU) == 1
    cluster.remove_node(node)
