"""Stored records of trials: their contents, and the order in which these are written.

A coordinator may be killed, or lose its connection, between any two writes:

    asked   RUNNING with owner and lease, knobs, batch size, purpose: in one write
                                                               found later: given up, and repeated
    told    ─ trace digest, prediction ─ outcome               found later: its remaining fields are written
            ─ verdict ─ peak ─ constraint ─ COMPLETE or FAIL

A trial is COMPLETE if its outcome says whether its batch size fits. Its value, which Optuna maximises,
is the batch size if that fits, else 0, and its constraint is positive if the size does not fit. All other
ended trials are FAIL. Every write but the first may be repeated; if a trial was created twice, its owner
notices, since it knows which of the two it runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from autofit.study.damage import (
    UNREADABLE,
    DamagedError,
    NewerError,
    OlderError,
    UnreadableError,
    require_whole,
)
from autofit.study.owner import Owner
from autofit_workers.spec.documents import parse_json
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.protocol import (
    OUTCOME_SCHEMA,
    PROTOCOL_VERSION,
    READABLE_OUTCOMES,
    TrialOutcome,
    Verdict,
)

OUTCOME = "outcome"
TRACE_DIGEST = "trace_digest"

_OWNER = "owner"
_GIVEN_UP = "given_up"
_VERDICT = "verdict"
_PURPOSE = "purpose"
_NUM_STEPS = "num_steps"
_PREDICTED = "predicted_bytes"
_PEAK = "peak_bytes"  # the measured peak that is compared with the budget
# Attribute that Optuna shows as `trial.constraints["memory"]`, at most 0 for a trial that fits. It is written
# by its name, as Optuna 4 has no function that writes it, and ignores it.
_MEMORY_CONSTRAINT = "constraints:memory"
# Attribute of a trial's constraints before Optuna 5 named them, and the one that optuna-dashboard reads.
_UNNAMED_CONSTRAINTS = "constraints"


def owner_of(trial: FrozenTrial) -> Owner | None:
    """Search that started a trial, with its claim (lease) on it; None if autofit did not create the trial.

    Raises:
        UnreadableError: the record is damaged, or of another version.
    """
    require_whole(trial.user_attrs)
    stored = trial.user_attrs.get(_OWNER)
    try:
        return None if stored is None else from_plain(Owner, stored)
    except UNREADABLE as error:
        raise DamagedError(error) from error


def outcome_of(trial: FrozenTrial) -> TrialOutcome | None:
    """Stored outcome of a trial, without its trace; None if the trial has no outcome.

    Raises:
        UnreadableError: the record is damaged, or of another version.
    """
    require_whole(trial.user_attrs)
    text = trial.user_attrs.get(OUTCOME)
    if text is None:
        return None
    try:
        return _outcome(parse_json(text))
    except UnreadableError:
        raise
    except UNREADABLE as error:
        raise DamagedError(error) from error


def _outcome(document: Mapping[str, Any]) -> TrialOutcome:
    schema, _, version = document["schema"].rpartition("/")
    if schema != OUTCOME_SCHEMA:
        raise ValueError(f"schema {document['schema']}")
    if int(version) not in READABLE_OUTCOMES:
        raise NewerError if int(version) > PROTOCOL_VERSION else OlderError
    return from_plain(TrialOutcome, document)


def num_steps_of(trial: FrozenTrial) -> int:
    """Number of training steps that a trial runs, after its warm-up; 0 if none is recorded."""
    num_steps = trial.user_attrs.get(_NUM_STEPS, 0)
    return num_steps if isinstance(num_steps, int) else 0


def predicted_bytes_of(trial: FrozenTrial) -> int | None:
    """Likely peak in bytes that was predicted for a measured trial; None if none is recorded."""
    predicted = trial.user_attrs.get(_PREDICTED)
    return predicted if isinstance(predicted, int) else None


class TrialRecords:
    """Writes the records of one study's trials to its storage.

    Args:
        backend: Optuna's storage.
        study_id: id of the study in the storage.
        budget_bytes: bytes that peaks are compared with.
    """

    def __init__(self, backend: BaseStorage, study_id: int, *, budget_bytes: int) -> None:
        self._backend = backend
        self._study_id = study_id
        self._budget_bytes = budget_bytes

    def create(
        self,
        params: Mapping[str, Any],
        distributions: Mapping[str, BaseDistribution],
        *,
        owner: Owner,
        purpose: str,
        num_steps: int,
    ) -> int:
        """Creates the record of a trial that starts now; returns its id in the storage.

        Args:
            params: knob values and batch size, by name.
            distributions: Optuna's distribution of each parameter.
            owner: search that starts the trial.
            purpose: reason for the trial, a value of `autofit.search.agenda.Purpose`.
            num_steps: number of training steps after the warm-up.
        """
        asked = create_trial(
            state=TrialState.RUNNING,
            params=dict(params),
            distributions=dict(distributions),
            user_attrs={_OWNER: dataclasses.asdict(owner), _PURPOSE: purpose, _NUM_STEPS: num_steps},
        )
        return self._backend.create_new_trial(self._study_id, asked)

    def renew(self, trial_id: int, owner: Owner) -> None:
        """Writes the renewed claim (lease) of a trial's `owner`, unless the trial has ended."""
        with contextlib.suppress(UpdateFinishedTrialError):
            self._backend.set_trial_user_attr(trial_id, _OWNER, dataclasses.asdict(owner))

    def tell(self, trial_id: int, outcome: TrialOutcome, *, predicted_bytes: int | None = None) -> None:
        """Writes the outcome of a trial: verdict, peak, and final state.

        Optuna also gets the excess of the peak over the budget as a constraint.

        Args:
            predicted_bytes: likely peak that was predicted for a measured trial.

        Raises:
            UpdateFinishedTrialError: the trial has ended already.
        """
        if outcome.trace_json is not None:
            digest = hashlib.sha256(outcome.trace_json.encode()).hexdigest()
            self._backend.set_trial_user_attr(trial_id, TRACE_DIGEST, digest)
        if predicted_bytes is not None:
            self._backend.set_trial_user_attr(trial_id, _PREDICTED, predicted_bytes)
        self._backend.set_trial_user_attr(trial_id, OUTCOME, kept(outcome))
        self._finish(trial_id, outcome)

    def holds(self, trial_id: int, outcome: TrialOutcome) -> bool:
        """Whether the trial ended and its stored outcome equals `outcome`."""
        trial = self._backend.get_trial(trial_id)
        return trial.state.is_finished() and trial.user_attrs.get(OUTCOME) == kept(outcome)

    def end(self, trial_id: int, reason: str) -> None:
        """Ends an abandoned trial: with its outcome, if that was written, else as failed for `reason`."""
        trial = self._backend.get_trial(trial_id)
        if trial.state.is_finished():
            return
        try:
            outcome = outcome_of(trial)
        except UnreadableError as error:
            outcome, reason = None, f"{reason}; its outcome {error}"
        with contextlib.suppress(UpdateFinishedTrialError):  # another process has just ended it
            if outcome is not None:
                self._finish(trial_id, outcome)
            else:
                self._backend.set_trial_user_attr(trial_id, _GIVEN_UP, reason)
                self._backend.set_trial_state_values(trial_id, TrialState.FAIL)

    def _finish(self, trial_id: int, outcome: TrialOutcome) -> None:
        """Writes verdict, peak, constraint and final state of a trial, after its outcome was written."""
        self._backend.set_trial_user_attr(trial_id, _VERDICT, outcome.verdict.value)
        if not outcome.verdict.is_about_memory:
            self._backend.set_trial_state_values(trial_id, TrialState.FAIL)
            return
        peak_bytes = outcome.budgeted_bytes
        if peak_bytes is not None:
            self._backend.set_trial_user_attr(trial_id, _PEAK, peak_bytes)
        for key, value in self._constraint(outcome.verdict, peak_bytes):
            self._backend.set_trial_system_attr(trial_id, key, value)
        # Not the size itself, because Optuna's dashboard and summaries of studies show the best trial by its
        # value, and would show one that does not fit.
        value = float(outcome.batch_size) if outcome.verdict is Verdict.FITS else 0.0
        self._backend.set_trial_state_values(trial_id, TrialState.COMPLETE, [value])

    def _constraint(self, verdict: Verdict, peak_bytes: int | None) -> Iterator[tuple[str, Any]]:
        """Yields the Optuna attributes of the memory constraint: the peak's excess as a share of the budget.

        The value is positive if and only if the trial did not fit; without a usable peak it is 1 or 0.
        """
        excess = None if peak_bytes is None else (peak_bytes - self._budget_bytes) / self._budget_bytes
        if verdict is Verdict.FITS:
            value = 0.0 if excess is None else min(excess, 0.0)
        else:
            value = excess if excess is not None and excess > 0 else 1.0
        if value > 0:
            yield _UNNAMED_CONSTRAINTS, [value]
        yield _MEMORY_CONSTRAINT, value


def kept(outcome: TrialOutcome) -> str:
    """JSON of an outcome as stored in its trial's record: without the trace."""
    return dataclasses.replace(outcome, trace_json=None).to_json()
