"""Child process of `autofit_workers.trials.isolate`: reads trial specs, runs them, writes outcomes.

Only here exceptions become outcomes: an exception that a workload raises is an error of its user, which the
outcome reports.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from autofit_workers.process.descendants import kill_below
from autofit_workers.process.garbage import importing
from autofit_workers.process.heart import Heart, LastWord, Report, unheard
from autofit_workers.process.messages import received, told
from autofit_workers.process.sources import used_files, watch
from autofit_workers.spec.errors import InvalidTrialError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    DECIDED,
    PREDICTION,
    Device,
    Evidence,
    Heartbeat,
    Probe,
    TrialError,
    TrialOutcome,
    TrialSpec,
    Verdict,
)
from autofit_workers.trials.outcomes import UNKNOWN, without_answer


def main(specs_fd: int, outcomes_fd: int) -> None:
    """Runs the trials whose specs arrive, one JSON line each, and answers each with its outcome's JSON.

    It ends when an empty line comes.

    Args:
        specs_fd, outcomes_fd: file descriptors that specs are read from and outcomes are written to.
    """
    specs = received(specs_fd, outcomes_fd)
    with importing(), suppress(Exception):  # `answer` reports it once there is a trial to answer
        import torch  # noqa: F401 - imported while the supervisor prepares
    heart = Heart(outcomes_fd)
    while spec := specs.get():
        heart.answer(answer(spec, heart.report, partial(_leave_behind, heart)).to_json())


def _leave_behind(heart: Heart, outcome: TrialOutcome) -> None:
    """Sends an outcome to the supervisor, then ends this process with its script and all child processes.

    No exit handler of the script runs, and no thread of it is waited for.
    """
    kill_below(os.getpid())
    heart.answer(outcome.to_json())
    os._exit(0)


def answer(
    text: str, report: Report = unheard, conclude: Callable[[TrialOutcome], None] | None = None
) -> TrialOutcome:
    """Runs the trial that a spec's JSON describes, and returns its outcome.

    Errors, of the spec or of the workload, become outcomes too.

    Args:
        text: the JSON of a `TrialSpec`.
        report: called for every phase of the trial.
        conclude: for a script that was predicted or cannot be ended otherwise: called with its outcome, sends
            it in place of the caller, and ends the process. None to return every outcome.
    """
    try:
        spec = TrialSpec.from_json(text)
    except (ValueError, KeyError, TypeError) as error:
        return _refused(f"the spec cannot be read ({error}): install the same autofit on every machine")
    try:
        import torch  # noqa: F401
    except Exception as error:  # noqa: BLE001 - a broken build raises OSError, and others after it
        why = error if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        message = f"PyTorch cannot be imported ({why}): install torch into this environment"
        return without_answer(spec, Verdict.FAILED, TrialError(kind="environment", message=message))
    last_beat = Heartbeat(phase="start")

    def listened(beat: Heartbeat) -> None:
        nonlocal last_beat
        last_beat = beat
        report(beat)

    def caught(run: Callable[[], TrialOutcome]) -> TrialOutcome:
        try:
            outcome = run()
        except BaseException as error:  # noqa: BLE001 - the process boundary
            failed = _failed(spec, error)
            outcome = dataclasses.replace(
                failed, phase=last_beat.phase, num_steps_done=last_beat.num_steps_done
            )
        if spec.probe is not Probe.PREDICT:
            return outcome
        return dataclasses.replace(outcome, sources=used_files())

    def last_word(run: Callable[[], TrialOutcome]) -> None:
        if conclude is not None:
            conclude(caught(run))

    if spec.probe is Probe.PREDICT:
        watch()
    outcome = caught(lambda: _run(spec, listened, last_word))
    if conclude is not None and spec.probe is Probe.PREDICT and spec.workload.kind == "script":
        conclude(outcome)  # code that the script would run at its end is no part of the prediction
    return outcome


def _run(spec: TrialSpec, report: Report, last_word: LastWord) -> TrialOutcome:
    """Runs a trial by its probe: predicts it, or measures it on a card or on the CPU."""
    # A late import, because a prediction must not touch CUDA's modules before its hooks are in place.
    if spec.probe is Probe.PREDICT:
        with importing():
            from autofit_workers.tracing import probe

        report(Heartbeat(phase=PREDICTION))
        return probe.predict(spec, last_word, report)
    if spec.probe is Probe.CUDA:
        from autofit_workers.trials.measure import cuda

        return cuda.measure(spec, report, last_word)
    from autofit_workers.trials.measure import cpu

    return cpu.measure(spec, report, last_word)


def _failed(spec: TrialSpec, error: BaseException) -> TrialOutcome:
    """Outcome of a trial that raised an error, with the error's text for the user."""
    verdict = Verdict.INVALID if isinstance(error, InvalidTrialError) else Verdict.FAILED
    device = None
    if spec.probe is Probe.CUDA:
        from autofit_workers.trials.measure import cuda

        device = cuda.device_at_hand()
    said = told(error)
    environment = {"exception": type(error).__name__}
    if spec.probe is Probe.PREDICT and said.kind == "user":
        from autofit_workers.tracing.values.decisions import running

        environment[DECIDED] = json.dumps([site for site in running().taken if site not in spec.turned])
    return without_answer(spec, verdict, said, device=device, environment=environment)


def _refused(message: str) -> TrialOutcome:
    """Outcome `FAILED` for a text that is no readable trial spec; its batch size and device are unknown."""
    return TrialOutcome(
        verdict=Verdict.FAILED,
        evidence=Evidence.PREDICTED,
        device=Device(kind=UNKNOWN, name=UNKNOWN),
        batch_size=0,
        knobs=Knobs(),
        error=TrialError(kind="protocol", message=message),
    )
