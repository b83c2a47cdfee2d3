"""Ray resources that trials request of a cluster's nodes, and the nodes that can serve a request.

A node is represented by its total resources by name, as in `ray.nodes()`. The node's card is a
resource too, of amount 1: Ray names it `accelerator_type:A100`, from the driver's name of the first of
the node's GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autofit.units import format_bytes
from autofit_workers.spec.protocol import Probe, TrialSpec

Node = Mapping[str, float]
Request = dict[str, float]

RAY, INLINE = "ray", "inline"
DISPATCHES = (RAY, INLINE)  # words of `--dispatch`: a cluster, or this machine alone

RAY_OPTIONS = ("CPU", "GPU", "memory")  # resources that tasks request by options of their own
OWN_RESOURCES = ("CPU", "GPU", "memory", "object_store_memory")  # resources other than custom ones
SMALLEST_AMOUNT = 0.0001  # Ray's smallest unit of a resource

_ACCELERATOR_TYPE = "accelerator_type:"
_ACCELERATOR_SHARE = 0.001  # amount that Ray's own option `accelerator_type` requests
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Ray resources that every trial of a search requests, besides the CPUs, GPUs and memory that it needs.

    Attributes:
        resources: amounts of custom resources, by name.
        accelerator_types: Ray's names of the card that trials on a GPU have to run on, the most specific
            first; empty if any card will do.
    """

    resources: Mapping[str, float] = field(default_factory=dict)
    accelerator_types: tuple[str, ...] = ()

    def request(self, probe: Probe, spec: TrialSpec | None, nodes: Sequence[Node]) -> Request:
        """Ray resources that a trial requests on one node.

        The node has to provide the resources of all ranks that run on it. A trial on the CPU requests one CPU
        for each thread, or one if no number of threads is set, because Ray sets `OMP_NUM_THREADS` to the
        number of requested CPUs.

        Args:
            probe: way of measuring: on a GPU, on the CPU, or by prediction.
            spec: specification of the trial; None for the least that any trial requests.
            nodes: resources of the cluster's nodes, among which the name of the card is looked up.
        """
        num_ranks = 1 if spec is None else spec.processes_per_node
        request: Request = {"CPU": num_ranks}
        if probe is Probe.CUDA:
            request["GPU"] = num_ranks
            if (kind := self._accelerator_type(nodes)) is not None:
                request[_ACCELERATOR_TYPE + kind] = _ACCELERATOR_SHARE
        if probe is Probe.CPU and spec is not None:
            request["CPU"] = num_ranks * (spec.num_threads or 1)
            if spec.budget_bytes is not None:
                request["memory"] = num_ranks * spec.budget_bytes
        return {**request, **self.resources}

    def _accelerator_type(self, nodes: Sequence[Node]) -> str | None:
        """Name of the card to request: the first of `accelerator_types` that some node has.

        If no node has any of them, it is the last one, the name that Ray itself gives. It is None if any card
        will do, or if no node with GPUs has a name for its card; then the trial reports which card it ran on.
        """
        if not self.accelerator_types:
            return None
        with_gpus = [node for node in nodes if node.get("GPU")]
        offered = {kind for node in with_gpus for kind in _accelerator_types(node)}
        if with_gpus and not offered:
            return None
        return next((kind for kind in self.accelerator_types if kind in offered), self.accelerator_types[-1])


def accelerator_type(node: Node) -> str | None:
    """Ray's name for the type of a node's GPUs, which are all of one type to Ray; None if there is none."""
    return next(iter(_accelerator_types(node)), None)


def _accelerator_types(node: Node) -> list[str]:
    return [key.removeprefix(_ACCELERATOR_TYPE) for key in node if key.startswith(_ACCELERATOR_TYPE)]


def num_at_once(node: Node, request: Request) -> int:
    """Number of trials that an idle node could run in parallel, each with the requested resources."""
    return min(int(node.get(name, 0) / amount + _ROUNDING) for name, amount in request.items())


def can_run(nodes: Iterable[Node], request: Request, num_nodes: int = 1) -> bool:
    """Whether at least `num_nodes` of the nodes could serve the request, each once and if idle."""
    return sum(num_at_once(node, request) > 0 for node in nodes) >= num_nodes


def num_groups_at_once(nodes: Iterable[Node], request: Request, num_nodes: int) -> int:
    """Number of trials that could run in parallel, each with the requested resources on `num_nodes` nodes.

    All nodes count as idle.
    """
    counts = [num_at_once(node, request) for node in nodes]
    most = sum(counts) // num_nodes
    # A node is in a group once, and so serves at most as many requests as there are groups.
    return next(
        (num for num in range(most, 0, -1) if sum(min(count, num) for count in counts) >= num * num_nodes), 0
    )


def in_words(request: Request) -> str:
    """Text of a resource request: `1 CPU, 1 GPU of type A100, 1 rack`."""
    return _in_words(request, request)


def offers_in_words(nodes: Iterable[Node], request: Request) -> str:
    """Text of the amounts that the nodes have of a request's resources."""
    return "; ".join(sorted({_in_words(node, request) for node in nodes})) or "nothing"


def _in_words(resources: Node, names: Iterable[str]) -> str:
    """Text of the amounts of some resources, such as `1 CPU, 2 GPU of type A100`."""
    kinds = _accelerator_types(resources)
    of_type = f" of type {' or '.join(kinds)}" if kinds else ""
    words = []
    for name in names:
        amount = resources.get(name, 0)
        if name == "memory":
            words.append(f"{format_bytes(int(amount))} of memory")
        elif name == "GPU":
            words.append(f"{amount:g} GPU{of_type}")
        elif not name.startswith(_ACCELERATOR_TYPE):
            words.append(f"{amount:g} {name}")
    return ", ".join(words)
