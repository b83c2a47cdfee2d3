"""Turns the outcomes of failed trials into the errors that end a command."""

from __future__ import annotations

from autofit.errors import (
    DispatchError,
    InapplicableError,
    InfrastructureError,
    MissingLibraryError,
    UnknownModelError,
    WorkloadFailedError,
)
from autofit_workers.spec.protocol import TrialOutcome, Verdict

# Kinds of failure in which the workload cannot be predicted, but may run: it has to be measured.
UNPREDICTABLE = ("data-dependent", "unsupported", "dispatch", "infrastructure")


def raise_if_failed(outcome: TrialOutcome) -> None:
    """Raises an error that ends the command, if a trial failed and so says nothing about memory.

    A trial is one run or prediction of a configuration. For other outcomes it returns.

    Raises:
        WorkloadFailedError: the workload failed (verdict FAILED), or did not compute what it should
            (INVALID).
        DispatchError: the trial's process died (LOST) or hung (TIMEOUT).
        InfrastructureError: the machine lacks what the trial needs, or the worker is another version.
        InapplicableError: a requested knob value applies to nothing in the workload.
        MissingLibraryError: a requested value of a knob needs a library that is not installed.
        UnknownModelError: the library in the workload's reference has no model of that name.
    """
    if outcome.verdict is Verdict.TRACED or outcome.verdict.is_about_memory:
        return
    error = outcome.error
    message = error.message if error is not None else f"the trial ended {outcome.verdict}"
    if outcome.verdict in (Verdict.LOST, Verdict.TIMEOUT):
        raise DispatchError(f"batch {outcome.batch_size}: {message}")
    if error is not None and error.kind == "inapplicable":
        raise InapplicableError(message)
    if error is not None and error.kind == "unknown-model":
        raise UnknownModelError(message)
    if error is not None and error.kind == "missing-library":
        raise MissingLibraryError(message)
    if error is not None and error.kind in ("environment", "protocol"):
        raise InfrastructureError(message)
    kind = "workload" if error is None or error.kind == "user" else error.kind
    raise WorkloadFailedError(message, kind=kind, traceback="" if error is None else error.traceback)
