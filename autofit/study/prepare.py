"""Names of studies, and the creation of a study in its storage."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning

from autofit.errors import StorageError, StudyMismatchError, UsageError
from autofit.study.damage import DAMAGED
from autofit.study.search_record import SETTINGS
from autofit.study.storage import Storage

_VALUE = "batch that fits"  # name of a trial's value on Optuna's pages and tables


def require_name(name: str) -> None:
    """Raises `UsageError` if `name` is not a valid name of a study."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", name):
        raise UsageError(
            f"a study cannot be named {name!r}: use up to 128 letters, digits, dots, hyphens and "
            "underscores; begin with a letter or digit"
        )


def default_name(label: str, digest: str) -> str:
    """Name of a study unless the user gives one: a readable label and the first digits of a digest.

    Args:
        digest: digest of the settings that the study belongs to.
    """
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")
    return f"{readable[:64] or 'study'}-{digest[:12]}"


def has_study(storage: Storage, name: str) -> bool:
    """Whether the storage holds a study named `name`."""
    try:
        storage.backend.get_study_id_from_name(name)
    except KeyError:
        return False
    return True


def prepare(storage: Storage, name: str, settings: dict[str, Any], *, fresh: bool) -> None:
    """Creates a study (a search's stored record) with a name and settings, unless it exists.

    The call may be repeated after a lost connection.

    Args:
        settings: everything that decides the outcomes of trials; an existing study must have the same.
        fresh: whether to delete an existing study of this name first.

    Raises:
        StudyMismatchError: the storage holds a study of this name with other settings, or not of autofit.
        StorageError: the study of this name is damaged.
    """
    backend = storage.backend
    if has_study(storage, name):
        earlier = optuna.load_study(study_name=name, storage=backend)
        attributes = backend.get_study_user_attrs(backend.get_study_id_from_name(name))
        stored = attributes.get(SETTINGS)
        is_damaged = DAMAGED in attributes or not isinstance(stored, dict | None)
        if stored is None and not is_damaged and earlier.get_trials(deepcopy=False):
            raise StudyMismatchError(
                f"study {name!r} in {storage.where} was not made by autofit: choose another name with --study"
            )
        if (stored is not None or is_damaged) and fresh:
            optuna.delete_study(study_name=name, storage=backend)
        elif is_damaged:
            raise StorageError(
                f"study {name!r} in {storage.where} is damaged: start it over with --fresh, or choose "
                "another name with --study"
            )
        elif stored == settings:
            return
        elif stored is not None:
            raise StudyMismatchError(
                f"study {name!r} was begun with other settings ({_differences(stored, settings)}): "
                "choose another name with --study, or start it over with --fresh"
            )
    study = optuna.create_study(storage=backend, study_name=name, direction="maximize", load_if_exists=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # about a function that only names values
        study.set_metric_names([_VALUE])
    study.set_user_attr(SETTINGS, settings)


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
