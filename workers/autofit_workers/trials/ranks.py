"""Runs a trial of several ranks, one process each, and merges the ranks' outcomes into one.

    ran_here ─┬─ a thread ── `Child` of rank 0 ── holds the store ◀──┐
              ├─ a thread ── `Child` of rank 1 ── meets them there ──┤
              └─ …                        ranks on other machines ───┘
    the first that does not fit ──▶ the others are ended, as they wait for it in a collective

Each rank is a process as in `isolate`, in a process group of its own, under the budget of one
rank; they share the deadline. They connect to a socket that listens on the machine of rank 0 before any of
them starts, so that no port is guessed.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from autofit_workers.process.boundary.variables import LISTENER
from autofit_workers.spec.protocol import Peaks, RankPeaks, TrialOutcome, TrialSpec, Verdict
from autofit_workers.trials.isolate import Child, ended_by, environment_of, require_wanted
from autofit_workers.trials.supervision import StoppedError

HOST = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # linux/sockios.h: netdevice(7), the address of an interface
_LOOK_SECONDS = 0.1
# Seconds for other ranks to end after one has ended, which shows whose failure made the others fail.
_SETTLE_SECONDS = 0.5
# Verdicts in the order in which a rank's becomes the trial's. A rank whose peer died fails for that reason
# alone.
_DECISIVE = (
    Verdict.OOM,
    Verdict.LOST,
    Verdict.FAILED,
    Verdict.INVALID,
    Verdict.TIMEOUT,
    Verdict.THRASH,
    Verdict.FITS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Machine that ranks of a trial run on, and the address at which all ranks of the trial meet.

    Attributes:
        num_nodes: number of machines that the ranks run on.
        node: number of this machine among them.
        address: address of this machine, by which ranks on others reach its ranks.
        master_address, master_port: address and port of the socket at which all ranks meet, on the machine of
            rank 0.
    """

    master_port: int
    master_address: str = HOST
    address: str = HOST
    node: int = 0
    num_nodes: int = 1


def run_ranks(spec: TrialSpec) -> TrialOutcome:
    """Runs all ranks of a trial on this machine, each in a fresh process, and returns the trial's outcome."""
    begin = time.monotonic()
    with listening(HOST, spec) as listener:
        place = Place(master_port=listener.getsockname()[1])
        with ran_here(spec, place, listener) as outcomes:
            outcome = joined(spec, outcomes)
    return dataclasses.replace(outcome, wall_seconds=time.monotonic() - begin)


def listening(address: str, spec: TrialSpec) -> socket.socket:
    """Listening socket at which the ranks of a trial meet; to be opened on the machine of rank 0.

    Args:
        address: address of this machine.
        spec: the trial.

    Raises:
        OSError: this machine does not have the address.
    """
    return socket.create_server((address, 0), backlog=spec.num_processes)


@contextmanager
def ran_here(
    spec: TrialSpec,
    place: Place,
    listener: socket.socket | None,
    ended_elsewhere: threading.Event | None = None,
) -> Iterator[list[TrialOutcome | None]]:
    """Context manager that runs the ranks of one machine, and yields their outcomes in the order of ranks.

    The outcome is None for a rank that was ended because another rank had failed. The processes of ranks that
    sent their outcome live until the block ends, because ranks on other machines would fail if they ended
    earlier.

    Args:
        spec: the trial.
        place: this machine.
        listener: socket at which all ranks meet; None on other machines than rank 0's.
        ended_elsewhere: set once a rank of another machine has failed, so the ranks here cannot
            complete; None if all ranks run here.
    """
    num_ranks = spec.num_processes // place.num_nodes
    with ThreadPoolExecutor(num_ranks, thread_name_prefix="autofit-rank") as pool:
        children = [_child(spec, local_rank, place, listener) for local_rank in range(num_ranks)]
        over = threading.Event()
        futures = [pool.submit(_run, child, spec, over) for child in children]
        try:
            try:
                _wait(futures, ended_elsewhere)
            finally:
                over.set()
                wait(futures)
            yield [future.result() for future in futures]
        finally:
            list(pool.map(Child.close, children))


def took_all_steps(outcome: TrialOutcome | None) -> bool:
    """Whether a rank completed all its steps; if it did not, other ranks may wait for it forever.

    Args:
        outcome: outcome of the rank; None if it was ended because of another rank.
    """
    return outcome is not None and outcome.verdict in (Verdict.FITS, Verdict.THRASH)


