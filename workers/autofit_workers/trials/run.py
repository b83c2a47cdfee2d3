"""Runs any trial: takes a spec and returns an outcome, even if the trial fails."""

from __future__ import annotations

import atexit
import dataclasses
from collections.abc import Callable

from autofit_workers.process.child_process import NO_GPU
from autofit_workers.process.operating_system import num_processors
from autofit_workers.spec.documents import parse_json
from autofit_workers.spec.errors import StaleTensorError
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.protocol import DECIDED, FOLLOW_UP, Probe, TrialOutcome, TrialSpec, Verdict
from autofit_workers.spec.workloads.launcher_commands import launcher_command
from autofit_workers.trials.isolate import STEADY_MALLOC, Child, run_fresh
from autofit_workers.trials.ranks import run_ranks

# Kept from the first prediction to the end of this process: importing torch takes seconds, and
# predictions leave nothing behind that a later one could notice.
_predictor = Child(NO_GPU)
_second_predictor = Child(NO_GPU)  # see `_predicted_for_a_card`
# A process of its own, because kernels of other libraries stay in the modules of transformers.
_kernels_predictor = Child(NO_GPU)
# A process of its own, because PyTorch has a GPU in the other ones; its malloc settings are a trial's.
_host_predictor = Child(NO_GPU | STEADY_MALLOC)

# Exceptions of code that runs out of memory without saying so: oneDNN's "could
# not execute a primitive" is a RuntimeError, an extension that ignores a NULL raises SystemError or
# crashes, one that cannot be mapped raises ImportError. Never SIGKILL: a limit of this kind makes requests
# fail and kills no process.
_UNNAMED_EXCEPTIONS = ("RuntimeError", "SystemError", "ImportError")
_VARIABLES_OF_LAUNCHERS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_MOST_TURNED = 3  # branches, each of which costs a run
_UNNAMED_DEATHS = ("SIGABRT", "SIGSEGV", "SIGBUS", "exit code 1")


def run(spec: TrialSpec) -> TrialOutcome:
    """Runs a trial (a measured or predicted run) in a process of its own and returns its outcome.

    A measured trial gets a fresh process, or one for each of its ranks, and so does a script. Other
    predictions share one process, or two if several run in parallel; those with kernels of other libraries
    have their own. Shared processes live until this process ends. Errors become outcomes; only an
    interruption of this process raises.
    """
    if spec.probe is Probe.PREDICT:
        return _predicted(spec)
    return measured_by(_measured, spec)


def measured_by(measure: Callable[[TrialSpec], TrialOutcome], spec: TrialSpec) -> TrialOutcome:
    """Measures a trial; if it fails on the CPU for an unclear reason, repeats it without its memory limit.

    If it then succeeds, memory was the reason, and the outcome is `OOM`.

    Args:
        measure: measures a trial, once.
        spec: the trial.
    """
    outcome = measure(spec)
    if (
        spec.probe is Probe.CPU
        and spec.budget_bytes is not None
        and may_be_memory(outcome, of_script=spec.workload.kind == "script")
    ):
        return _decided_without_limit(measure, spec, outcome)
    return outcome


def start_predictor(*, for_host: bool = False, several: bool = False) -> None:
    """Starts the process that predicts, without waiting for it, so that its start-up overlaps other work.

    Args:
        for_host: whether to start the process for predictions for the CPU, rather than for cards.
        several: whether two predictions for cards will run at a time, so that a second process is started;
            not on a machine of one core.

    Raises:
        OSError: the system refuses another process.
    """
    (_host_predictor if for_host else _predictor).start()
    if several and not for_host and num_processors() > 1:
        _second_predictor.start()


@atexit.register
def close_predictor() -> None:
    """Ends the processes that predict; a later prediction starts a new one."""
    for child in (_predictor, _second_predictor, _kernels_predictor, _host_predictor):
        child.close()


def may_be_memory(outcome: TrialOutcome, *, of_script: bool = False) -> bool:
    """Whether a trial under a memory limit may have failed for lack of memory, though its error names none.

    Args:
        outcome: outcome of the trial.
        of_script: whether the trial is of a script, which may catch that memory ran out, and then exit, go on
            with a smaller batch, or raise any error.
    """
    if outcome.verdict is Verdict.LOST:
        return outcome.environment.get("exit") in _UNNAMED_DEATHS
    if of_script and outcome.verdict in (Verdict.FAILED, Verdict.INVALID):
        return outcome.error is not None and outcome.error.kind == "user"
    return outcome.verdict is Verdict.FAILED and outcome.environment.get("exception") in _UNNAMED_EXCEPTIONS


def _measured(spec: TrialSpec) -> TrialOutcome:
    return run_ranks(spec) if spec.num_processes > 1 else run_fresh(spec)


