"""Runs one trial whose ranks are spread over nodes of a Ray cluster.

    driver                            node 0                    node 1                 …
      placement group: one bundle for the ranks of a node, each on a node of its own
      listen ────────────────────▶    agent ── port ──┐
      run(spec) ─────────────────▶    │ ranks 0, 1    └──────▶  agent
      run(spec, port) ────────────────┼──────────────────────▶  │ ranks 2, 3
      outcomes of its ranks ◀─────────┘◀────────────────────────┘  whose processes live until all have
      answered the first node with a rank that does not fit, or that dies ──▶ end: the others end their ranks
      the outcomes of all ranks are merged into one; the group is removed

A bundle is for a node and not for a rank: Ray can be told that bundles lie on different nodes, but not
how many of them lie on each node. Within a node, ranks run as in a trial on one machine.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from autofit.dispatch.requests import RAY_OPTIONS, Request
from autofit_workers.spec.protocol import TrialOutcome, TrialSpec
from autofit_workers.trials.door import StoppedError, joined, measured_by, took_all_steps

_LOOK_SECONDS = 0.2
# A live node ends its ranks and answers in a second or two; one that does not answer is lost.
_END_SECONDS = 10.0

Load = Callable[[str], None]
Told = Callable[[TrialSpec, BaseException], TrialOutcome]


def agent_class(load: Load) -> type:
    """Makes the class of the Ray actors (agents) that run a trial's ranks, one actor on each node.

    The class is nested, so that it is pickled with its code, as nodes cannot import it yet.

    Args:
        load: makes `autofit_workers` importable on the node; it is pickled with its code too.
    """

    class Agent:
        """Ray actor on one node, which runs the ranks of a trial there and can end them."""

        def __init__(self, driver_root: str) -> None:
            import importlib

            load(driver_root)
            self._ranks = importlib.import_module("autofit_workers.trials.ranks")
            self._protocol = importlib.import_module("autofit_workers.spec.protocol")
            self._ended = importlib.import_module("threading").Event()
            self._ran = importlib.import_module("contextlib").ExitStack()
            self._listener: Any = None

        def listen(self, spec_json: str) -> tuple[str, int]:
            """Opens the socket at which all ranks meet, on the node of rank 0; returns its host and port."""
            spec = self._protocol.TrialSpec.from_json(spec_json)
            self._listener = self._ranks.listening(self._address(), spec)
            return self._address(), self._listener.getsockname()[1]

        def run(self, spec_json: str, node: int, meeting: tuple[str, int]) -> list[str | None]:
            """Runs the node's ranks to their end; returns their outcomes as JSON, None for ended ranks.

            Args:
                spec_json: specification of the trial, as JSON.
                node: number of the node, from 0.
                meeting: host and port at which all ranks meet.
            """
            spec = self._protocol.TrialSpec.from_json(spec_json)
            address, port = meeting
            place = self._ranks.Place(
                master_address=address,
                master_port=port,
                address=self._address(),
                node=node,
                num_nodes=spec.num_nodes,
            )
            outcomes = self._ran.enter_context(self._ranks.ran_here(spec, place, self._listener, self._ended))
            return [None if outcome is None else outcome.to_json() for outcome in outcomes]

        def end(self) -> None:
            """Ends the ranks of this node that still run."""
            self._ended.set()

        def close(self) -> None:
            """Ends the processes of this node's ranks, after they have sent their outcomes."""
            self._ran.close()

        def _address(self) -> str:
            from ray.util import get_node_ip_address

            address: str = get_node_ip_address()  # type: ignore[no-untyped-call, unused-ignore]
            return address

    return Agent


