"""A trial of several ranks: a process for each, started together, ended together, one outcome.

    run_ranks ─┬─ a thread ── `Child` of rank 0 ── holds the store ◀──┐
               ├─ a thread ── `Child` of rank 1 ── meets them there ──┤
               └─ …
    the first that does not fit ──▶ the others are ended: they wait for it in a collective

Each rank is a trial's process as `isolate` has it, in a process group of its own, under the budget of one
rank; they share the deadline. They meet at a socket that listens here before any of them starts, so that no
port is guessed.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from workers.process.isolate import Child, ended_by, environment_of, require_wanted
from workers.process.supervision import StoppedError
from workers.protocol import Peaks, RankPeaks, TrialOutcome, TrialSpec, Verdict

HOST = "127.0.0.1"
LISTENER = "_AUTOFIT_LISTENER"  # for rank 0, the descriptor of that socket
_LOOK_SECONDS = 0.1
# What became of others when one has ended: whose death it was that made it fail.
_SETTLE_SECONDS = 0.5
# Which rank's verdict is the trial's. A rank whose peer died fails for that reason alone.
_DECISIVE = (
    Verdict.OOM,
    Verdict.LOST,
    Verdict.FAILED,
    Verdict.INVALID,
    Verdict.TIMEOUT,
    Verdict.THRASH,
    Verdict.FITS,
)


def run_ranks(spec: TrialSpec) -> TrialOutcome:
    """Runs all ranks of one trial, on this machine, each in a process that does nothing else."""
    begin = time.monotonic()
    with (
        socket.create_server((HOST, 0), backlog=spec.num_processes) as listener,
        ThreadPoolExecutor(spec.num_processes, thread_name_prefix="autofit-rank") as pool,
    ):
        children = [_child(spec, rank, listener) for rank in range(spec.num_processes)]
        over = threading.Event()
        futures = [pool.submit(_run, child, spec, over) for child in children]
        try:
            _wait(futures)
        finally:
            over.set()
            wait(futures)
            list(pool.map(Child.close, children))
    outcome = joined(spec, [future.result() for future in futures])
    return dataclasses.replace(outcome, wall_seconds=time.monotonic() - begin)


def joined(spec: TrialSpec, outcomes: Sequence[TrialOutcome | None]) -> TrialOutcome:
    """One outcome of those of all ranks, in their order: that of the rank which decides it.

    Args:
        outcomes: None for a rank that was ended for what became of another.
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
        # All wait for the slowest.
        step_seconds=max((each.step_seconds for _, each in ended if each.step_seconds), default=None),
        parallel=str(spec.setup.parallel),
        rank=rank,
        ranks=tuple(
            RankPeaks(rank=each, peaks=Peaks() if outcome is None else outcome.peaks)
            for each, outcome in enumerate(outcomes)
        ),
    )


def variables_of(rank: int, num_ranks: int, port: int, visible: str | None) -> dict[str, str]:
    """What PyTorch's launcher tells a rank, and the one card that it sees.

    Every rank has its card as device 0. NCCL takes the direct way between cards that do not see each other
    all the same (`p2pCanConnect` of its transport/p2p.cc, from CUDA 10.1 on).

    Args:
        visible: `CUDA_VISIBLE_DEVICES` of all of them; None for all cards of the machine.
    """
    cards = [*map(str, range(num_ranks))] if visible is None else visible.replace(" ", "").split(",")
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "CUDA_VISIBLE_DEVICES": cards[rank] if rank < len(cards) else "",
    }


def _child(spec: TrialSpec, rank: int, listener: socket.socket) -> Child:
    port = listener.getsockname()[1]
    variables = variables_of(rank, spec.num_processes, port, os.environ.get("CUDA_VISIBLE_DEVICES"))
    variables |= _loopback(os.environ) | environment_of(spec)  # which hides cards from a CPU trial
    if rank > 0:
        return Child(variables)
    descriptor = listener.fileno()
    return Child(variables | {LISTENER: str(descriptor)}, inherited=(descriptor,))


def _loopback(environment: Mapping[str, str]) -> dict[str, str]:
    """Has gloo connect ranks within the machine, whatever network it has."""
    if "GLOO_SOCKET_IFNAME" in environment:
        return {}
    names = {name for _, name in socket.if_nameindex()}
    name = next((name for name in ("lo", "lo0") if name in names), None)  # of Linux, of macOS
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name}


def _run(child: Child, spec: TrialSpec, over: threading.Event) -> TrialOutcome | None:
    with ended_by(over):
        try:
            return child.run(spec)
        except StoppedError:
            return None


def _wait(futures: Sequence[Future[TrialOutcome | None]]) -> None:
    """Waits until all ranks have ended, or one in a way that leaves the others no end of their own.

    Raises:
        StoppedError: nobody wants the trial any more.
    """
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
        require_wanted()
        if any(not _has_run(future) for future in done):
            wait(pending, timeout=_SETTLE_SECONDS)
            return


def _has_run(future: Future[TrialOutcome | None]) -> bool:
    """Whether a rank took all of its steps, so that the others can too."""
    outcome = None if future.exception() is not None else future.result()
    return outcome is not None and outcome.verdict in (Verdict.FITS, Verdict.THRASH)