def _predicted(spec: TrialSpec) -> TrialOutcome:
    """Outcome of a prediction, which is repeated if it failed for a guess about unknown values.

    A prediction has no tensor values, so at a branch on one it takes the likelier way. If it fails, it is
    repeated with one of these branches taken the other way, the last one first. It is also repeated, under
    torchrun's variables, if a script failed for lack of them.
    """
    outcome = _predicted_once(spec)
    if _lacks_launcher(outcome) and spec.workload.script is not None:
        script = spec.workload.script
        launcher = launcher_command(None, 1, 1, module=bool(script.module))
        script = dataclasses.replace(script, launcher=launcher)
        spec = dataclasses.replace(spec, workload=dataclasses.replace(spec.workload, script=script))
        outcome = _predicted_once(spec)
    for site in _decided(outcome)[::-1][:_MOST_TURNED]:
        other = _predicted_once(dataclasses.replace(spec, turned=(site,)))
        if other.verdict is Verdict.TRACED:
            return other
    return outcome


def _decided(outcome: TrialOutcome) -> tuple[str, ...]:
    """Source lines of the branches on unknown values that a failed prediction took; empty if unreadable."""
    try:
        return from_plain(tuple[str, ...], parse_json(outcome.environment.get(DECIDED, "[]")))
    except ValueError:
        return ()


def _lacks_launcher(outcome: TrialOutcome) -> bool:
    """Whether a script failed because it looked for an environment variable that torchrun sets."""
    message = "" if outcome.error is None else outcome.error.message
    return any(message.startswith(f"KeyError: '{name}'") for name in _VARIABLES_OF_LAUNCHERS)


def _predicted_once(spec: TrialSpec) -> TrialOutcome:
    if spec.workload.kind == "script":
        return run_fresh(spec)  # a script may leave anything behind in its process
    if spec.is_for_host:
        outcome = _host_predictor.run(spec)
    elif spec.knobs.kernels != "default":
        outcome = _kernels_predictor.run(spec)
    else:
        outcome = _predicted_for_a_card(spec)
    if outcome.error is not None and outcome.error.kind == StaleTensorError.kind:
        return run_fresh(spec)
    return outcome


def _predicted_for_a_card(spec: TrialSpec) -> TrialOutcome:
    """Predicts for a card, in whichever of the two predicting processes is free.

    Unless it was started ahead, the second process starts only once the first has predicted for as long as
    its own start took.
    """
    outcome = _predictor.run_if_free(spec)
    if outcome is None and (
        _second_predictor.is_started or _predictor.busy_seconds > _predictor.start_seconds
    ):
        outcome = _second_predictor.run_if_free(spec)
    return outcome or _predictor.run(spec)


def _decided_without_limit(
    measure: Callable[[TrialSpec], TrialOutcome], spec: TrialSpec, limited: TrialOutcome
) -> TrialOutcome:
    """Outcome of a trial that failed under its memory limit, decided by a rerun without the limit.

    It is `OOM` if the rerun succeeds, else the rerun's outcome.

    Args:
        measure: measures a trial, once.
        spec: the trial.
        limited: its outcome under the limit.
    """
    unlimited = measure(_without_limit(spec, limited))
    wall_seconds = limited.wall_seconds + unlimited.wall_seconds
    reason = limited.error.message if limited.error else ""
    if unlimited.verdict is not Verdict.FITS:
        environment = {**unlimited.environment, "under_the_limit": reason}
        return dataclasses.replace(unlimited, wall_seconds=wall_seconds, environment=environment)
    num_steps = unlimited.num_steps_done
    evidence = (
        f"{reason}; without the limit the same size completes {num_steps} step{'s'[: num_steps != 1]} with a "
        f"peak resident set of {unlimited.steady.device_bytes} bytes"
    )
    return dataclasses.replace(
        limited,
        verdict=Verdict.OOM,
        error=None,
        num_ooms=1,
        wall_seconds=wall_seconds,
        environment={**limited.environment, "out_of_memory": evidence},
    )


def _without_limit(spec: TrialSpec, limited: TrialOutcome) -> TrialSpec:
    """Spec of a rerun without the memory limit, which runs one step further than the limited trial did.

    Args:
        spec: the trial.
        limited: its outcome under the limit.
    """
    unlimited = dataclasses.replace(spec, budget_bytes=None)
    if limited.phase in FOLLOW_UP:
        return unlimited
    num_warmup_steps = min(spec.num_warmup_steps, limited.num_steps_done)
    return dataclasses.replace(
        unlimited,
        num_warmup_steps=num_warmup_steps,
        num_steps=min(spec.num_steps, limited.num_steps_done - num_warmup_steps + 1),
        with_follow_up=False,
    )
