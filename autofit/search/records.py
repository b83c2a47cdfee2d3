"""What a study keeps, for those who read it without searching: names of attributes, and their meaning.

A study's attributes are few and small, since every listing of studies reads all of them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from optuna.trial import FrozenTrial, TrialState

from autofit.search.owner import Owner
from autofit.search.space import BATCH_SIZE, SearchSpace
from workers.protocol import Probe, TrialOutcome, TrialSpec, WorkloadRef

SETTINGS = "autofit_settings"  # of a study: what decides its outcomes
OPENED = "autofit_opened"  # of a study: for whom it was opened last, and when

OWNER = "owner"
OUTCOME = "outcome"
NUM_STEPS = "num_steps"
PREDICTED = "predicted_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What is said of a search when it begins or is taken up again.

    Attributes:
        workload: its short name, as in `WorkloadRef.name`.
        gpu: what it is for, see `autofit.target.gpu_label`.
        opened_seconds: epoch.
    """

    workload: str
    gpu: str
    opened_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord:
    """A search as its study's attributes have it.

    Attributes:
        budget_bytes: what peaks are held against.
        spec: what its trials have in common, as far as the study keeps it.
    """

    opened: Opened
    budget_bytes: int
    space: SearchSpace
    spec: TrialSpec

    @staticmethod
    def is_search(attributes: dict[str, Any]) -> bool:
        """Whether a study with these attributes is a search that was opened."""
        return OPENED in attributes

    @classmethod
    def of(cls, attributes: dict[str, Any]) -> Self:
        """The search with these attributes of its study.

        Raises:
            ValueError, LookupError, TypeError: another version of autofit wrote them.
        """
        settings = attributes[SETTINGS]
        return cls(
            opened=Opened(**attributes[OPENED]),
            budget_bytes=settings["budget_bytes"],
            space=SearchSpace.from_dict(settings),
            spec=TrialSpec(
                workload=WorkloadRef.from_dict(settings["workload"]),
                batch_size=1,
                probe=Probe(settings["probe"]),
                mode=settings["mode"],
                budget_bytes=settings["budget_bytes"],
                num_threads=settings["num_threads"],
            ),
        )

    def spec_of(self, trial: FrozenTrial) -> TrialSpec | None:
        """What a trial ran, or runs; None while it has no configuration."""
        if BATCH_SIZE not in trial.params:
            return None
        return dataclasses.replace(
            self.spec,
            knobs=self.space.to_knobs(trial.params),
            batch_size=trial.params[BATCH_SIZE],
            num_steps=trial.user_attrs.get(NUM_STEPS, self.spec.num_steps),
        )


def outcome_of(trial: FrozenTrial) -> TrialOutcome | None:
    """What a trial returned, once it is told; None where it was given up."""
    if not trial.state.is_finished() or OUTCOME not in trial.user_attrs:
        return None
    return TrialOutcome.from_json(trial.user_attrs[OUTCOME])


def owner_of(trial: FrozenTrial) -> Owner | None:
    """Who will end a running trial; None where nobody has said so yet."""
    if trial.state != TrialState.RUNNING or OWNER not in trial.user_attrs:
        return None
    return Owner(**trial.user_attrs[OWNER])


def predicted_bytes_of(trial: FrozenTrial) -> int | None:
    """The likely peak that was predicted for a measured trial."""
    predicted: int | None = trial.user_attrs.get(PREDICTED)
    return predicted
