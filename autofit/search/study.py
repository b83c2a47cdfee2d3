"""The study: the durable record of all trials, and what to try next.

A trial's record grows line by line; a coordinator that is killed may leave it at any of them:

    ask    RUNNING, owner ─ knobs ─ batch size                 found later: given up, to be repeated
    tell   ─ trace digest ─ outcome                            found later: told to its end
           ─ verdict ─ peak ─ constraint ─ COMPLETE or FAIL

COMPLETE are the trials that say something of their size; one that does not fit has a positive
constraint. Their value is the batch size, maximised. FAIL are all others.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from autofit.errors import StorageError, StudyMismatchError, UsageError
from autofit.identity import fingerprint
from autofit.search.boundary import Boundary, Curve
from autofit.search.owner import Owner
from autofit.search.sampler import MEMORY_CONSTRAINT, PEAK_ATTRIBUTE, BoundarySampler, no_curve
from autofit.search.space import SearchSpace
from autofit.search.storage import Storage, open_storage, quiet_optuna
from workers.protocol import PROTOCOL_VERSION, Knobs, TrialOutcome, Verdict

_SETTINGS = "autofit_settings"
_OWNER = "owner"
_GIVEN_UP = "given_up"
_OUTCOME = "outcome"
_VERDICT = "verdict"
_TRACE_DIGEST = "trace_digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A configuration to try."""

    trial_number: int
    knobs: Knobs
    batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """What the study keeps of a trial that returned.

    Attributes:
        outcome: without its trace.
        trace_digest: SHA-256 of the encoded trace, which names its file.
    """

    trial_number: int
    outcome: TrialOutcome
    trace_digest: str | None


