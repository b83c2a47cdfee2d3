"""Storage of earlier answers, so that a repeated question is answered without a search.

    question ─ digest ─▶ study `answer-<digest>` ─▶ its one trial: the answer, and the user's files it depends
    on
                                                       │ unchanged: the answer
                                                       └ changed, or no readable answer: a search

A question is everything that decides an answer and is known before a trace. The files that a
workload imports and reads are known only afterwards: the answer is valid as long as they do not change.
An entry is in the storage of the studies; if it cannot be read or written, the user gets a warning and a
search.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autofit import surroundings
from autofit.dispatch.base import Devices
from autofit.errors import DispatchError, DriverError, StorageError, UsageError
from autofit.hardware.gpus import LocalGpu
from autofit.identity import fingerprint, versions
from autofit.predict.intervals.observations import Observations
from autofit.predict.times.measured_steps import MeasuredSteps
from autofit.settings.options import OPTIONS
from autofit.settings.target import resolve_target
from autofit.settings.tune_settings import TuneSettings
from autofit.study.damage import (
    DAMAGED,
    UNREADABLE,
    DamagedError,
    UnreadableError,
    require_schema,
    require_whole,
)
from autofit.tuning.result import TuneResult
from autofit_workers.process.operating_system import num_processors
from autofit_workers.process.sources import content_digest
from autofit_workers.spec.protocol import PROTOCOL_VERSION, WorkloadRef
from autofit_workers.trials.door import processor_name

_STUDY_PREFIX = "answer-"
_IS_ANSWER = "autofit_answer"  # marks studies that hold answers
_SCHEMA_NUMBER = 1
_SCHEMA = "schema"
_RESULT = "result"
_SOURCES = "sources"
_FOLDER = "folder"
_QUESTION = "question"

# Settings for where and how long to search, which do not decide an answer: an incomplete answer is not
# stored.
_NOT_DECIDING = frozenset(option.field for option in OPTIONS.values() if not option.decides)

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """Inputs that decide the answer of a search; their digest is the key of the stored answer.

    Attributes:
        parts: settings, devices, versions and files that decide the answer, by name, as JSON values.
        roots: folders that the workload is imported from, and the current folder. Their location does not
            count: the same files elsewhere, as on a cluster, have the same stored answer.
        own_file: file of the workload, if it was given as one.
        storage: database URL or journal file that stores the answer.
        wait_seconds: seconds to wait for a database that cannot be reached.
    """

    parts: Mapping[str, Any]
    roots: tuple[str, ...]
    own_file: str | None
    storage: str | None
    wait_seconds: float

    @functools.cached_property
    def study(self) -> str:
        """Name of the study that holds the answer."""
        return f"{_STUDY_PREFIX}{fingerprint(self.parts)[:32]}"


def question(
    settings: TuneSettings,
    workload: WorkloadRef,
    *,
    local_gpus: Callable[[], tuple[LocalGpu, ...]],
    reachable: Callable[[], Devices],
) -> Question | None:
    """Inputs by which the answer of a search is stored; None if it must not be stored.

    It is None if something that decides the answer is unknown: for a training script, which may read any
    file, or if the devices of the machine or cluster do not answer.

    Args:
        local_gpus: returns the cards of this machine; called only if trials may run on them.
        reachable: returns the devices of the cluster in the settings; called only if trials may run on them.
    """
    if workload.script is not None:
        return None  # a script may read any environment variable and any file
    try:
        devices = _devices(settings, local_gpus, reachable)
        is_measured = _is_measured(settings, local_gpus, reachable)
    except DriverError:
        return None
    given = dataclasses.asdict(settings)
    is_file = workload.kind == "file"
    target = workload.target.rsplit("/", 1)[-1] if is_file else workload.target
    parts = {
        "workload": [
            workload.kind,
            target,
            workload.source_sha256,
            *workload.said_of_samples,
        ],
        "settings": {name: value for name, value in given.items() if name not in _NOT_DECIDING},
        "devices": devices,
        "environment_sha256": surroundings.environment(
            settings.setup.kept_variables, with_secrets=is_measured
        ),
        "observations_sha256": Observations.load(workload).digest,
        # Measured answers produce these records, and so do not depend on them.
        "step_times_sha256": "" if is_measured else MeasuredSteps.load(workload).digest,
        "versions": versions(),
        "protocol": PROTOCOL_VERSION,
        "packages_sha256": surroundings.installed_packages(),
        "autofit_sha256": surroundings.own_code(),
    }
    roots = (*workload.search_path, str(Path.cwd())) if workload.kind != "builtin" else ()
    return Question(
        parts=json.loads(json.dumps(parts, default=str)),
        roots=roots,
        own_file=workload.target.rpartition(":")[0] if is_file else None,
        storage=settings.storage,
        wait_seconds=settings.storage_wait_seconds,
    )


def find(asked: Question) -> TuneResult | None:
    """Stored result of an equal earlier search; None without one, or if a file of the workload has changed.

    Raises:
        StorageError: a database cannot be reached, which the search would need too.
    """
    from autofit.study.storage import is_journal, journal_path, open_storage, quiet_optuna

    in_journal = is_journal(asked.storage)
    try:
        if in_journal and not journal_path(asked.storage, asked.study).exists():
            return None
        with quiet_optuna():
            storage = open_storage(asked.storage, asked.study, wait_seconds=asked.wait_seconds)
            try:
                entry = storage.run(lambda: _read(storage.backend, asked.study))
            finally:
                storage.close()
        return None if entry is None else _held(entry, asked)
    except StorageError as error:
        if not in_journal:
            raise
        _log.warning("an earlier answer cannot be read and is ignored: %s", error.message)
    except UNREADABLE as error:
        _log.warning("the earlier answer in study %s cannot be read and is ignored: %s", asked.study, error)
    return None


def keep(asked: Question, result: TuneResult, sources: Mapping[str, str] | None) -> None:
    """Stores the result of a complete search under a key, for later searches with equal settings.

    Nothing is stored if `sources` is None, as changes of the workload would go unnoticed.

    Args:
        asked: key to store the answer under.
        sources: digest of each of the user's files that the workload used, by path; None if unknown.
    """
    from autofit.study.storage import open_storage, quiet_optuna

    is_whole = result.stopped_by is None and all(entry.is_settled for entry in result.frontier)
    if not is_whole or sources is None:
        return
    entry = {
        _SCHEMA: _SCHEMA_NUMBER,
        _RESULT: result.to_dict(),
        _SOURCES: [
            _placed(path, digest, asked.roots)
            for path, digest in sorted(sources.items())
            if path != asked.own_file  # its digest is in the question
        ],
        _FOLDER: str(Path.cwd()),
        _QUESTION: asked.parts,
    }
    try:
        with quiet_optuna():
            storage = open_storage(asked.storage, asked.study, wait_seconds=asked.wait_seconds)
            try:
                storage.run(lambda: _write(storage.backend, asked.study, entry, result))
            finally:
                storage.close()
    except StorageError as error:
        _log.warning("the answer cannot be kept for the next time: %s", error.message)


# ── the entry ───────────────────────────────────────────────────────────────────────────────────


def _read(backend: Any, name: str) -> dict[str, Any] | None:
    """Stored entry of the study `name`; None if there is none."""
    from optuna.trial import TrialState

    try:
        study_id = backend.get_study_id_from_name(name)
    except KeyError:
        return None
    attributes = backend.get_study_user_attrs(study_id)
    require_whole(attributes)
    if not attributes.get(_IS_ANSWER):
        raise ValueError("it was not made by autofit")
    trials = backend.get_all_trials(study_id, deepcopy=False)
    if not any(trial.state is TrialState.COMPLETE or DAMAGED in trial.user_attrs for trial in trials):
        return None
    entry = dict(trials[-1].user_attrs)
    require_whole(entry)
    require_schema(entry, _SCHEMA_NUMBER)
    return entry


def is_answer(name: str, attributes: Mapping[str, Any]) -> bool:
    """Whether a study with this name and these attributes holds a stored answer."""
    return _IS_ANSWER in attributes or (name.startswith(_STUDY_PREFIX) and DAMAGED in attributes)


def require_readable(backend: Any, study_id: int) -> None:
    """Raises `UnreadableError` if a stored answer cannot be read."""
    try:
        entry = _read(backend, backend.get_study_name_from_id(study_id))
        if entry is not None:
            TuneResult.from_dict(entry[_RESULT])
    except UnreadableError:
        raise
    except UNREADABLE as error:
        if error.args == ("Record does not exist.",):
            raise
        raise DamagedError(error) from error


def _write(backend: Any, name: str, entry: dict[str, Any], result: TuneResult) -> None:
    """Writes an answer to the study of its name, replacing an earlier one; may be repeated after a failure.

    A study is Optuna's unit of storage: each answer is the single trial of a study of its own.
    """
    import optuna

    study = optuna.create_study(storage=backend, study_name=name, direction="maximize", load_if_exists=True)
    attributes = study.user_attrs
    is_ours = attributes.get(_IS_ANSWER) or DAMAGED in attributes
    if not is_ours and study.get_trials(deepcopy=False):
        raise StorageError(f"study {name} was not made by autofit: choose another --storage")
    if is_ours:
        optuna.delete_study(storage=backend, study_name=name)
        study = optuna.create_study(
            storage=backend, study_name=name, direction="maximize", load_if_exists=True
        )
    study.set_user_attr(_IS_ANSWER, True)
    best = 0 if result.best is None else result.best.batch_size
    plain = json.loads(json.dumps(entry))
    study.add_trial(optuna.create_trial(value=float(best), user_attrs=plain))


def _held(entry: dict[str, Any], asked: Question) -> TuneResult | None:
    """Result in a stored entry; None if a file of the workload is not known to be the same as then.

    Raises:
        ValueError: the entry is the answer for other settings than `asked`.
    """
    if entry[_QUESTION] != asked.parts:
        raise ValueError("it answers another question")
    # A relative path that leads out of the current folder may lead to another file elsewhere.
    if entry.get(_FOLDER) != str(Path.cwd()) and any(source["root"] is None for source in entry[_SOURCES]):
        return None
    for source in entry[_SOURCES]:
        root = source["root"]
        path = Path(source["path"]) if root is None else Path(asked.roots[root], source["path"])
        if content_digest(path) != source["digest"]:
            return None
    return dataclasses.replace(TuneResult.from_dict(entry[_RESULT]), cached=True)


def _placed(path: str, digest: str, roots: tuple[str, ...]) -> dict[str, Any]:
    """Record of a source file: its digest, and its path relative to one of the `roots`, or absolute."""
    for index, root in enumerate(roots):
        if Path(path).is_relative_to(root):
            return {"root": index, "path": str(Path(path).relative_to(root)), "digest": digest}
    return {"root": None, "path": path, "digest": digest}


# ── parts of a question ─────────────────────────────────────────────────────────────────────


def _is_measured(
    settings: TuneSettings,
    local_gpus: Callable[[], tuple[LocalGpu, ...]],
    reachable: Callable[[], Devices],
) -> bool:
    """Whether the answer would be measured by running the workload, rather than predicted.

    The result is True also if no device meets the settings: the search then fails, and nothing is stored.
    """
    try:
        return resolve_target(settings, local_gpus=local_gpus, reachable=reachable).probe is not None
    except (UsageError, DispatchError):
        return True


def _devices(
    settings: TuneSettings,
    local_gpus: Callable[[], tuple[LocalGpu, ...]],
    reachable: Callable[[], Devices],
) -> dict[str, Any]:
    """Properties of the machine's or cluster's devices that decide the answer, by name."""
    on_cluster = settings.address is not None
    if settings.device == "cpu":
        # A cluster's processors are unknown: its custom resources, which are settings, choose nodes.
        processor = None if on_cluster else processor_name()
        return {"processor": processor, "num_threads": settings.num_threads or num_processors()}
    is_named = settings.gpu is not None or settings.gpu_mem_bytes is not None
    if is_named and settings.probe == "predict":
        return {}
    cards = [(gpu.name, gpu.architecture, gpu.total_bytes, gpu.driver_version) for gpu in local_gpus()]
    if not on_cluster:
        return {"cards": cards}
    found = reachable()
    return {
        "cards": cards,
        "reachable": sorted(set(found.names)),
        "is_any_reachable": found.num_gpus > 0,
        "are_all_named": found.num_gpus == len(found.names),
    }
