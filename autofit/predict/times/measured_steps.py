"""Measured step times of one workload, which correct its predicted step times on the same card.

$AUTOFIT_STATE_DIR/step-times/<workload>-<measured step>.json, one file each

The relative error of predicted times is similar at all batch sizes of a workload on a card. So a predicted
time is multiplied by measured / predicted of measured steps with the same knob setting, or else with other
settings. The error that remains is smaller: `observed` in `autofit_workers/replay/time/residuals.toml`.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autofit import paths
from autofit.hardware.card import Card
from autofit.identity import fingerprint
from autofit.predict.intervals.observations import card_key, workload_key
from autofit_workers.spec.documents import parse_json, read_file
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.pythons import Self

_STORED = "step-time/1"  # the key of a file, with its version
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Measured time of a step, with its configuration and card.

    Attributes:
        workload: the workload's name.
        knobs, mode, batch_size: the configuration.
        card: key of the card.
        measured_seconds: the measured time of a step.
        predicted_seconds: the likely predicted time, without corrections by other measured steps.
        model: digest of the constants of the time model that the prediction was made with.
        parallel: how ranks shared the work, such as `fsdp:8`; empty for a single process.
    """

    workload: str
    knobs: Knobs
    mode: str
    batch_size: int
    card: str
    measured_seconds: float
    predicted_seconds: float
    model: str
    parallel: str = ""

    @property
    def id(self) -> str:
        """Short hash of the measured step; a later step of the same configuration replaces it."""
        what = {"knobs": self.knobs.to_dict(), "mode": self.mode, "card": self.card}
        if self.parallel:
            what["parallel"] = self.parallel
        return fingerprint({**what, "batch_size": self.batch_size})[:12]

    @property
    def off_by(self) -> float:
        """Ratio of measured to predicted step time: the factor that corrects the prediction."""
        return self.measured_seconds / self.predicted_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Correction factor for predicted step times, from measured steps.

    Attributes:
        factor: geometric mean of measured / predicted time; a predicted time is multiplied by it.
        is_of_setting: whether the measured steps have the same knob setting as the prediction; else they have
            others.
        num_steps: number of measured steps.
    """

    factor: float
    is_of_setting: bool
    num_steps: int

    @property
    def in_words(self) -> str:
        steps = "a measured step" if self.num_steps == 1 else f"{self.num_steps} measured steps"
        of_what = "this setting" if self.is_of_setting else "other settings of this workload"
        return f"corrected by a factor of {self.factor:.2f}, from {steps} of {of_what} on this card"


class MeasuredSteps:
    """Measured step times of one workload.

    Args:
        found: the measured steps; `load` reads those in the state directory.
    """

    def __init__(self, found: Iterable[MeasuredStep] = ()) -> None:
        self._found = tuple(found)

    @classmethod
    def load(cls, workload: WorkloadRef) -> Self:
        """Reads a workload's stored measured steps; logs a warning for each file that cannot be read."""
        found = []
        for path in sorted(paths.step_times_path().glob(f"{workload_key(workload)}-*.json")):
            try:
                found.append(from_plain(MeasuredStep, parse_json(read_file(path))[_STORED]))
            except (OSError, ValueError, TypeError, LookupError) as error:
                _log.warning("the measured step %s cannot be read and is ignored: %s", path, error)
        return cls(found)

    @property
    def digest(self) -> str:
        """Hash of all measured steps, which identifies them in stored searches; empty if there are none."""
        return fingerprint({each.id: _plain(each) for each in self._found}) if self._found else ""

    def scale(self, knobs: Knobs, card: Card, mode: str, model: str, parallel: str = "") -> Scale | None:
        """Correction of predicted step times for a knob setting on a card; None if no such step was measured.

        Args:
            mode: mode of the step, such as `train`.
            model: digest of the constants of the time model; only steps that were predicted with the same
                count.
            parallel: how ranks share the work; only steps that share it likewise count, because others
                exchange other data.
        """
        wanted = card_key(card), mode, model, parallel
        alike = [
            each
            for each in self._found
            if (each.card, each.mode, each.model, each.parallel) == wanted and math.isfinite(each.off_by)
        ]
        own = [each for each in alike if each.knobs == knobs]
        return _scale(own, is_of_setting=True) if own else _scale(alike, is_of_setting=False)


def _scale(steps: Sequence[MeasuredStep], *, is_of_setting: bool) -> Scale | None:
    if not steps:
        return None
    mean = math.fsum(math.log(each.off_by) for each in steps) / len(steps)
    return Scale(factor=math.exp(mean), is_of_setting=is_of_setting, num_steps=len(steps))


def keep(workload: WorkloadRef, step: MeasuredStep) -> None:
    """Stores a measured step in the state directory; raises `StorageError` if it cannot be written."""
    path = paths.step_times_dir() / f"{workload_key(workload)}-{step.id}.json"
    paths.write_atomically(path, json.dumps({_STORED: _plain(step)}, indent=2))


def _plain(step: MeasuredStep) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(step)))
    return plain
