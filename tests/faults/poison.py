"""Storages full of records, of which some are made what another version, or a fault, would leave.

    python -m tests.faults.poison --records 1000

fills a journal, SQLite and PostgreSQL (where it is installed) with so many records of each kind, poisons
one of each kind in each way, and says what is answered afterwards.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from autofit.jobs.queue import JOBS_STUDY, JobQueue
from autofit.jobs.records import JobSpec
from autofit.study.damage import UNREADABLE, Kind, UnreadableError
from autofit.study.database import parse_url
from autofit.study.search_record import SearchRecord
from autofit.study.storage import open_storage, quiet_optuna
from autofit.tuning import earlier_answers
from autofit.tuning.earlier_answers import Question
from autofit_workers.spec.protocol import Verdict
from tests.autofit.serve.searches import Reading, open_search, tell
from tests.autofit.tuning.test_earlier_answers import result
from tests.postgres import running_postgres

BIG = "big"
_NUM_JOBS = 3
NESTED = "[" * 3000 + "]" * 3000

_Change = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a record's text is: an attribute of a study, or of a trial of it."""

    study: str
    trial: int | None
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """What is done to one record.

    Attributes:
        counts_as: the kind under which the record is left aside.
    """

    kind: Kind
    way: str
    change: _Change
    counts_as: Kind


def _in(change: Callable[[Any], Any]) -> _Change:
    """A change of what JSON says."""
    return lambda text: json.dumps(change(json.loads(text)))


def _without(name: str) -> _Change:
    return _in(lambda value: {key: each for key, each in value.items() if key != name})


def _with(**more: Any) -> _Change:
    return _in(lambda value: {**value, **more})


def _of_outcome(**more: Any) -> _Change:
    return _in(lambda text: json.dumps({**json.loads(text), **more}))


def bit_flipped(text: str) -> str:
    """A text in which the first quotation mark has lost a bit."""
    place = text.index('"')
    return text[:place] + chr(ord('"') ^ 1) + text[place + 1 :]


def _attempt(change: Callable[[dict[str, Any]], dict[str, Any]]) -> _Change:
    return _in(lambda attempts: [change(attempts[0]), *attempts[1:]])


POISONS = (
    Poison(kind=Kind.JOB, way="older", change=_without("workload"), counts_as=Kind.JOB),
    Poison(kind=Kind.JOB, way="newer", change=_with(schema=2, spec={"v": 2}), counts_as=Kind.JOB),
    Poison(kind=Kind.JOB, way="bit flip", change=bit_flipped, counts_as=Kind.JOB),
    Poison(kind=Kind.JOB, way="brackets", change=lambda _: NESTED, counts_as=Kind.JOB),
    Poison(
        kind=Kind.ATTEMPT,
        way="older",
        change=_attempt(lambda each: {"submission_id": each["submission_id"]}),
        counts_as=Kind.ATTEMPT,
    ),
    Poison(
        kind=Kind.ATTEMPT,
        way="newer",
        change=_attempt(lambda each: {**each, "schema": 2}),
        counts_as=Kind.ATTEMPT,
    ),
    Poison(
        kind=Kind.ATTEMPT,
        way="bit flip",
        change=lambda text: text.replace("submission", "sucmission"),
        counts_as=Kind.ATTEMPT,
    ),
    Poison(kind=Kind.ATTEMPT, way="brackets", change=lambda _: NESTED, counts_as=Kind.JOB),
    Poison(kind=Kind.STUDY, way="older", change=_without("workload"), counts_as=Kind.STUDY),
    Poison(kind=Kind.STUDY, way="newer", change=_with(protocol_version=99), counts_as=Kind.STUDY),
    Poison(kind=Kind.STUDY, way="bit flip", change=bit_flipped, counts_as=Kind.STUDY),
    Poison(kind=Kind.STUDY, way="brackets", change=lambda _: NESTED, counts_as=Kind.STUDY),
    Poison(
        kind=Kind.TRIAL,
        way="older",
        change=_of_outcome(schema="autofit.trial-outcome/1"),
        counts_as=Kind.TRIAL,
    ),
    Poison(
        kind=Kind.TRIAL,
        way="newer",
        change=_of_outcome(schema="autofit.trial-outcome/99"),
        counts_as=Kind.TRIAL,
    ),
    Poison(kind=Kind.TRIAL, way="bit flip", change=bit_flipped, counts_as=Kind.TRIAL),
    Poison(kind=Kind.TRIAL, way="brackets", change=lambda _: json.dumps(NESTED), counts_as=Kind.TRIAL),
    Poison(kind=Kind.ANSWER, way="older", change=_without("budget"), counts_as=Kind.ANSWER),
    Poison(kind=Kind.ANSWER, way="newer", change=_with(schema="autofit.tune/2"), counts_as=Kind.ANSWER),
    Poison(kind=Kind.ANSWER, way="bit flip", change=bit_flipped, counts_as=Kind.ANSWER),
    Poison(kind=Kind.ANSWER, way="brackets", change=lambda _: NESTED, counts_as=Kind.ANSWER),
)