class TrialOnNodes:
    """Trial whose ranks run on several nodes of a Ray cluster; a thread of this process supervises it.

    Args:
        spec: spec of the trial, for more than one node.
        request: resources that the trial requests of each of its nodes.
        agent: Ray's actor class, made from `agent_class`.
        driver_root: folder of the package `autofit_workers` on this machine.
        told: returns the outcome of a rank whose node ended with a Ray error; raises the error if it says
            nothing about the trial.
        complete: called at the end with the outcome, or with the error that took its place; not called after
            `cancel`.
    """

    def __init__(
        self,
        spec: TrialSpec,
        request: Request,
        *,
        agent: Any,
        driver_root: str,
        told: Told,
        complete: Callable[[TrialOutcome | BaseException], None],
    ) -> None:
        self.request = request
        self.num_nodes = spec.num_nodes
        self._spec = spec
        self._agent = agent
        self._driver_root = driver_root
        self._told = told
        self._complete = complete
        self._unwanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="autofit-nodes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        """Ends the trial's ranks on all nodes, without an outcome."""
        self._unwanted.set()

    def join(self, timeout_seconds: float) -> None:
        """Waits for the end of the trial's thread, for `timeout_seconds` at most."""
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        try:
            outcome = measured_by(self._measured, self._spec)
        except StoppedError:
            return
        except BaseException as error:  # noqa: BLE001 - the end of the thread, passed on to the caller
            self._complete(error)
            return
        self._complete(outcome)

    def _measured(self, spec: TrialSpec) -> TrialOutcome:
        """Outcome of the trial: reserves its nodes, runs the ranks there, and merges their outcomes."""
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        begin = time.monotonic()
        group = placement_group(
            [dict(self.request)] * spec.num_nodes,
            strategy="STRICT_SPREAD",
            name=f"{spec.workload.name} at {spec.batch_size}",
        )
        agents: list[Any] = []
        try:
            while not group.wait(_LOOK_SECONDS):
                self._require_wanted()
            agents += [self._agent_on(group, node) for node in range(spec.num_nodes)]
            outcomes = self._outcomes(spec, agents)
            closed = [agent.close.remote() for agent in agents]
            ray.wait(closed, num_returns=len(closed), timeout=_END_SECONDS)
        finally:
            for agent in agents:
                ray.kill(agent)
            remove_placement_group(group)
        return dataclasses.replace(joined(spec, outcomes), wall_seconds=time.monotonic() - begin)

    def _agent_on(self, group: Any, node: int) -> Any:
        """Ray actor on one of the reserved nodes."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        custom = {name: amount for name, amount in self.request.items() if name not in RAY_OPTIONS}
        options = self._agent.options(
            num_cpus=self.request["CPU"],
            num_gpus=self.request.get("GPU", 0),
            memory=self.request.get("memory"),
            resources=custom,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=node
            ),
        )
        return options.remote(self._driver_root)

    def _outcomes(self, spec: TrialSpec, agents: Sequence[Any]) -> list[TrialOutcome | None]:
        """Runs the ranks of a trial on all nodes, and returns their outcomes in order.

        When one rank fails, the others are ended; the outcome of a rank that was ended so is None.

        Args:
            agents: actors on the nodes, in the order of nodes.
        """
        import ray

        text = spec.to_json()
        meeting = agents[0].listen.remote(text)
        answers = {agent.run.remote(text, node, meeting): node for node, agent in enumerate(agents)}
        told: dict[int, list[TrialOutcome | None]] = {}
        waiting, give_up = list(answers), None
        while waiting and (give_up is None or time.monotonic() < give_up):
            self._require_wanted(agents)
            done, waiting = ray.wait(waiting, timeout=_LOOK_SECONDS)
            for answer in done:
                told[answers[answer]] = self._answered(spec, answer)
            has_ended = any(not took_all_steps(each) for node in told.values() for each in node)
            if has_ended and give_up is None:
                give_up = time.monotonic() + _END_SECONDS
                _end(agents[answers[answer]] for answer in waiting)
        for answer in waiting:
            silent = TimeoutError(f"it did not answer within {_END_SECONDS:g} s of another node's end")
            told[answers[answer]] = self._lost(spec, silent)
        return [outcome for node in sorted(told) for outcome in told[node]]

    def _answered(self, spec: TrialSpec, answer: Any) -> list[TrialOutcome | None]:
        """Outcomes of one node's ranks, from the answer of its actor; all `LOST` if the node died."""
        import ray
        from ray.exceptions import RayError

        try:
            texts: list[str | None] = ray.get(answer)
        except RayError as error:
            return self._lost(spec, error)
        return [None if text is None else TrialOutcome.from_json(text) for text in texts]

    def _lost(self, spec: TrialSpec, error: BaseException) -> list[TrialOutcome | None]:
        return [self._told(spec, error)] * spec.processes_per_node

    def _require_wanted(self, agents: Sequence[Any] = ()) -> None:
        if self._unwanted.is_set():
            _end(agents)
            raise StoppedError


def _end(agents: Iterable[Any]) -> None:
    for agent in agents:
        agent.end.remote()  # no answer comes from a lost node