class TuningStudy:
    """An open study; use it in a `with` statement, or close it.

    Attributes:
        name: of the study in its storage.
        fingerprint: of the settings that it belongs to.
    """

    def __init__(
        self,
        *,
        name: str,
        fingerprint: str,
        space: SearchSpace,
        budget_bytes: int,
        sampler: BoundarySampler,
        storage: Storage,
    ) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self._space = space
        self._budget_bytes = budget_bytes
        self._sampler = sampler
        self._storage = storage
        self._study = optuna.load_study(study_name=name, storage=storage.backend, sampler=sampler)
        self._study_id = storage.backend.get_study_id_from_name(name)
        self._asked: set[int] = set()

    @classmethod
    def open(
        cls,
        space: SearchSpace,
        *,
        budget_bytes: int,
        settings: Mapping[str, Any],
        label: str = "study",
        name: str | None = None,
        storage: str | None = None,
        fresh: bool = False,
        curves: Callable[[Knobs], Curve | None] = no_curve,
        seed: int | None = None,
        patience_seconds: float = 3600.0,
    ) -> Self:
        """Opens the study of these settings, creating it where there is none.

        Trials that a dead coordinator left running are settled first: what had returned is told to
        its end, the others are given up and their sizes proposed again.

        Args:
            space: what is searched.
            budget_bytes: what the peaks are held against.
            settings: what beside space and budget decides an outcome, in JSON's types.
            label: begins the name when `name` is None; the fingerprint ends it.
            name: of the study in its storage.
            storage: see `open_storage`.
            fresh: delete an earlier study of this name.
            curves: predictions, see `BoundarySampler`.
            seed: of the choice among settings.
            patience_seconds: how long a trial that another host runs is waited for.

        Raises:
            StudyMismatchError: a study of that name was begun with other settings.
            UsageError: the name or the storage is malformed.
            StorageError: the storage cannot be read or written.
        """
        settings = {
            **settings,
            **space.to_dict(),
            "budget_bytes": budget_bytes,
            "protocol_version": PROTOCOL_VERSION,
        }
        digest = fingerprint(settings)
        name = _default_name(label, digest) if name is None else name
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", name):
            raise UsageError(
                f"a study cannot be named {name!r}: use letters, digits, dots, hyphens and underscores"
            )
        sampler = BoundarySampler(space, budget_bytes=budget_bytes, curves=curves, seed=seed)
        with quiet_optuna():
            opened = open_storage(storage, name)
            try:
                with opened.guard():
                    _prepare(opened, name, json.loads(json.dumps(settings)), fresh=fresh)
                    study = cls(
                        name=name,
                        fingerprint=digest,
                        space=space,
                        budget_bytes=budget_bytes,
                        sampler=sampler,
                        storage=opened,
                    )
                    study._reconcile(patience_seconds)
            except BaseException:
                opened.close()
                raise
        return study

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the trials that were asked for and not told, and releases the storage."""
        try:
            with self._storage.guard():
                for number in sorted(self._asked):
                    self._end(number, "the coordinator stopped before the trial ended")
        finally:
            self._asked.clear()
            self._storage.close()

    def ask(self) -> Ask | None:
        """The next configuration; None when all settings are settled, or wait for trials under way."""
        with self._storage.guard():
            if not any(boundary.has_proposal for boundary in self.boundaries().values()):
                return None
            trial = self._study.ask()
            self._asked.add(trial.number)
            trial.set_user_attr(_OWNER, dataclasses.asdict(Owner.this_process()))
            knobs, batch_size = self._space.suggest(trial)
        return Ask(trial_number=trial.number, knobs=knobs, batch_size=batch_size)

    def tell(self, trial_number: int, outcome: TrialOutcome) -> None:
        """Records an outcome; it is durable when this returns.

        FITS, OOM and THRASH teach the search; any other verdict only stays in the record, and the
        size is proposed again: whoever retries decides how often.
        """
        with self._storage.guard():
            if self._frozen(trial_number).state.is_finished():
                raise StorageError(
                    f"trial {trial_number} of study {self.name} is over: it was told before, or given up by "
                    "another coordinator of the same study; start the study again to repeat it"
                )
            trial = Trial(self._study, self._trial_id(trial_number))
            if outcome.trace_json is not None:
                trial.set_user_attr(_TRACE_DIGEST, hashlib.sha256(outcome.trace_json.encode()).hexdigest())
            trial.set_user_attr(_OUTCOME, dataclasses.replace(outcome, trace_json=None).to_json())
            self._finish(trial_number, outcome)
        self._asked.discard(trial_number)

    def boundaries(self) -> dict[Knobs, Boundary]:
        """What is known of each setting's boundary, in the order of the space."""
        with self._storage.guard():
            return self._sampler.boundaries(self._study.get_trials(deepcopy=False))

    def outcomes(self) -> list[TrialRecord]:
        """All trials that returned, in the order in which they were asked for."""
        with self._storage.guard():
            trials = self._study.get_trials(deepcopy=False)
        return [
            TrialRecord(
                trial_number=trial.number,
                outcome=TrialOutcome.from_json(trial.user_attrs[_OUTCOME]),
                trace_digest=trial.user_attrs.get(_TRACE_DIGEST),
            )
            for trial in trials
            if _OUTCOME in trial.user_attrs
        ]

    @property
    def is_settled(self) -> bool:
        return all(boundary.is_settled for boundary in self.boundaries().values())

    @property
    def num_trials(self) -> int:
        """The number of trials that returned."""
        return len(self.outcomes())

    def _trial_id(self, number: int) -> int:
        return self._storage.backend.get_trial_id_from_study_id_trial_number(self._study_id, number)

    def _frozen(self, number: int) -> FrozenTrial:
        return self._storage.backend.get_trial(self._trial_id(number))

    def _finish(self, number: int, outcome: TrialOutcome) -> None:
        """Writes what follows from a recorded outcome, or what is left of it."""
        trial = Trial(self._study, self._trial_id(number))
        trial.set_user_attr(_VERDICT, outcome.verdict.value)
        if not outcome.verdict.is_about_memory:
            self._study.tell(trial, state=TrialState.FAIL)
            return
        peak_bytes = outcome.budgeted_bytes
        if peak_bytes is not None:
            trial.set_user_attr(PEAK_ATTRIBUTE, peak_bytes)
        if MEMORY_CONSTRAINT not in self._frozen(number).constraints:
            trial.set_constraint(MEMORY_CONSTRAINT, self._constraint(outcome.verdict, peak_bytes))
        self._study.tell(trial, outcome.batch_size)

    def _constraint(self, verdict: Verdict, peak_bytes: int | None) -> float:
        """By how much of the budget the peak exceeds it; the verdict decides the sign."""
        excess = None if peak_bytes is None else (peak_bytes - self._budget_bytes) / self._budget_bytes
        if verdict is Verdict.FITS:
            return 0.0 if excess is None else min(excess, 0.0)
        return excess if excess is not None and excess > 0 else 1.0

    def _end(self, number: int, reason: str) -> None:
        """Ends a trial that nobody will tell: by its outcome if that was written, else given up."""
        frozen = self._frozen(number)
        if frozen.state.is_finished():
            return
        if _OUTCOME in frozen.user_attrs:
            self._finish(number, TrialOutcome.from_json(frozen.user_attrs[_OUTCOME]))
        else:
            trial = Trial(self._study, self._trial_id(number))
            trial.set_user_attr(_GIVEN_UP, reason)
            self._study.tell(trial, state=TrialState.FAIL)

    def _reconcile(self, patience_seconds: float) -> None:
        """Ends the trials whose coordinator is gone.

        One without an owner has no size yet: it is being asked for this moment, or was when its
        coordinator was killed, and keeps nobody waiting.
        """
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if _OWNER not in trial.user_attrs:
                continue
            reason = Owner(**trial.user_attrs[_OWNER]).why_gone(patience_seconds=patience_seconds)
            if reason is not None:
                self._end(trial.number, reason)


def _default_name(label: str, digest: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")
    return f"{readable[:64] or 'study'}-{digest[:12]}"


def _prepare(storage: Storage, name: str, settings: dict[str, Any], *, fresh: bool) -> None:
    """Makes the storage hold a study of this name with these settings."""
    backend = storage.backend
    if name in optuna.get_all_study_names(backend):
        earlier = optuna.load_study(study_name=name, storage=backend)
        stored = earlier.user_attrs.get(_SETTINGS)
        if stored is None and earlier.get_trials(deepcopy=False):
            raise StudyMismatchError(
                f"study {name!r} in {storage.where} is not autofit's; choose another name with --study"
            )
        if stored is not None and fresh:
            optuna.delete_study(study_name=name, storage=backend)
        elif stored == settings:
            return
        elif stored is not None:
            raise StudyMismatchError(
                f"study {name!r} was begun with other settings ({_differences(stored, settings)}); "
                "choose another name with --study, or begin it anew with --fresh"
            )
    study = optuna.create_study(storage=backend, study_name=name, direction="maximize", load_if_exists=True)
    study.set_user_attr(_SETTINGS, settings)


def _differences(stored: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{key} was {_shown(stored.get(key))}, is {_shown(settings.get(key))}"
        for key in sorted(stored.keys() | settings.keys())
        if stored.get(key) != settings.get(key)
    )


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_shown, value))
    return "unset" if value is None else str(value)
