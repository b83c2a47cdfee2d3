"""Trials whose ranks are spread over nodes of a cluster, with gloo, that end in every way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray._raylet import AuthenticationTokenLoader
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

from autofit.dispatch.ray import RayDispatcher
from autofit.dispatch.ray_connection import own_token, process_state_kept, use_token_at_hand
from autofit.dispatch.requests import Wishes
from autofit.errors import DispatchError
from autofit_workers.spec.protocol import Evidence, Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.setup import Parallel, Setup
from tests.conformance.dispatcher import ROOT, TrialFolder, survivors, trial_processes

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
FAULTY = Path(__file__).parents[2] / "faults" / "faulty.py"
MIB = 2**20
COORDINATOR = """
import sys
from autofit.dispatch.ray import RayDispatcher
from autofit_workers.spec.protocol import TrialSpec
RayDispatcher(sys.argv[1]).submit(TrialSpec.from_json(sys.argv[2])).result()
"""


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Takes the numbers of ranks that hang."""
    os.mkfifo(path := tmp_path_factory.mktemp("hanging") / "pids")
    return path


@pytest.fixture(scope="module")
def cluster(mark: str, hanging: Path) -> Iterator[Cluster]:
    """A head that takes no trials, and two nodes with room for two ranks each."""
    notices_soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200}
    with process_state_kept():
        # Where this process had a local cluster before, its driver still wants a token, of Ray's servers too
        # that ask it whether an actor is in use; one that is turned away takes the actor for forgotten.
        # Ray read RAY_AUTH_MODE when it was imported, and reads it again only where it finds a token; of
        # tokens it remembers the first, which another test may have given this process.
        AuthenticationTokenLoader.instance().reset_cache()
        os.environ.pop("RAY_AUTH_MODE", None)
        os.environ["RAY_AUTH_TOKEN"] = own_token()
        use_token_at_hand()
        os.environ["FAULTY_PID_FILE"] = str(hanging)
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": notices_soon}
        )
        for _ in range(2):
            cluster.add_node(num_cpus=2, wait=False)
        cluster.wait_for_nodes()
        yield cluster
    cluster.shutdown()


@pytest.fixture
def dispatcher(cluster: Cluster, mark: str) -> Iterator[RayDispatcher]:
    """Nothing of a trial is left once it has an outcome, nor in Ray a group."""
    with RayDispatcher(cluster.address, node_wait_seconds=0.0) as dispatcher:
        yield dispatcher
        assert survivors(trial_processes(mark)) == []
        assert {group["state"] for group in placement_group_table().values()} <= {"REMOVED"}


def spec_of(attribute: str, parallel: str = "ddp:2", **settings) -> TrialSpec:
    usual = {
        "workload": WorkloadRef(kind="file", target=f"{FAULTY}:{attribute}"),
        "batch_size": 4,
        "probe": Probe.CPU,
        "num_threads": 1,
        "num_nodes": 2,
        "deadline_seconds": 120.0,
        "budget_bytes": 1200 * MIB,
        "setup": Setup(parallel=Parallel.parse(parallel)),
    }
    return TrialSpec(**{**usual, **settings})


def outcome_of(
    dispatcher: RayDispatcher, attribute: str, parallel: str = "ddp:2", **settings
) -> TrialOutcome:
    return dispatcher.submit(spec_of(attribute, parallel, **settings)).result()


def test_two_ranks_on_each_of_two_nodes_have_their_peaks_in_one_outcome(dispatcher: RayDispatcher):
    spec = spec_of("sharded_ranks", "fsdp:4")
    assert (dispatcher.capacity(spec), dispatcher.capacity(spec_of("healthy"))) == (1, 2)
    outcome = dispatcher.submit(spec).result()
    assert (outcome.verdict, outcome.evidence) == (Verdict.FITS, Evidence.MEASURED_CPU), outcome.error
    assert outcome.parallel == "fsdp:4"
    assert [each.rank for each in outcome.ranks] == [0, 1, 2, 3]
    assert all(each.peaks.allocated_bytes > 8 * MIB for each in outcome.ranks)
    told = outcome.environment
    assert told["MASTER_ADDR"] == ray.util.get_node_ip_address()
    assert (told["WORLD_SIZE"], told["LOCAL_WORLD_SIZE"]) == ("4", "2")
    assert outcome.rank == 2 * int(told["GROUP_RANK"]) + int(told["LOCAL_RANK"])


def test_memory_that_runs_out_on_one_node_is_oom_for_all(dispatcher: RayDispatcher):
    outcome = outcome_of(dispatcher, "hungry_rank")
    assert (outcome.verdict, outcome.rank, outcome.error) == (Verdict.OOM, 1, None)
    assert outcome.environment["out_of_memory"].startswith("rank 1 of 2: RuntimeError: ")
    assert len(outcome.ranks) == 2