def joined(spec: TrialSpec, outcomes: Sequence[TrialOutcome | None]) -> TrialOutcome:
    """Outcome of a trial of several ranks, from the outcomes of its ranks.

    It is that of the rank with the gravest verdict, and among those of the rank with the largest peak,
    together with the peaks of all ranks.

    Args:
        spec: the trial.
        outcomes: outcome of each rank; None for a rank that was ended because another had failed.
    """
    ended = [(rank, outcome) for rank, outcome in enumerate(outcomes) if outcome is not None]
    rank, decisive = min(
        ended,
        key=lambda each: (_DECISIVE.index(each[1].verdict), -(each[1].budgeted_bytes or 0), each[0]),
    )
    said = f"rank {rank} of {len(outcomes)}: "
    if decisive.verdict is Verdict.TIMEOUT and all(each.verdict is Verdict.TIMEOUT for _, each in ended):
        said = f"{len(ended)} of {len(outcomes)} ranks, of which some may wait for others: "
    error, environment = decisive.error, dict(decisive.environment)
    if error is not None:
        error = dataclasses.replace(error, message=said + error.message)
    environment.pop(LISTENER, None)
    if "out_of_memory" in environment:
        environment["out_of_memory"] = said + environment["out_of_memory"]
    return dataclasses.replace(
        decisive,
        error=error,
        environment=environment,
        # All ranks wait for the slowest.
        step_seconds=max((each.step_seconds for _, each in ended if each.step_seconds), default=None),
        parallel=str(spec.setup.parallel),
        rank=rank,
        ranks=tuple(
            RankPeaks(rank=each, peaks=Peaks() if outcome is None else outcome.peaks)
            for each, outcome in enumerate(outcomes)
        ),
    )


def variables_of(local_rank: int, num_ranks: int, place: Place, visible: str | None) -> dict[str, str]:
    """Environment variables of one rank: those that torchrun sets, and `CUDA_VISIBLE_DEVICES` for its card.

    Every rank sees its own card as device 0. NCCL nevertheless uses direct transfers between the cards,
    although each rank sees only one (`p2pCanConnect` of its transport/p2p.cc, from CUDA 10.1 on).

    Args:
        local_rank: number of the rank on this machine.
        num_ranks: number of ranks on all machines.
        place: this machine.
        visible: `CUDA_VISIBLE_DEVICES` of this machine; None for all its cards.
    """
    num_local_ranks = num_ranks // place.num_nodes
    cards = [*map(str, range(num_local_ranks))] if visible is None else visible.replace(" ", "").split(",")
    return {
        "RANK": str(place.node * num_local_ranks + local_rank),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(place.node),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_local_ranks),
        "MASTER_ADDR": place.master_address,
        "MASTER_PORT": str(place.master_port),
        "CUDA_VISIBLE_DEVICES": cards[local_rank] if local_rank < len(cards) else "",
    }


def _child(spec: TrialSpec, local_rank: int, place: Place, listener: socket.socket | None) -> Child:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    variables = variables_of(local_rank, spec.num_processes, place, visible)
    variables |= _of_gloo(os.environ, place.address) | environment_of(
        spec
    )  # the variable hides cards from a CPU trial
    of_script = spec.workload.kind == "script"
    if listener is None or local_rank > 0:
        return Child(variables, of_script=of_script)
    descriptor = listener.fileno()
    return Child(variables | {LISTENER: str(descriptor)}, inherited=(descriptor,), of_script=of_script)


def _of_gloo(environment: Mapping[str, str], address: str) -> dict[str, str]:
    """Environment variable by which Gloo uses the network interface that has an address.

    Args:
        environment: variables that are set already.
        address: IPv4 address of this machine.

    Returns:
        `GLOO_SOCKET_IFNAME`; empty if it is set already, or if no interface has the address.
    """
    if "GLOO_SOCKET_IFNAME" in environment:
        return {}
    name = next((name for _, name in socket.if_nameindex() if _has_address(name, address)), None)
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name}


def _has_address(interface: str, address: str) -> bool:
    """Whether a network interface has the IPv4 address `address`."""
    if address == HOST:
        return interface in ("lo", "lo0")  # of Linux, of macOS
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, suppress(OSError):
        request = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)[20:24]) == address
    return False


def _run(child: Child, spec: TrialSpec, over: threading.Event) -> TrialOutcome | None:
    with ended_by(over):
        try:
            return child.run(spec)
        except StoppedError:
            return None


def _wait(futures: Sequence[Future[TrialOutcome | None]], ended_elsewhere: threading.Event | None) -> None:
    """Waits until all ranks have ended, or until one has failed, so the others cannot complete.

    Args:
        futures: outcomes of the ranks of this machine.
        ended_elsewhere: set once a rank of another machine has failed; None if all ranks run here.

    Raises:
        StoppedError: the trial is not wanted any more.
    """
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
        require_wanted()
        if ended_elsewhere is not None and ended_elsewhere.is_set():
            return
        if any(not _has_run(future) for future in done):
            wait(pending, timeout=_SETTLE_SECONDS)
            return


def _has_run(future: Future[TrialOutcome | None]) -> bool:
    return future.exception() is None and took_all_steps(future.result())