class Filled:
    """A storage with so many jobs, studies, trials of one study, and answers.

    Four in five jobs have an attempt, half of these are over; the others wait.
    """

    def __init__(self, url: str, num: int) -> None:
        self.url = url
        self.num = num
        self.num_waiting = num - 4 * num // 5
        with quiet_optuna():
            self._add_first_of_each()
            with contextlib.closing(open_storage(url, BIG)) as storage:
                self._add_copies(storage.backend)

    def question(self, number: int) -> Question:
        return Question(parts={"number": number}, roots=(), own_file=None, storage=self.url, wait_seconds=1.0)

    def _add_first_of_each(self) -> None:
        """Records as those who keep them write them, a job of each state among them."""
        spec = JobSpec(options={"model": "w", "gpu-mem": "16G"}, workload="w", max_drivers=self.num)
        with JobQueue.open(self.url) as queue:
            for number in range(_NUM_JOBS):
                queue.enqueue(f"job-{number}", spec)
            for number in range(_NUM_JOBS - 1):
                claimed = queue.claim_next()
                assert claimed is not None
                job = queue.record_attempt(claimed, f"job-{number}.1")
                if number == 0:
                    queue.finish(job, {"schema": "autofit.tune/1", "best": None})
            waiting = queue.record(f"job-{_NUM_JOBS - 1}")
            assert waiting is not None
            queue.give_up(waiting, "it is of another kind than its copies")
        for name in (BIG, "study-0"):
            with open_search(self.url, name=name) as study:
                tell(study, study.ask(), verdict=Verdict.LOST)
        asked = self.question(0)
        earlier_answers.keep(asked, result(), {})

    def _add_copies(self, backend: BaseStorage) -> None:
        def first(study: str) -> list[FrozenTrial]:
            return backend.get_all_trials(backend.get_study_id_from_name(study))

        over, running, given_up = first(JOBS_STUDY)
        jobs = backend.get_study_id_from_name(JOBS_STUDY)
        for number in range(_NUM_JOBS, self.num):
            template = over if number % 2 else running
            if number >= self.num - self.num_waiting:
                as_enqueued = {name: given_up.user_attrs[name] for name in ("job", "enqueued_by")}
                template = create_trial(state=TrialState.WAITING, user_attrs=as_enqueued)
            self._add_job(backend, jobs, number, template)
        (trial,) = first(BIG)
        for _ in range(1, self.num):
            backend.create_new_trial(backend.get_study_id_from_name(BIG), trial)
        attributes = backend.get_study_user_attrs(backend.get_study_id_from_name("study-0"))
        for number in range(1, self.num):
            study_id = backend.create_new_study([StudyDirection.MAXIMIZE], f"study-{number}")
            for key, value in attributes.items():
                backend.set_study_user_attr(study_id, key, value)
        (answer,) = first(self.question(0).study)
        for number in range(1, self.num):
            asked = self.question(number)
            study_id = backend.create_new_study([StudyDirection.MAXIMIZE], asked.study)
            backend.set_study_user_attr(study_id, "autofit_answer", True)
            answer.user_attrs = {**answer.user_attrs, "question": dict(asked.parts)}
            backend.create_new_trial(study_id, answer)

    @staticmethod
    def _add_job(backend: BaseStorage, study_id: int, number: int, template: FrozenTrial) -> None:
        attributes = {**template.user_attrs, "job_id": f"job-{number}"}
        if "attempts" in attributes:
            attributes["attempts"] = [{**attributes["attempts"][0], "submission_id": f"job-{number}.1"}]
        template.user_attrs = attributes
        backend.create_new_trial(study_id, template)

    def place(self, kind: Kind, number: int) -> Place:
        """Where a record of a kind is."""
        return {
            Kind.JOB: Place(study=JOBS_STUDY, trial=number, key="job"),
            Kind.ATTEMPT: Place(study=JOBS_STUDY, trial=number, key="attempts"),
            Kind.STUDY: Place(study=f"study-{number}", trial=None, key="autofit_settings"),
            Kind.TRIAL: Place(study=BIG, trial=number, key="outcome"),
            Kind.ANSWER: Place(study=self.question(number).study, trial=0, key="result"),
        }[kind]

    def poison(self) -> dict[int, Poison]:
        """Poisons one record of each kind in each way; by number."""
        poisoned = {3 + index: poison for index, poison in enumerate(POISONS)}
        for number, poison in poisoned.items():
            change(self.url, self.place(poison.kind, number), poison.change)
        return poisoned

    def answers(self) -> dict[tuple[Kind, int], Any]:
        """What is answered of every record that can be read, by its kind and number."""
        found: dict[tuple[Kind, int], Any] = {}
        with quiet_optuna():
            with JobQueue.open(self.url) as queue:
                for job in queue.records():
                    found[Kind.JOB, job.number] = (dataclasses.replace(job, attempts=()), job.document)
                    found[Kind.ATTEMPT, job.number] = job.attempts
            with open_search(self.url, name=BIG) as study:
                for record in study.outcomes():
                    found[Kind.TRIAL, record.trial_number] = record.outcome
            with contextlib.closing(open_storage(self.url, BIG)) as storage:
                backend = storage.backend
                ids = {study.study_name: study._study_id for study in backend.get_all_studies()}
                for number in range(self.num):
                    attributes = backend.get_study_user_attrs(ids[f"study-{number}"])
                    with contextlib.suppress(UnreadableError):
                        found[Kind.STUDY, number] = SearchRecord.of(attributes)
                    with contextlib.suppress(*UNREADABLE):
                        asked = self.question(number)
                        entry = earlier_answers._read(backend, asked.study)
                        found[Kind.ANSWER, number] = entry and earlier_answers._held(entry, asked)
        return found

    def counts(self) -> dict[str, float]:
        """What a reader that starts now comes to show of records that cannot be read."""
        reading = Reading(self.url)
        samples = reading.read(2 + self.num // 50)
        reading.close()
        return {name: value for name, value in samples.items() if name.startswith("unreadable_records")}


def wrong(filled: Filled) -> list[str]:
    """Poisons a storage, and says what is not as it should be then."""
    before, counted = filled.answers(), filled.counts()
    assert len(before) == 5 * filled.num
    assert counted == {}
    poisoned = filled.poison()
    after = filled.answers()
    left_aside = {(poison.counts_as, number) for number, poison in poisoned.items()}
    left_aside |= {(Kind.ATTEMPT, number) for kind, number in left_aside if kind is Kind.JOB}
    expected = {record: answer for record, answer in before.items() if record not in left_aside}
    made_up = [number for kind, number in left_aside if (kind, number) in after]
    found = {record: answer for record, answer in after.items() if record not in left_aside}
    faults = [f"{record} has changed" for record in expected if found.get(record) != expected[record]]
    faults += [
        f"attempt of job {number} is lost"
        for number in made_up
        if [each.submission_id for each in after[Kind.ATTEMPT, number]] != [f"job-{number}.1"]
    ]
    if len(made_up) != sum(poison.counts_as is Kind.ATTEMPT for poison in poisoned.values()):
        faults.append("what cannot be read is answered")
    if (counts := filled.counts()) != expected_counts(poisoned):
        faults.append(f"the gauge shows {counts}")
    with quiet_optuna(), JobQueue.open(filled.url) as queue:
        claimed = queue.claim_next()
        if claimed is None or claimed.number != filled.num - filled.num_waiting:
            faults.append("the oldest job that waits cannot be claimed")
    return faults


def change(url: str, place: Place, of_text: _Change) -> None:
    """Changes the text of an attribute where it lies."""
    if "://" not in url:
        _change_line(Path(url), place, of_text)
        return
    engine = sqlalchemy.create_engine(parse_url(url))
    of_trial = place.trial is not None
    table = "trial_user_attributes" if of_trial else "study_user_attributes"
    owner = (
        "trial_id = (SELECT trial_id FROM trials JOIN studies USING (study_id)"
        " WHERE study_name = :study AND number = :trial)"
        if of_trial
        else "study_id = (SELECT study_id FROM studies WHERE study_name = :study)"
    )
    named = dataclasses.asdict(place)
    with engine.begin() as connection:
        where = f"WHERE key = :key AND {owner}"
        found = connection.execute(
            sqlalchemy.text(f"SELECT value_json FROM {table} {where}"), named
        ).scalar_one()
        written = connection.execute(
            sqlalchemy.text(f"UPDATE {table} SET value_json = :text {where}"),
            {**named, "text": of_text(found)},
        )
        assert written.rowcount == 1
    engine.dispose()


def _change_line(path: Path, place: Place, of_text: _Change) -> None:
    """Changes the last line of a journal that says what the attribute is."""
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    studies: list[str] = []
    trials: list[tuple[str, int]] = []
    wanted = None
    for number, line in enumerate(lines):
        try:
            operation = json.loads(line)
        except (ValueError, RecursionError):
            created = re.match(r'{"op_code":4,"worker_id":"[^"]*","study_id":(\d+)', line)
            operation = {} if created is None else {"op_code": 4, "study_id": int(created[1])}
        owner: tuple[str, int | None] | None = None
        match operation.get("op_code"):
            case 0 if operation["study_name"] not in studies:
                studies.append(operation["study_name"])
            case 4:
                study = studies[operation["study_id"]]
                trials.append((study, sum(each == study for each, _ in trials)))
                owner = trials[-1]
            case 2:
                owner = (studies[operation["study_id"]], None)
            case 8:
                owner = trials[operation["trial_id"]]
        given = operation.get("user_attr") or operation.get("user_attrs") or {}
        if owner == (place.study, place.trial) and place.key in given:
            wanted = number, json.dumps(given[place.key], separators=(",", ":"))
    assert wanted is not None, place
    number, text = wanted
    assert lines[number].count(text) == 1
    lines[number] = lines[number].replace(text, of_text(text))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")


def expected_counts(poisoned: Mapping[int, Poison]) -> dict[str, float]:
    """What `autofit_unreadable_records` has to show."""
    counted = collections.Counter(poison.counts_as for poison in poisoned.values())
    return {f"unreadable_records {kind}": float(num) for kind, num in counted.items()}


@contextlib.contextmanager
def new_storage(kind: str, folder: Path) -> Iterator[str]:
    """An empty storage: `journal`, `sqlite` or `postgresql`."""
    if kind == "postgresql":
        with running_postgres() as server:
            yield server.new_database("poisoned")
    else:
        yield {"journal": str(folder / "all.journal"), "sqlite": f"sqlite:///{folder / 'all.db'}"}[kind]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--storages", nargs="+", default=["journal", "sqlite", "postgresql"])
    given = parser.parse_args()
    for kind in given.storages:
        with tempfile.TemporaryDirectory() as folder, new_storage(kind, Path(folder)) as url:
            started = time.monotonic()
            filled = Filled(url, given.records)
            filled_seconds = time.monotonic() - started
            faults = wrong(filled)
            print(  # noqa: T201 - what it is run for
                f"{kind}: {given.records} records of each of {len(Kind)} kinds, {len(POISONS)} poisoned, "
                f"{len(faults)} wrong {faults[:5]}; filled in {filled_seconds:.0f} s, looked at in "
                f"{time.monotonic() - started - filled_seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
