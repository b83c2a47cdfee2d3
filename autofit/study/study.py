"""The study: the durable record of all trials, and what to try next.

Several processes may ask at once. Each chooses from what it knows, writes its trial, and looks at
the trials that got a smaller number meanwhile: the one that finds its size among them gives its own
up and chooses again, so that nothing is tried twice. Every operation may be repeated after a lost
connection; see `autofit.study.records` for what a record looks like in between.
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
from typing import Any, Self

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

# Renewed while trials run: so long a coordinator of another host that was killed is waited for.
LEASE_SECONDS = 300.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A configuration to try.

    Attributes:
        num_steps: full steps after the warm-up.
        asked_seconds: when; epoch.
    """

    trial_number: int
    knobs: Knobs
    batch_size: int
    purpose: Purpose
    num_steps: int
    asked_seconds: float


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A trial that this process asked for and has not told; its id in the storage and its owner."""

    trial_id: int
    ask: Ask
    owner: Owner


class TuningStudy:
    """An open study; use it in a `with` statement, or close it.

    Attributes:
        name: of the study in its storage.
        fingerprint: of the settings that it belongs to.
        goal: what this process's trials are for.
        opened: for whom this process opened it, and when.
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
            wait_seconds: how long a storage that went away is waited for.
            fresh: delete an earlier study of this name.
            curves: the prediction for a setting, or None where there is none.
            seed: of the choice among settings.
            goal: what the trials are for, beside the boundaries.
            lease_seconds: for how long a trial is this process's, from its beginning or from the
                last `renew`: other hosts, which cannot see whether it lives, wait so long.
            workload, gpu: for whom it is opened, see `Opened`.
            pruning: see `Ledger`.

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
        """Ends the trials that were asked for and not told, and releases the storage.

        Where it cannot be reached they stay as they are: whoever opens the study next sees that their
        coordinator is gone.
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
        """The next configuration; None when nothing is left, or only trials under way.

        Args:
            num_workers: how many trials this process may have under way at once, where it knows.
        """
        return self._storage.run(lambda: self._ask(num_workers))

    def tell(self, trial_number: int, outcome: TrialOutcome, *, predicted_bytes: int | None = None) -> None:
        """Records an outcome; it is durable when this returns.

        FITS, OOM and THRASH teach the search; any other verdict only stays in the record, and the
        size is proposed again: whoever retries decides how often.

        Args:
            predicted_bytes: what was predicted of a measured trial, for the record.
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
        """Records what the search recommends, None for nothing, and what is known of its step's time.

        Where this process tried nothing, the record is that of who did: the study may be read-only.
        """
        if self._is_opening_recorded:
            self._storage.run(
                lambda: record_recommendation(self._storage.backend, self._study_id, recommended, time)
            )

    def renew(self) -> None:
        """Renews the leases that are a third gone; call it while trials run, at least as often."""
        for number, asked in self._asked.items():
            owner = asked.owner.renewed(lease_seconds=self._lease_seconds)
            if owner is not None:
                self._storage.run(functools.partial(self._records.renew, asked.trial_id, owner))
                self._asked[number] = dataclasses.replace(asked, owner=owner)

    @property
    def renewal_seconds(self) -> float:
        """How often `renew` has to be called while trials run."""
        return self._lease_seconds / 3

    def boundaries(self) -> Mapping[Knobs, Boundary]:
        """What is known of each setting's boundary, in the order of the space; it goes on changing."""
        self._storage.run(self._catch_up)
        return self._ledger.boundaries

    def boundary(self, knobs: Knobs) -> Boundary:
        """What is known here of one setting's boundary."""
        return self._ledger.boundaries[knobs]

    @property
    def pruned(self) -> tuple[PrunedSetting, ...]:
        """The settings that are not searched to their end."""
        return tuple(self._ledger.pruned.values())

    @property
    def known(self) -> Mapping[Configuration, TrialOutcome]:
        """The outcome that counts of each configuration, see `decisive`, without its environment and log."""
        return self._ledger.known

    def take_changed(self) -> list[Knobs]:
        """The settings of which something was learned since this was last asked, here or elsewhere."""
        return self._ledger.take_changed()

    def outcomes(self) -> list[TrialRecord]:
        """All trials that returned, in the order in which they were asked for; reads the whole study."""
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
        """The configurations that fit and ran through a soak, each with its steps."""
        soak_steps = self.goal.soak_steps
        return self._ledger.verified(soak_steps) if soak_steps else {}

    def reconcile(self) -> None:
        """Ends the trials that nobody will end any more: their coordinator is gone, or their lease."""
        self._storage.run(self._reconcile)

    @property
    def is_settled(self) -> bool:
        """Whether every boundary is known."""
        self._storage.run(self._catch_up)
        return self._ledger.agenda(self.goal).is_settled

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be tried or waited for."""
        self._storage.run(self._catch_up)
        return self._ledger.agenda(self.goal).is_complete

    @property
    def num_trials(self) -> int:
        """The number of trials that returned, as far as it is known here."""
        return self._ledger.num_returned

    @property
    def num_measured(self) -> int:
        """The number of those that were run, not answered by a prediction."""
        return self._ledger.num_measured

    def _ask(self, num_workers: int | None) -> Ask | None:
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
        """Writes for whom the study was opened, before its first trial: a finished study may be read-only."""
        if not self._is_opening_recorded:
            record_opening(self._storage.backend, self._study_id, self.opened)
            self._is_opening_recorded = True

    def _plan(self) -> tuple[Knobs, int, Purpose] | None:
        """What to try next, as far as is known here; None where nothing is left."""
        agenda = self._ledger.agenda(self.goal)
        if agenda.has_search:
            knobs, batch_size = self._sampler.choose(
                self._study,
                self._ledger.boundaries,
                self._ledger.open_settings(),
                self._ledger.deciding_size,
            )
            self._ledger.withdraw((knobs, batch_size))  # in flight is what the storage says
            return knobs, batch_size, Purpose.BOUNDARY
        step = agenda.next_step()
        return None if step is None else (step.knobs, step.batch_size, step.purpose)

    def _is_among(self, trials: list[FrozenTrial], knobs: Knobs, batch_size: int) -> bool:
        """Takes in trials of others, and says whether one of them tries, or tried, this configuration."""
        wanted = {**self._space.to_params(knobs), BATCH_SIZE: batch_size}
        for trial in trials:
            self._take_in(trial)
        return any(trial.params == wanted and not self._is_given_up(trial) for trial in trials)

    def _is_given_up(self, trial: FrozenTrial) -> bool:
        return trial.state == TrialState.FAIL and self._readable_outcome(trial) is None

    def _catch_up(self) -> None:
        """Takes in what other coordinators of the study did."""
        for trial in self._feed.news():
            self._take_in(trial)

    def _take_in(self, trial: FrozenTrial) -> None:
        """Takes in a trial that the storage has news of; one that was asked for twice is given up.

        A connection may be lost when a trial is written and its number is not known yet: the trial is
        there, this process's own, and nobody runs it.
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
        """Says once that a trial cannot be read; its size may be proposed again."""
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