def test_a_failure_that_goes_away_with_the_limit_is_tried_again_on_all_nodes(dispatcher: RayDispatcher):
    outcome = outcome_of(dispatcher, "rank_with_unnamed_error_under_limit")
    assert (outcome.verdict, outcome.rank) == (Verdict.OOM, 1)
    assert "without the limit the same size completes" in outcome.environment["out_of_memory"]


def test_a_killed_rank_is_lost_whatever_another_node_says_of_it(dispatcher: RayDispatcher):
    outcome = outcome_of(dispatcher, "killed_rank")
    assert (outcome.verdict, outcome.rank) == (Verdict.LOST, 1)
    assert outcome.error.message.startswith("rank 1 of 2: the trial's process died (SIGKILL, ")


def test_ranks_that_wait_for_another_node_are_ended_at_the_deadline(dispatcher: RayDispatcher):
    outcome = outcome_of(dispatcher, "hung_rank", deadline_seconds=15.0)
    assert outcome.verdict is Verdict.TIMEOUT


@pytest.mark.parametrize("of_rank", [0, 1])
def test_a_node_that_leaves_amid_a_step_loses_the_trial_and_ends_the_other_ranks(
    cluster: Cluster, dispatcher: RayDispatcher, hanging: Path, of_rank: int
):
    pair = [cluster.add_node(num_cpus=1, resources={"pair": 1}) for _ in range(2)]
    with RayDispatcher(cluster.address, wishes=Wishes(resources={"pair": 1})) as of_pair:
        future = of_pair.submit(spec_of("waiting_ranks"))
        ranks = _ranks_in(hanging)
        leaving = next(node for node in pair if _is_on(node, ranks[of_rank]))
        cluster.remove_node(leaving, allow_graceful=False)
        outcome = future.result()
    cluster.remove_node(next(node for node in pair if node is not leaving))
    assert (outcome.verdict, outcome.rank) == (Verdict.LOST, of_rank)
    assert "its node" in outcome.error.message
    assert survivors(ranks) == []


def test_a_closed_dispatcher_leaves_no_rank_on_any_node_and_no_group(
    cluster: Cluster, dispatcher: RayDispatcher, hanging: Path
):
    with RayDispatcher(cluster.address) as closed:
        future = closed.submit(spec_of("waiting_ranks"))
        ranks = _ranks_in(hanging)
    assert future.cancelled()
    assert survivors(ranks) == []


def test_a_coordinator_that_is_killed_leaves_no_rank_on_any_node_and_no_group(
    cluster: Cluster, dispatcher: RayDispatcher, hanging: Path
):
    command = [sys.executable, "-c", COORDINATOR, cluster.address, spec_of("waiting_ranks").to_json()]
    coordinator = subprocess.Popen(command, cwd=ROOT)
    ranks = _ranks_in(hanging)
    coordinator.kill()
    coordinator.wait()
    assert survivors(ranks) == []
    give_up = time.monotonic() + 20
    while any(group["state"] != "REMOVED" for group in placement_group_table().values()):
        assert time.monotonic() < give_up, "the group outlives its coordinator"
        time.sleep(0.1)


def test_a_cluster_with_too_few_nodes_or_too_small_ones_says_so_at_once(dispatcher: RayDispatcher):
    with pytest.raises(DispatchError, match="--nnodes 3: 2 of the 3 nodes of the Ray cluster can run ranks"):
        dispatcher.submit(spec_of("healthy", "ddp:3", num_nodes=3))
    with pytest.raises(
        DispatchError, match=r"--nnodes 2: 0 of the 3 nodes .* each is asked for 1 CPU, 1 GPU"
    ):
        dispatcher.submit(spec_of("healthy", probe=Probe.CUDA))


def test_nodes_that_do_not_come_end_the_wait_for_them(cluster: Cluster, trials: TrialFolder):
    with RayDispatcher(cluster.address, node_wait_seconds=0.1) as dispatcher:
        setup = Setup(parallel=Parallel.parse("ddp:3"))
        error = dispatcher.submit(trials.spec("fits", setup=setup, num_nodes=3)).exception()
    assert isinstance(error, DispatchError)
    assert "after" in error.message


def _ranks_in(hanging: Path) -> list[psutil.Process]:
    """The processes of the ranks, in their order, once both have come to their loss."""
    with os.fdopen(os.open(hanging, os.O_RDWR), "r+b", buffering=0) as lines:
        ranks = [psutil.Process(int(lines.readline())) for _ in range(2)]
    return sorted(ranks, key=lambda rank: rank.environ()["RANK"])


def _is_on(node: Any, process: psutil.Process) -> bool:
    """Whether a process is one of a node's, whose raylet is above it."""
    raylets = {info.process.pid for info in node.all_processes["raylet"]}
    return not raylets.isdisjoint(parent.pid for parent in process.parents())
