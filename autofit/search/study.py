"""The study: the durable record of all trials, and what to try next.

A trial's record grows line by line; a coordinator that is killed may leave it at any of them:

    ask    RUNNING, owner and lease ─ knobs ─ batch size ─ purpose
                                                               found later: given up, to be repeated
    tell   ─ trace digest ─ outcome                            found later: told to its end
           ─ verdict ─ peak ─ constraint ─ COMPLETE or FAIL

COMPLETE are the trials that say something of their size; one that does not fit has a positive
constraint. Their value is the batch size, maximised. FAIL are all others.

Several processes may ask at once: each waits until those that began before it have chosen, so that
none asks for what another is trying.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from autofit.errors import StorageError
from autofit.identity import fingerprint
from autofit.search.agenda import Agenda, Goal, Purpose
from autofit.search.boundary import Boundary, Curve
from autofit.search.choice import Configuration, decisive
from autofit.search.owner import Owner
from autofit.search.prepare import default_name, prepare, require_name
from autofit.search.sampler import MEMORY_CONSTRAINT, PEAK_ATTRIBUTE, BoundarySampler, no_curve
from autofit.search.space import BATCH_SIZE, SearchSpace
from autofit.search.storage import Storage, open_storage, quiet_optuna
from workers.protocol import PROTOCOL_VERSION, Knobs, TrialOutcome, Verdict

_OWNER = "owner"
_GIVEN_UP = "given_up"
_OUTCOME = "outcome"
_VERDICT = "verdict"
_TRACE_DIGEST = "trace_digest"
_PURPOSE = "purpose"
_NUM_STEPS = "num_steps"

# Asking takes milliseconds; a process that was killed while it asked keeps the others no longer.
_ASKING_SECONDS = 5.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A configuration to try.

    Attributes:
        num_steps: full steps after the warm-up.
    """

    trial_number: int
    knobs: Knobs
    batch_size: int
    purpose: Purpose
    num_steps: int


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
        goal: what this process's trials are for.
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
        goal: Goal,
        lease_seconds: float,
    ) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self._space = space
        self._budget_bytes = budget_bytes
        self._sampler = sampler
        self._storage = storage
        self.goal = goal
        self._lease_seconds = lease_seconds
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
        goal: Goal = Goal(),  # noqa: B008 - frozen
        lease_seconds: float = 3600.0,
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
            goal: what the trials are for, beside the boundaries.
            lease_seconds: how long this process may take for a trial; other hosts, which cannot see
                whether it lives, wait so long.

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
        name = default_name(label, digest) if name is None else name
        require_name(name)
        sampler = BoundarySampler(space, budget_bytes=budget_bytes, curves=curves, seed=seed)
        with quiet_optuna():
            opened = open_storage(storage, name)
            try:
                with opened.guard():
                    prepare(opened, name, json.loads(json.dumps(settings)), fresh=fresh)
                    study = cls(
                        name=name,
                        fingerprint=digest,
                        space=space,
                        budget_bytes=budget_bytes,
                        sampler=sampler,
                        storage=opened,
                        goal=goal,
                        lease_seconds=lease_seconds,
                    )
                study.reconcile()
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
        """The next configuration; None when nothing is left, or only trials under way."""
        with self._storage.guard():
            if not self._has_step():
                return None
            trial = self._study.ask()
            self._asked.add(trial.number)
            owner = Owner.this_process(lease_seconds=self._lease_seconds)
            trial.set_user_attr(_OWNER, dataclasses.asdict(owner))
            self._await_earlier_asks(trial.number)
            ask = self._choose(trial)
            if ask is None:
                self._end(trial.number, "another process has just asked for what was left")
                self._asked.discard(trial.number)
        return ask

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

    def verified(self) -> dict[Configuration, int]:
        """The configurations that fit and ran through a soak, each with its steps."""
        soak_steps = self.goal.soak_steps
        num_steps = self._agenda().num_steps
        return {} if not soak_steps else {key: num for key, num in num_steps.items() if num >= soak_steps}

    def reconcile(self) -> None:
        """Ends the trials that nobody will end any more: their coordinator is gone, or their lease.

        One without an owner has no size yet: it is being asked for this moment, or was when its
        coordinator was killed, and keeps nobody waiting.
        """
        with self._storage.guard():
            for trial in self._running():
                if trial.number in self._asked or _OWNER not in trial.user_attrs:
                    continue
                reason = Owner(**trial.user_attrs[_OWNER]).why_gone()
                if reason is not None:
                    self._end(trial.number, reason)

    @property
    def is_settled(self) -> bool:
        """Whether every boundary is known."""
        return all(boundary.is_settled for boundary in self.boundaries().values())

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be tried or waited for."""
        with self._storage.guard():
            return self._agenda().is_complete

    @property
    def num_trials(self) -> int:
        """The number of trials that returned."""
        return len(self.outcomes())

    @property
    def num_measured(self) -> int:
        """The number of those that were run, not answered by a prediction."""
        return sum(record.outcome.was_run for record in self.outcomes())

    def _agenda(self) -> Agenda:
        trials = self._study.get_trials(deepcopy=False)
        outcomes = [
            TrialOutcome.from_json(t.user_attrs[_OUTCOME]) for t in trials if _OUTCOME in t.user_attrs
        ]
        known = decisive(outcomes)
        num_steps: dict[Configuration, int] = {}
        in_flight: set[Configuration] = set()
        for trial in trials:
            if BATCH_SIZE not in trial.params:
                continue
            configuration = self._space.to_knobs(trial.params), trial.params[BATCH_SIZE]
            if trial.state == TrialState.RUNNING:
                in_flight.add(configuration)
            elif configuration in known and known[configuration].verdict is Verdict.FITS:
                done = trial.user_attrs.get(_NUM_STEPS, 0) if trial.state == TrialState.COMPLETE else 0
                num_steps[configuration] = max(done, num_steps.get(configuration, 0))
        return Agenda(
            goal=self.goal,
            boundaries=self._sampler.boundaries(trials),
            known=known,
            num_steps=num_steps,
            in_flight=in_flight,
            min_batch=self._space.min_batch,
        )

    def _has_step(self) -> bool:
        agenda = self._agenda()
        return agenda.has_search or agenda.next_step() is not None

    def _choose(self, trial: Trial) -> Ask | None:
        """Gives an asked trial its configuration; None where nothing is left by now."""
        agenda = self._agenda()
        purpose, params = Purpose.BOUNDARY, None
        if not agenda.has_search:
            step = agenda.next_step()
            if step is None:
                return None
            purpose = step.purpose
            params = {**self._space.to_params(step.knobs), BATCH_SIZE: step.batch_size}
        with self._sampler.choosing(agenda.boundaries, params):
            knobs, batch_size = self._space.suggest(trial)
        num_steps = agenda.num_steps_of(knobs, batch_size, purpose)
        trial.set_user_attr(_PURPOSE, purpose.value)
        trial.set_user_attr(_NUM_STEPS, num_steps)
        return Ask(
            trial_number=trial.number,
            knobs=knobs,
            batch_size=batch_size,
            purpose=purpose,
            num_steps=num_steps,
        )

    def _await_earlier_asks(self, number: int) -> None:
        """Waits until the trials with smaller numbers have their configuration."""
        while any(trial.number < number and _is_asking(trial) for trial in self._running()):
            time.sleep(_POLL_SECONDS)

    def _running(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

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


def _is_asking(trial: FrozenTrial) -> bool:
    """Whether a running trial has no configuration yet and may still be given one."""
    if BATCH_SIZE in trial.params or trial.datetime_start is None:
        return False
    if _OWNER in trial.user_attrs and Owner(**trial.user_attrs[_OWNER]).why_gone() is not None:
        return False
    age = dt.datetime.now() - trial.datetime_start  # noqa: DTZ005 - Optuna's times are local
    return age.total_seconds() < _ASKING_SECONDS
