"""The Ray dispatcher on a cluster that somebody else runs, and whose nodes come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

import autofit
from autofit.dispatch.base import Devices, Runner
from autofit.dispatch.ray import RayDispatcher
from autofit.dispatch.requests import Wishes
from autofit.errors import DispatchError, ExitCode
from autofit.events import Event, Progress
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict
from tests.conformance.dispatcher import TrialFolder, survivors

pytestmark = [
    pytest.mark.process,
    # Ray leaves sockets and processes of its own, closed by nobody, to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster(mark: str) -> Iterator[Cluster]:
    """A head that takes no trials and two nodes that do; the GPUs are there in name only."""
    notices_soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": notices_soon})
    for kind, num_gpus, rack in (("T4", 2, "rack_a"), ("A100", 1, "rack_b")):
        resources = {f"accelerator_type:{kind}": 1, rack: 1}
        cluster.add_node(num_cpus=2, num_gpus=num_gpus, resources=resources, wait=False)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


@pytest.fixture
def connect(cluster: Cluster) -> Iterator[Callable[..., RayDispatcher]]:
    """Makes dispatchers, of which the first one connects; all are closed at the end of the test."""
    opened = []

    def open_one(**options: Any) -> RayDispatcher:
        opened.append(RayDispatcher(cluster.address, **options))
        return opened[-1]

    yield open_one
    for dispatcher in reversed(opened):
        dispatcher.close()


def tells_its_node(meeting: Path | None = None, num_expected: int = 0) -> Runner:
    """Tells on which rack it runs, once so many trials have come to the meeting."""
    folder = str(meeting)

    def run(spec: TrialSpec) -> TrialOutcome:
        import os
        import time

        import ray

        from autofit_workers.spec.protocol import TrialError, Verdict
        from autofit_workers.trials.outcomes import without_answer

        give_up = time.monotonic() + 60
        if num_expected:
            os.mkdir(f"{folder}/{spec.batch_size}")  # noqa: PTH102 - travels by value, with its imports
        while num_expected and len(os.listdir(folder)) < num_expected:  # noqa: PTH208
            if time.monotonic() > give_up:
                raise TimeoutError("the others did not come")
            time.sleep(0.01)
        here = ray.get_runtime_context().get_node_id()
        racks = [
            name
            for node in ray.nodes()
            for name in node["Resources"]
            if node["NodeID"] == here and name.startswith("rack")
        ]
        return without_answer(spec, Verdict.LOST, TrialError(kind="environment", message=racks[0]))

    return run


def rack_of(dispatcher: RayDispatcher, spec: TrialSpec) -> str:
    return dispatcher.submit(spec).result().error.message


def test_capacity_and_devices_count_what_matches_the_request(
    connect: Callable[..., RayDispatcher], trials: TrialFolder
):
    every = connect()
    assert sorted(every.devices().names) == ["A100", "T4", "T4"]
    assert every.devices().num_gpus == 3
    assert (every.capacity(Probe.CPU), every.capacity(Probe.CUDA)) == (4, 3)
    assert every.capacity(trials.spec("fits", num_threads=2)) == 2
    t4 = connect(wishes=Wishes(accelerator_types=("T4",)))
    assert t4.devices() == Devices(num_gpus=2, names=("T4", "T4"))
    assert (t4.capacity(Probe.CPU), t4.capacity(Probe.CUDA)) == (4, 2)
    on_a = connect(wishes=Wishes(resources={"rack_a": 0.5}, accelerator_types=("A100-80G", "A100")))
    assert on_a.devices() == Devices(num_gpus=0)
    assert (on_a.capacity(Probe.CPU), on_a.capacity(Probe.CUDA)) == (2, 0)


def test_trials_go_where_the_card_and_the_custom_resources_are(
    connect: Callable[..., RayDispatcher], trials: TrialFolder
):
    for_card = connect(runner=tells_its_node(), wishes=Wishes(accelerator_types=("A100-80G", "A100")))
    assert {rack_of(for_card, trials.spec("fits", probe=Probe.CUDA)) for _ in range(2)} == {"rack_b"}
    with_resource = connect(runner=tells_its_node(), wishes=Wishes(resources={"rack_a": 1}))
    assert {rack_of(with_resource, trials.spec("fits")) for _ in range(2)} == {"rack_a"}


def test_four_workers_run_at_once_on_both_nodes(
    connect: Callable[..., RayDispatcher], trials: TrialFolder, tmp_path: Path
):
    (tmp_path / "meeting").mkdir()
    dispatcher = connect(runner=tells_its_node(tmp_path / "meeting", num_expected=4))
    futures = [dispatcher.submit(trials.spec("fits", batch_size=size)) for size in (1, 2, 3, 4)]
    racks = [future.result().error.message for future in futures]
    assert sorted(racks) == ["rack_a", "rack_a", "rack_b", "rack_b"]


def test_real_trials_run_on_both_nodes(connect: Callable[..., RayDispatcher], trials: TrialFolder):
    outcomes = [
        connect(wishes=Wishes(resources={rack: 1})).submit(trials.spec("fits", batch_size=size))
        for rack, size in (("rack_a", 3), ("rack_b", 5))
    ]
    told = [(future.result().verdict, future.result().batch_size) for future in outcomes]
    assert told == [(Verdict.FITS, 3), (Verdict.FITS, 5)]


def test_what_no_node_has_is_an_error_after_a_wait_that_is_announced(
    connect: Callable[..., RayDispatcher], trials: TrialFolder
):
    events: list[Event] = []
    wishes = Wishes(resources={"rack_a": 1}, accelerator_types=("H100",))
    dispatcher = connect(wishes=wishes, node_wait_seconds=0.1, emit=events.append)
    future = dispatcher.submit(trials.spec("fits", probe=Probe.CUDA))
    error = future.exception()
    assert events == [
        Progress(stage="waiting up to 0.1 s for a node with 1 CPU, 1 GPU of type H100, 1 rack_a")
    ]
    assert isinstance(error, DispatchError)
    assert error.exit_code is ExitCode.INFRASTRUCTURE
    for words in (
        "asks for 1 CPU, 1 GPU of type H100, 1 rack_a",
        "2 CPU, 2 GPU of type T4, 1 rack_a",
        "2 CPU, 1 GPU of type A100, 0 rack_a",
    ):
        assert words in error.message


def test_with_no_wait_it_is_an_error_at_once(connect: Callable[..., RayDispatcher], trials: TrialFolder):
    dispatcher = connect(wishes=Wishes(resources={"rack_z": 1}), node_wait_seconds=0.0)
    with pytest.raises(DispatchError, match="asks for 1 CPU, 1 rack_z, and the nodes offer"):
        dispatcher.submit(trials.spec("fits"))


def test_a_search_asks_for_its_card_and_ends_with_exit_code_5_where_none_comes(cluster: Cluster):
    workloads = Path(__file__).parents[1] / "tiny_workloads.py"
    with pytest.raises(DispatchError, match="it asks for 1 CPU, 1 GPU of type H100, 1 rack_a, and") as raised:
        autofit.tune(
            f"{workloads}:small",
            gpu="h100-80g",
            probe="measure",
            address=cluster.address,
            resources={"rack_a": 1},
            node_wait=0.1,
            max_batch=2,
        )
    assert raised.value.exit_code is ExitCode.INFRASTRUCTURE
    assert not ray.is_initialized()


def test_a_node_that_comes_is_taken_and_a_trial_is_lost_when_it_leaves(
    cluster: Cluster, connect: Callable[..., RayDispatcher], tmp_path: Path
):
    trials = TrialFolder(tmp_path)
    dispatcher = connect(wishes=Wishes(resources={"rack_c": 1}), node_wait_seconds=120.0)
    future = dispatcher.submit(trials.spec("hangs"))
    node = cluster.add_node(num_cpus=1, resources={"rack_c": 1})
    processes = [psutil.Process(pid) for pid in trials.wait_until_it_hangs()]
    cluster.remove_node(node, allow_graceful=False)
    outcome = future.result()
    assert outcome.verdict is Verdict.LOST
    assert "its node died" in outcome.error.message
    assert survivors(processes) == []
    assert rack_of(connect(runner=tells_its_node()), trials.spec("fits")) in ("rack_a", "rack_b")


def test_close_leaves_the_cluster_of_others_running_and_nothing_on_it(cluster: Cluster, tmp_path: Path):
    trials = TrialFolder(tmp_path)
    with RayDispatcher(cluster.address) as dispatcher:
        future = dispatcher.submit(trials.spec("hangs"))
        processes = [psutil.Process(pid) for pid in trials.wait_until_it_hangs()]
    assert future.cancelled()
    assert survivors(processes) == []
    with RayDispatcher(cluster.address) as dispatcher:
        assert dispatcher.capacity(Probe.CPU) == 4
