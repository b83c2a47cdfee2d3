"""How a trial is kept: what its record holds, and in which order it is written.

A coordinator may be killed, and its connection lost, between any two writes:

    asked   RUNNING with owner and lease, knobs, batch size, purpose: all at once
                                                               found later: given up, to be repeated
    told    ─ trace digest, prediction ─ outcome               found later: told to its end
            ─ verdict ─ peak ─ constraint ─ COMPLETE or FAIL

COMPLETE are the trials that say something of their size. Their value, which is maximised, is the
batch that fits: 0 where the size tried does not, whose constraint is positive too. FAIL are all
others. Every write but the first may be repeated; a trial that was asked for twice is seen by its
owner, who knows which one he has.
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
_PEAK = "peak_bytes"  # the measured peak that is held against the budget
_MEMORY_CONSTRAINT = "memory"  # at most 0 for a trial that fits
# Where a trial's constraints stood before Optuna 5 named them, and where optuna-dashboard reads them.
_UNNAMED_CONSTRAINTS = "constraints"


def owner_of(trial: FrozenTrial) -> Owner | None:
    """Who asked for a trial; None of one that autofit did not ask for.

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
    """What a trial returned, without its trace; None where that is not known.

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
    """How many steps a trial was to do after its warm-up."""
    num_steps = trial.user_attrs.get(_NUM_STEPS, 0)
    return num_steps if isinstance(num_steps, int) else 0


def predicted_bytes_of(trial: FrozenTrial) -> int | None:
    """The likely peak that was predicted for a measured trial."""
    predicted = trial.user_attrs.get(_PREDICTED)
    return predicted if isinstance(predicted, int) else None


class TrialRecords:
    """Writes the records of one study's trials.

    Args:
        budget_bytes: what peaks are held against.
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
        """Writes that a trial is under way; returns its id in the storage."""
        asked = create_trial(
            state=TrialState.RUNNING,
            params=dict(params),
            distributions=dict(distributions),
            user_attrs={_OWNER: dataclasses.asdict(owner), _PURPOSE: purpose, _NUM_STEPS: num_steps},
        )
        return self._backend.create_new_trial(self._study_id, asked)

    def renew(self, trial_id: int, owner: Owner) -> None:
        """Writes a new lease, unless another coordinator ended the trial."""
        with contextlib.suppress(UpdateFinishedTrialError):
            self._backend.set_trial_user_attr(trial_id, _OWNER, dataclasses.asdict(owner))

    def tell(self, trial_id: int, outcome: TrialOutcome, *, predicted_bytes: int | None = None) -> None:
        """Writes an outcome and what follows from it.

        Args:
            predicted_bytes: what was predicted of a measured trial.

        Raises:
            UpdateFinishedTrialError: the trial is over.
        """
        if outcome.trace_json is not None:
            digest = hashlib.sha256(outcome.trace_json.encode()).hexdigest()
            self._backend.set_trial_user_attr(trial_id, TRACE_DIGEST, digest)
        if predicted_bytes is not None:
            self._backend.set_trial_user_attr(trial_id, _PREDICTED, predicted_bytes)
        self._backend.set_trial_user_attr(trial_id, OUTCOME, kept(outcome))
        self._finish(trial_id, outcome)

    def holds(self, trial_id: int, outcome: TrialOutcome) -> bool:
        """Whether a trial ended with this outcome."""
        trial = self._backend.get_trial(trial_id)
        return trial.state.is_finished() and trial.user_attrs.get(OUTCOME) == kept(outcome)

    def end(self, trial_id: int, reason: str) -> None:
        """Ends a trial that nobody will tell: by its outcome if that was written, else given up."""
        trial = self._backend.get_trial(trial_id)
        if trial.state.is_finished():
            return
        try:
            outcome = outcome_of(trial)
        except UnreadableError as error:
            outcome, reason = None, f"{reason}; its outcome {error}"
        with contextlib.suppress(UpdateFinishedTrialError):  # somebody else has just ended it
            if outcome is not None:
                self._finish(trial_id, outcome)
            else:
                self._backend.set_trial_user_attr(trial_id, _GIVEN_UP, reason)
                self._backend.set_trial_state_values(trial_id, TrialState.FAIL)

    def _finish(self, trial_id: int, outcome: TrialOutcome) -> None:
        """Writes what follows from a recorded outcome, or what is left of it."""
        self._backend.set_trial_user_attr(trial_id, _VERDICT, outcome.verdict.value)
        if not outcome.verdict.is_about_memory:
            self._backend.set_trial_state_values(trial_id, TrialState.FAIL)
            return
        peak_bytes = outcome.budgeted_bytes
        if peak_bytes is not None:
            self._backend.set_trial_user_attr(trial_id, _PEAK, peak_bytes)
        for key, value in self._constraint(outcome.verdict, peak_bytes):
            self._backend.set_trial_system_attr(trial_id, key, value)
        # Not the size itself, or what asks a storage for the best trial, as Optuna's dashboard and
        # summaries of studies do, would be given one that does not fit.
        value = float(outcome.batch_size) if outcome.verdict is Verdict.FITS else 0.0
        self._backend.set_trial_state_values(trial_id, TrialState.COMPLETE, [value])

    def _constraint(self, verdict: Verdict, peak_bytes: int | None) -> Iterator[tuple[str, Any]]:
        """By how much of the budget the peak exceeds it, as Optuna keeps it; the verdict decides the sign."""
        excess = None if peak_bytes is None else (peak_bytes - self._budget_bytes) / self._budget_bytes
        if verdict is Verdict.FITS:
            value = 0.0 if excess is None else min(excess, 0.0)
        else:
            value = excess if excess is not None and excess > 0 else 1.0
        if value > 0:
            yield _UNNAMED_CONSTRAINTS, [value]
        yield from create_trial(value=0.0, constraints={_MEMORY_CONSTRAINT: value}).system_attrs.items()


def kept(outcome: TrialOutcome) -> str:
    """An outcome as its record holds it: without the trace."""
    return dataclasses.replace(outcome, trace_json=None).to_json()
