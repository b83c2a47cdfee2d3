"""Makes outcomes of trials that learned nothing about memory, in the supervisor and in the child process."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.protocol import (
    Device,
    Evidence,
    Probe,
    TrialError,
    TrialOutcome,
    TrialSpec,
    Verdict,
)

UNKNOWN = "unknown"


def without_answer(
    spec: TrialSpec,
    verdict: Verdict,
    error: TrialError | None,
    *,
    device: Device | None = None,
    environment: Mapping[str, str] | None = None,
) -> TrialOutcome:
    """Outcome of a trial that did not show how much memory is needed, such as a failed one.

    Args:
        spec: the trial.
        verdict: how it ended.
        error: the reason, for the user; None for none.
        device: device that it ran on; None for what is known of it without the trial.
        environment: conditions of the trial, by name.
    """
    return TrialOutcome(
        verdict=verdict,
        evidence=evidence_sought(spec),
        device=device or _device_sought(spec),
        batch_size=spec.batch_size,
        knobs=spec.knobs,
        error=error,
        environment=dict(environment or {}),
    )


def answering(spec: TrialSpec, outcome: TrialOutcome) -> TrialOutcome:
    """Returns `outcome`, or one with the verdict `INVALID` if it is of another configuration than `spec`.

    A size is called measured only if exactly the batch size, options and ranks of the spec ran, whatever a
    worker did with the spec. An outcome that is not about memory is returned as it is.
    """
    same = (outcome.batch_size, outcome.knobs) == (spec.batch_size, spec.knobs)
    if outcome.was_run:
        same = same and max(1, len(outcome.ranks)) == spec.num_processes
    if same or not outcome.verdict.is_about_memory:
        return outcome
    ran = f"batch {outcome.batch_size} with {outcome.knobs.to_dict()}{_on(len(outcome.ranks))}"
    asked = f"batch {spec.batch_size} with {spec.knobs.to_dict()}{_on(spec.num_processes)}"
    message = f"the worker ran {ran} but was asked for {asked}: install the same autofit on every machine"
    error = TrialError(kind="worker", message=message)
    return without_answer(spec, Verdict.INVALID, error, device=outcome.device)


def _on(num_ranks: int) -> str:
    return f" on {num_ranks} ranks" if num_ranks > 1 else ""


def evidence_sought(spec: TrialSpec) -> Evidence:
    """Kind of evidence that a trial gives, by its probe (prediction, CUDA or CPU).

    A trial on CUDA under the budget of another card gives `EMULATED`.
    """
    match spec.probe:
        case Probe.PREDICT:
            return Evidence.PREDICTED
        case Probe.CPU:
            return Evidence.MEASURED_CPU
        case Probe.CUDA:
            is_own = spec.is_own_budget or spec.budget_bytes is None
            return Evidence.MEASURED if is_own else Evidence.EMULATED


def _device_sought(spec: TrialSpec) -> Device:
    if spec.probe is Probe.CPU:
        return Device(kind="cpu", name=processor_name())
    return Device(kind=GPU_KIND, name=spec.architecture if spec.probe is Probe.PREDICT else UNKNOWN)


def processor_name() -> str:
    """Name of the processor as Linux gives it, else the machine's architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
