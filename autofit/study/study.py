"""Study of a search: the durable record of all trials, and the choice of the next trial.

Several processes may ask at the same time. Each chooses from what it knows, writes its trial, and reads
the trials that got a smaller number meanwhile. A process that finds its size among them gives its own
trial up and chooses again, so nothing is tried twice. Every operation may be repeated after a lost
connection; `autofit.study.records` describes the state of a record in between.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from autofit.errors import StorageError
from autofit.identity import fingerprint
from autofit.search.agenda import Goal, Purpose
from autofit.search.boundary import Boundary
from autofit.search.choice import Configuration
from autofit.search.curves import Curve
from autofit.search.pruning import PrunedSetting, Pruning
from autofit.search.sampler import BoundarySampler, no_curve
from autofit.search.space import BATCH_SIZE, SearchSpace
from autofit.study import owner as owners
from autofit.study.damage import Kind, Unreadable, UnreadableError
from autofit.study.feed import TrialFeed
from autofit.study.ledger import Ledger
from autofit.study.owner import Owner
from autofit.study.prepare import default_name, prepare, require_name
from autofit.study.records import TRACE_DIGEST, TrialRecords, outcome_of, owner_of
from autofit.study.search_record import (
    NO_TIME,
    Opened,
    RecommendedTime,
    record_opening,
    record_recommendation,
)
from autofit.study.storage import WAIT_SECONDS, Storage, open_storage, quiet_optuna
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import PROTOCOL_VERSION, TrialOutcome
from autofit_workers.spec.pythons import Self

# Lease on a trial, renewed while it runs; a trial of another host's killed coordinator is waited for as long.
LEASE_SECONDS = 300.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Trial that a search should run next: a configuration and its number of steps.

    Attributes:
        num_steps: number of training steps after the warm-up.
        asked_seconds: time at which the trial was asked for, in seconds of the epoch.
    """

    trial_number: int
    knobs: Knobs
    batch_size: int
    purpose: Purpose
    num_steps: int
    asked_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """Stored record of a trial (a run or prediction of a configuration) that has an outcome.

    Attributes:
        outcome: the outcome, without its trace.
        trace_digest: SHA-256 of the trial's trace, which is the name of the trace's file; None without a
            trace.
    """

    trial_number: int
    outcome: TrialOutcome
    trace_digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Trial of this process that has no outcome yet, with its id in the storage and its owner."""

    trial_id: int
    ask: Ask
    owner: Owner


class TuningStudy:
    """Open study: the durable record of a search, which proposes trials and keeps their outcomes.

    A trial is one run or prediction of a configuration. Several processes may share a study. Use it in a
    `with` statement, or close it.

    Attributes:
        name: name of the study in its storage.
        fingerprint: digest of everything that decides the outcomes of its trials.
        goal: objective of the search, and how long its trials are.
        opened: the workload and card that this process opened the study for, and when.
    """

    def __init__(
        self,
        *,
        name: str,
        fingerprint: str,
        space: SearchSpace,
        budget_bytes: int,
        curves: Callable[[Knobs], Curve | None],
        seed: int | None,
        storage: Storage,
        goal: Goal,
        lease_seconds: float,
        opened: Opened,
        coordinator: str,
        pruning: Pruning | None = None,
    ) -> None:
        self.name = name
        self.opened = opened
        self._is_opening_recorded = False
        self.fingerprint = fingerprint
        self.goal = goal
        self._space = space
        self._storage = storage
        self._lease_seconds = lease_seconds
        self._coordinator = coordinator
        self._sampler = BoundarySampler(space, seed=seed)
        self._study = optuna.load_study(study_name=name, storage=storage.backend)
        study_id = storage.backend.get_study_id_from_name(name)
        self._study_id = study_id
        self._records = TrialRecords(storage.backend, study_id, budget_bytes=budget_bytes)
        self._feed = TrialFeed(storage.backend, study_id)
        self._ledger = Ledger(space, budget_bytes=budget_bytes, curves=curves, pruning=pruning)
        self._asked: dict[int, _Asked] = {}
        self._unreadable: set[int] = set()

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
        wait_seconds: float = WAIT_SECONDS,
        fresh: bool = False,
        curves: Callable[[Knobs], Curve | None] = no_curve,
        seed: int | None = None,
        goal: Goal = Goal(),  # noqa: B008 - frozen
        lease_seconds: float = LEASE_SECONDS,
        workload: str = "",
        gpu: str = "",
        pruning: Pruning | None = None,
    ) -> Self:
        """Opens the study with the given name or settings; creates it if there is none.

        Trials that a process left running when it died are ended first: those with a recorded outcome keep
        it, the others are given up, and their batch sizes are proposed again.

        Args:
            space: configurations to search.
            budget_bytes: bytes that peaks are compared with.
            settings: everything that decides an outcome besides space and budget, by name, as JSON values.
            label: beginning of the study's name if `name` is None; a digest of the settings is appended.
            name: name of the study in its storage.
            storage: database URL or path of a journal file; None for a journal of its own in the state
                directory.
            wait_seconds: seconds to wait for a storage that cannot be reached.
            fresh: whether to delete an earlier study of this name.
            curves: returns the predicted peak curve of a knob setting, which guides the search; None if there
                is none.
            seed: random seed of the choice among settings.
            goal: objective of the search, and how long its trials are.
            lease_seconds: seconds for which this process claims a trial, from its start or from the last
                `renew`. Processes on other hosts cannot see whether this process lives, and give up its
                trials after this time.
            workload, gpu: names of the workload and card that the study is opened for.
            pruning: decides which knob settings need no trials, as another one is no slower and fits as large
                a batch; None to search all settings to their end.

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
        coordinator = uuid.uuid4().hex
        now = Opened(workload=workload, gpu=gpu, opened_seconds=time.time())
        with quiet_optuna():
            opened = open_storage(storage, name, wait_seconds=wait_seconds)
            try:
                plain = json.loads(json.dumps(settings))
                opened.run(lambda: prepare(opened, name, plain, fresh=fresh))
                study = opened.run(
                    lambda: cls(
                        name=name,
                        fingerprint=digest,
                        space=space,
                        budget_bytes=budget_bytes,
                        curves=curves,
                        seed=seed,
                        storage=opened,
                        goal=goal,
                        lease_seconds=lease_seconds,
                        opened=now,
                        pruning=pruning,
                        coordinator=coordinator,
                    )
                )
                study.reconcile()
            except BaseException:
                opened.close()
                raise
        owners.begin(coordinator)
        return study

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives up this process's trials that have no outcome, and releases the storage.

        If the storage cannot be reached, the trials stay marked as running: the process that opens the study
        next notices that this process is gone.
        """
        try:
            with self._storage.guard():
                for asked in self._asked.values():
                    self._records.end(asked.trial_id, "the coordinator stopped before the trial ended")
        except StorageError as error:
            _log.warning("running trials stay open in study %s: %s", self.name, error.message)
        finally:
            self._asked.clear()
            owners.end(self._coordinator)
            self._storage.close()

    def ask(self, *, num_workers: int | None = None) -> Ask | None:
        """Starts the record of the next trial to run, and returns its configuration.

        Args:
            num_workers: number of trials that this process may run in parallel, if known.

        Returns:
            The trial; None if none is left, or if all that are left run already.
        """
        return self._storage.run(lambda: self._ask(num_workers))

    def tell(self, trial_number: int, outcome: TrialOutcome, *, predicted_bytes: int | None = None) -> None:
        """Records the outcome of a trial in the storage, durably.

        The verdicts FITS, OOM and THRASH guide the search. After any other verdict, such as that of a lost
        process, the same batch size is proposed again; the caller decides how often to retry.

        Args:
            predicted_bytes: likely peak that was predicted for a measured trial; only recorded.
        """
        asked = self._asked.get(trial_number)
        if asked is None:
            raise self._is_over(trial_number)
        is_repeated = False

        def write() -> None:
            nonlocal is_repeated
            is_again, is_repeated = is_repeated, True
            try:
                self._records.tell(asked.trial_id, outcome, predicted_bytes=predicted_bytes)
            except UpdateFinishedTrialError:
                if not (is_again and self._records.holds(asked.trial_id, outcome)):
                    raise self._is_over(trial_number) from None

        self._storage.run(write)
        del self._asked[trial_number]
        ask = asked.ask
        self._ledger.finish(trial_number, (ask.knobs, ask.batch_size), outcome, num_steps=ask.num_steps)

    def recommend(self, recommended: Configuration | None, time: RecommendedTime = NO_TIME) -> None:
        """Records the configuration that the search recommends, and its predicted step time.

        A process that tried nothing writes nothing, as it may have read-only access to the study.

        Args:
            recommended: the configuration; None if nothing fits.
        """
        if self._is_opening_recorded:
            self._storage.run(
                lambda: record_recommendation(self._storage.backend, self._study_id, recommended, time)
            )

    def renew(self) -> None:
        """Renews this process's claims (leases) on its running trials, if a third of their time has passed.

        Call it every `renewal_seconds` while trials run.
        """
        for number, asked in self._asked.items():
            owner = asked.owner.renewed(lease_seconds=self._lease_seconds)
            if owner is not None:
                self._storage.run(functools.partial(self._records.renew, asked.trial_id, owner))
                self._asked[number] = dataclasses.replace(asked, owner=owner)

    @property
    def renewal_seconds(self) -> float:
        """Longest time between two calls of `renew` while trials run, in seconds."""
        return self._lease_seconds / 3

    def boundaries(self) -> Mapping[Knobs, Boundary]:
        """Search for the largest batch of every knob setting; the mapping is kept up to date."""
        self._storage.run(self._catch_up)
        return self._ledger.boundaries

    def boundary(self, knobs: Knobs) -> Boundary:
        """Search for the largest batch of a knob setting, as far as this process knows its outcomes."""
        return self._ledger.boundaries[knobs]

    @property
    def pruned(self) -> tuple[PrunedSetting, ...]:
        """Knob settings whose search was cut short, as another is no slower and fits as large a batch."""
        return tuple(self._ledger.pruned.values())

    @property
    def known(self) -> Mapping[Configuration, TrialOutcome]:
        """Outcome of each configuration, without its log; of several outcomes, the one that counts."""
        return self._ledger.known

    def take_changed(self) -> list[Knobs]:
        """Returns the knob settings whose results changed since the last call, through any process."""
        return self._ledger.take_changed()

    def outcomes(self) -> list[TrialRecord]:
        """Trials of the study that have an outcome, read from the storage, in the order of their creation."""
        trials = self._storage.run(
            lambda: self._storage.backend.get_all_trials(self._study_id, deepcopy=False)
        )
        return [
            TrialRecord(
                trial_number=trial.number,
                outcome=outcome,
                trace_digest=trial.user_attrs.get(TRACE_DIGEST),
            )
            for trial in trials
            if (outcome := self._readable_outcome(trial)) is not None
        ]

    def verified(self) -> dict[Configuration, int]:
        """Configurations that fitted in a long verifying trial, each with its number of steps."""
        soak_steps = self.goal.soak_steps
        return self._ledger.verified(soak_steps) if soak_steps else {}

    def reconcile(self) -> None:
        """Ends trials that were abandoned: their search is gone, or its claim (lease) has expired."""
        self._storage.run(self._reconcile)

    @property
    def is_settled(self) -> bool:
        """Whether the largest batch of every knob setting is known, except of those that need no trials."""
        self._storage.run(self._catch_up)
        return self._ledger.agenda(self.goal).is_settled

    @property
    def is_complete(self) -> bool:
        """Whether all trials of the study have ended and none is left to try."""
        self._storage.run(self._catch_up)
        return self._ledger.agenda(self.goal).is_complete

    @property
    def num_trials(self) -> int:
        """Number of trials with an outcome, as far as this process knows."""
        return self._ledger.num_returned

    @property
    def num_measured(self) -> int:
        """Number of trials with an outcome that were really run, not answered by a prediction."""
        return self._ledger.num_measured

    def _ask(self, num_workers: int | None) -> Ask | None:
        """Creates the record of the next trial to run, and returns the trial; None if there is none now."""
        self._catch_up()
        while (planned := self._plan()) is not None:
            self._record_opening()
            knobs, batch_size, purpose = planned
            num_steps = self._ledger.agenda(self.goal).num_steps_of(knobs, batch_size, purpose)
            owner = Owner.this_process(
                lease_seconds=self._lease_seconds, coordinator=self._coordinator, num_workers=num_workers
            )
            trial_id = self._records.create(
                {**self._space.to_params(knobs), BATCH_SIZE: batch_size},
                self._space.distributions,
                owner=owner,
                purpose=purpose.value,
                num_steps=num_steps,
            )
            number, earlier = self._feed.until(trial_id)
            if not self._is_among(earlier, knobs, batch_size):
                ask = Ask(
                    trial_number=number,
                    knobs=knobs,
                    batch_size=batch_size,
                    purpose=purpose,
                    num_steps=num_steps,
                    asked_seconds=owner.asked_seconds,
                )
                self._asked[number] = _Asked(trial_id=trial_id, ask=ask, owner=owner)
                self._ledger.expect(number, (knobs, batch_size), owner)
                return ask
            self._records.end(trial_id, "another process has just started the same trial")
        return None

    def _record_opening(self) -> None:
        """Records once, with the first trial, that this process opened the study.

        Until then nothing is written, since the study may be read-only.
        """
        if not self._is_opening_recorded:
            record_opening(self._storage.backend, self._study_id, self.opened)
            self._is_opening_recorded = True

    def _plan(self) -> tuple[Knobs, int, Purpose] | None:
        """Configuration to try next, and the purpose of the trial; None if there is none to try now."""
        agenda = self._ledger.agenda(self.goal)
        if agenda.has_search:
            knobs, batch_size = self._sampler.choose(
                self._study,
                self._ledger.boundaries,
                self._ledger.open_settings(),
                self._ledger.deciding_size,
            )
            self._ledger.withdraw((knobs, batch_size))  # the storage says what is running
            return knobs, batch_size, Purpose.BOUNDARY
        step = agenda.next_step()
        return None if step is None else (step.knobs, step.batch_size, step.purpose)

    def _is_among(self, trials: list[FrozenTrial], knobs: Knobs, batch_size: int) -> bool:
        """Takes other processes' `trials` into the state; returns whether one tries the configuration."""
        wanted = {**self._space.to_params(knobs), BATCH_SIZE: batch_size}
        for trial in trials:
            self._take_in(trial)
        return any(trial.params == wanted and not self._is_given_up(trial) for trial in trials)

    def _is_given_up(self, trial: FrozenTrial) -> bool:
        return trial.state == TrialState.FAIL and self._readable_outcome(trial) is None

    def _catch_up(self) -> None:
        """Updates the state of the search with other processes' new and changed trials."""
        for trial in self._feed.news():
            self._take_in(trial)

    def _take_in(self, trial: FrozenTrial) -> None:
        """Takes a stored trial into the state of the search.

        It ends a trial that this process created but never ran: if the connection is lost while a trial is
        written, the process does not learn the trial's number.
        """
        try:
            owner = owner_of(trial)
            is_own = owner is not None and owner.coordinator == self._coordinator
            if not is_own or trial.state.is_finished():
                self._ledger.take_in(trial)
                return
        except UnreadableError as error:
            self._leave_aside(trial, error)
            return
        self._end(trial.number, "the connection was lost while the trial was created")

    def _readable_outcome(self, trial: FrozenTrial) -> TrialOutcome | None:
        try:
            return outcome_of(trial)
        except UnreadableError as error:
            self._leave_aside(trial, error)
            return None

    def _leave_aside(self, trial: FrozenTrial, error: UnreadableError) -> None:
        """Logs, once, that a trial cannot be read; its configuration may be proposed again."""
        if trial.number not in self._unreadable:
            self._unreadable.add(trial.number)
            name = f"trial {trial.number} of study {self.name}"
            _log.warning("%s", Unreadable.of(Kind.TRIAL, name, error))

    def _reconcile(self) -> None:
        self._catch_up()
        for number, running in list(self._ledger.running.items()):
            reason = None if number in self._asked else running.owner.why_gone()
            if reason is not None:
                self._end(number, reason)
        self._catch_up()

    def _end(self, number: int, reason: str) -> None:
        backend = self._storage.backend
        self._records.end(backend.get_trial_id_from_study_id_trial_number(self._study_id, number), reason)

    def _is_over(self, trial_number: int) -> StorageError:
        return StorageError(
            f"trial {trial_number} of study {self.name} is over already: it was reported before, or another "
            "process of the same study gave it up; run the same command again to repeat it"
        )
