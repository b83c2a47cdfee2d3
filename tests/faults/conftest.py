"""A cluster for searches, and the mark by which its trials are found."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest
from ray.cluster_utils import Cluster

from tests.marks import marking


@pytest.fixture(scope="module")
def mark() -> Iterator[str]:
    """Marks the processes that a module's searches and its cluster start, however far down."""
    with marking() as value:
        yield value


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
