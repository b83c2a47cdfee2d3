"""Attributes of a study that describe its search, for commands that only read it.

The attributes are few and small, since every listing of studies reads all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from optuna.storages import BaseStorage

from autofit.search.choice import Configuration
from autofit.search.space import SearchSpace
from autofit.study.damage import DAMAGED, UNREADABLE, DamagedError, NewerError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.parallel_kinds import DDP
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.protocol import PROTOCOL_VERSION, Probe, TrialSpec, WorkloadRef
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.setup import LIKELY_SHARE, TYPICAL, WORST, Parallel, Setup

SETTINGS = "autofit_settings"  # attribute of a study: settings that decide its outcomes
OPENED = "autofit_opened"  # attribute: workload, card and time of its last opening
RECOMMENDED = "autofit_recommended"  # attribute: configuration that its last search recommends
RECOMMENDED_TIME = "autofit_recommended_time"  # attribute: step time of that configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Note in a study on when, and for which workload and card, its search was last begun or resumed.

    Attributes:
        workload: short name of the workload, as in `WorkloadRef.name`.
        gpu: card that the search is for, see `autofit.settings.target.gpu_label`.
        opened_seconds: time at which the study was opened, in seconds of the epoch.
    """

    workload: str
    gpu: str
    opened_seconds: float


def record_opening(backend: BaseStorage, study_id: int, opened: Opened) -> None:
    """Writes into a study the workload and card that it was opened for, and when."""
    backend.set_study_user_attr(study_id, OPENED, dataclasses.asdict(opened))


class RecommendedTime(NamedTuple):
    """Predicted step time of the recommended configuration, and its error against the measured one."""

    predicted_step_seconds: float | None = None
    step_time_error: float | None = None


NO_TIME = RecommendedTime()


def record_recommendation(
    backend: BaseStorage,
    study_id: int,
    recommended: Configuration | None,
    time: RecommendedTime = NO_TIME,
) -> None:
    """Writes the configuration that a search recommends into its study; replaces an earlier one.

    Args:
        recommended: the configuration; None if nothing fits.
        time: its predicted step time.
    """
    backend.set_study_user_attr(study_id, RECOMMENDED_TIME, list(time))
    plain = None if recommended is None else [dataclasses.asdict(recommended[0]), recommended[1]]
    backend.set_study_user_attr(study_id, RECOMMENDED, plain)


def recommended_time_of(attributes: Mapping[str, Any]) -> RecommendedTime:
    """Predicted step time of the recommended configuration, read from a study's attributes.

    Returns:
        The time; `NO_TIME` if none is stored.

    Raises:
        ValueError: another version of autofit wrote it.
    """
    plain = attributes.get(RECOMMENDED_TIME)
    if plain is None:
        return NO_TIME
    seconds, error = plain
    return RecommendedTime(*(None if each is None else from_plain(float, each) for each in (seconds, error)))


def recommendation_of(attributes: Mapping[str, Any]) -> Configuration | None:
    """Recommended configuration from a study's attributes; None if nothing fits, or nothing is recorded yet.

    Raises:
        ValueError, LookupError, TypeError: another version of autofit wrote them.
    """
    plain = attributes.get(RECOMMENDED)
    if plain is None:
        return None
    knobs, batch_size = plain
    return from_plain(Knobs, knobs), from_plain(int, batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord:
    """Description of a search, read from the attributes of its study (the search's stored record).

    Attributes:
        budget_bytes: bytes that peaks are compared with.
        spec: fields that the specs of all its trials share, as far as the study stores them.
    """

    opened: Opened
    budget_bytes: int
    space: SearchSpace
    spec: TrialSpec

    @staticmethod
    def is_search(attributes: dict[str, Any]) -> bool:
        """Whether a study with these attributes belongs to a search, or is damaged and may belong to one."""
        return OPENED in attributes or DAMAGED in attributes

    @classmethod
    def of(cls, attributes: dict[str, Any]) -> Self:
        """Reads the search from its study's attributes.

        Raises:
            UnreadableError: the attributes are damaged, or another version of autofit wrote them.
        """
        settings = attributes.get(SETTINGS)
        if _is_newer(settings):
            raise NewerError
        if not isinstance(settings, dict) or OPENED not in attributes:
            raise DamagedError
        try:
            return cls._of(attributes[OPENED], settings)
        except KeyError as error:
            raise DamagedError(f"it lacks {error}") from error
        except UNREADABLE as error:
            raise DamagedError(error) from error

    @classmethod
    def _of(cls, opened: Any, settings: Any) -> Self:
        """Record of a search, from the attributes that its study stores."""
        budget_bytes = from_plain(int, settings["budget_bytes"])
        return cls(
            opened=from_plain(Opened, opened),
            budget_bytes=budget_bytes,
            space=SearchSpace.from_dict(settings),
            spec=TrialSpec(
                workload=WorkloadRef.from_dict(settings["workload"]),
                batch_size=1,
                probe=Probe(settings["probe"]),
                setup=_setup(settings),
                budget_bytes=budget_bytes,
                num_threads=settings["num_threads"],
            ),
        )

    def spec_of(self, knobs: Knobs, batch_size: int) -> TrialSpec:
        """Specification of the trial that runs a configuration, as far as the study stores its fields."""
        return dataclasses.replace(self.spec, knobs=knobs, batch_size=batch_size)


def _is_newer(settings: Any) -> bool:
    """Whether a study's trials use a newer trial protocol than this version of autofit."""
    version = settings.get("protocol_version", 0) if isinstance(settings, dict) else 0
    return isinstance(version, int) and version > PROTOCOL_VERSION


def _setup(settings: dict[str, Any]) -> Setup:
    """How the workload is run (mode, ranks, kind of batches), read from a study's stored settings."""
    num_ranks = settings.get("num_ranks", 1)
    return Setup(
        mode=settings["mode"],
        batch_kind=WORST if settings.get("worst_case", False) else TYPICAL,
        parallel=Parallel.parse(settings.get("parallel", f"{DDP}:{num_ranks}")),
        rank=settings.get("rank", 0),
        nonzero_share=settings.get("nonzero_share", LIKELY_SHARE),
        torch=settings.get("torch"),
    )
