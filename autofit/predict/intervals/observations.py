"""Observed peaks of a workload's real runs, which correct the interval of its predicted peaks.

$AUTOFIT_STATE_DIR/observations/<workload>-<observation>.json, one file each

An observation counts for predictions of the same workload (by its source), knob setting and card. Its
residual is how far the observed peak lies outside the predicted range at its batch size, as a share of the
nearer end. The shares of the calibration become

    low   min(0, residual) − 2 %      identical runs differ by 2 % (xMem's table)
    high  max(0, residual) + 2 %

but never wider than before, unless the observation was surely outside the interval. If a reserved peak was
observed, observed allocated and device peaks have no effect. The shares move only half of the way (an
assumption) if something stays unknown: the workspaces of a step with convolutions at another batch size, or
the fragmentation, which an allocated peak does not show. On xMem's rows with convolutions a full move would
leave 11.5 % of the runs at other batch sizes above the high end, half a move 8.3 %, none 5.7 %; of steps
without convolutions none was above after a full move.

If the prediction at the observed batch size has changed by more than 2 % since, the workload is assumed to
have changed, and the observation is ignored.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit import paths
from autofit.errors import UnknownGpuError
from autofit.hardware.card import Card
from autofit.hardware.gpus import find_gpu
from autofit.identity import fingerprint
from autofit.predict.confidence import Calibration
from autofit_workers.spec.documents import parse_json, read_file
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.pythons import Self, StrEnum
from autofit_workers.spec.setup import Setup
from autofit_workers.spec.versions import SUPPORTED_RELEASES

UNREADABLE = (OSError, ValueError, TypeError, LookupError)
"""Errors of `read_stored`."""

_STORED = "observation/1"  # the key of a file, with its version
_DECIDES_NOTHING = "expected_bytes"  # field that changes no prediction
_REPEATS = 0.02  # share by which identical runs differ
_LOWEST_SHARE = -0.95  # a lower share would put the low end near 0 bytes

_log = logging.getLogger(__name__)


class PeakKind(StrEnum):
    """Kind of an observed peak: PyTorch's allocated or reserved peak, or what nvidia-smi shows."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Peak that a user observed in a real run, with the run's configuration.

    Attributes:
        workload: the workload's name.
        peak_bytes: the observed peak, of the kind `kind`.
        low_bytes, high_bytes: bounds of the reserved (or allocated) peak. Both are the peak itself, except if
            nvidia-smi showed it: then the CUDA context is included, whose size is only known within bounds.
        predicted_bytes: likely reserved peak that was predicted when the peak was observed.
        batch_size, knobs, mode, batch_kind, degrees, nonzero_share: configuration and setup of the run.
        convolves: whether the step has convolutions; without any, `knobs.conv_algo` is ignored.
        card: key of the card; empty if none was named.
        torch: version of PyTorch with which the peak was predicted, or the release that `--torch` named.
        day: day of the observation, as `2026-11-24`.
        expected_bytes: likely peak of the observed kind that was predicted at that time; None in the files of
            earlier versions.
    """

    workload: str
    kind: PeakKind
    peak_bytes: int
    low_bytes: int
    high_bytes: int
    predicted_bytes: int
    batch_size: int
    knobs: Knobs
    mode: str
    batch_kind: str
    degrees: tuple[tuple[str, int], ...]
    nonzero_share: float
    convolves: bool
    card: str
    torch: str
    day: str
    expected_bytes: int | None = None

    @property
    def step(self) -> dict[str, Any]:
        """Knobs, setup and card that identify the observed step, as JSON values by name."""
        knobs = {**self.knobs.to_dict(), **({} if self.convolves else {"conv_algo": None})}
        return {
            "knobs": knobs,
            "mode": self.mode,
            "batch_kind": self.batch_kind,
            "degrees": [list(degree) for degree in self.degrees],
            "nonzero_share": self.nonzero_share,
            "card": self.card,
            **({"torch": self.torch} if self.torch in SUPPORTED_RELEASES else {}),  # of --torch
        }

    @property
    def id(self) -> str:
        """Short hash of the observed peak, which later peaks of the same kind, step and batch size share."""
        return fingerprint({**self.step, "kind": self.kind, "batch_size": self.batch_size})[:12]

    @property
    def in_words(self) -> str:
        return f"batch {self.batch_size}, {self.day}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """Deviation of an observed peak from its predicted range, relative to the end that it lies beyond.

    Attributes:
        low, high: largest share by which the observed peak may lie below the low end, or above the high end,
            of its predicted range; 0 if it does not.
        surely_low, surely_high: smallest such shares; they differ from `low` and `high` if the observed peak
            is only known within bounds.
    """

    observation: Observation
    low: float
    high: float
    surely_low: float
    surely_high: float

    @classmethod
    def of(cls, observation: Observation, low_bytes: int, high_bytes: int) -> Self:
        """Deviation of an observed peak from its predicted range, which is `low_bytes` to `high_bytes`."""
        return cls(
            observation=observation,
            low=max(0.0, 1 - observation.low_bytes / low_bytes),
            high=max(0.0, observation.high_bytes / high_bytes - 1),
            surely_low=max(0.0, 1 - observation.high_bytes / low_bytes),
            surely_high=max(0.0, observation.low_bytes / high_bytes - 1),
        )

    def settles(self, batch_size: int) -> bool:
        """Whether the observed peak leaves nothing uncertain about the step's peak at a batch size."""
        seen = self.observation
        return seen.kind is not PeakKind.ALLOCATED and (not seen.convolves or seen.batch_size == batch_size)


def sharpened(calibration: Calibration, residuals: Sequence[Residual], batch_size: int) -> Calibration:
    """Widening of an interval at a batch size, corrected by observed peaks of the same step.

    Args:
        calibration: widening by past errors of predictions for other runs.
        residuals: how far observed peaks of the same knob setting on the same card lie outside their
            predicted range.
    """
    if not residuals:
        return calibration
    # A reserved peak includes fragmentation and no context, so other kinds of peaks add nothing.
    residuals = [r for r in residuals if r.observation.kind is PeakKind.RESERVED] or residuals
    is_settled = any(each.settles(batch_size) for each in residuals)
    low = _moved(-calibration.low_share, [(r.low, r.surely_low) for r in residuals], is_settled=is_settled)
    high = _moved(calibration.high_share, [(r.high, r.surely_high) for r in residuals], is_settled=is_settled)
    return dataclasses.replace(
        calibration,
        low_share=max(_LOWEST_SHARE, -low),
        high_share=high,
        observed=tuple(each.observation.in_words for each in residuals),
    )


def _moved(share: float, beyond: Sequence[tuple[float, float]], *, is_settled: bool) -> float:
    """Share by which one end of an interval is widened, after it was corrected by observed peaks.

    Args:
        share: share without observed peaks.
        beyond: for each observed peak, the largest and smallest share by which it may lie beyond the end.
        is_settled: whether an observed peak leaves no further uncertainty in the step.
    """
    aim = max(most for most, _ in beyond) + _REPEATS
    if max(least for _, least in beyond) > share:
        left = aim  # the observed peak was surely outside the interval
    elif aim >= share:
        return share
    else:
        left = aim if is_settled else (share + aim) / 2
    return math.ceil(left * 10_000 - 1e-6) / 10_000


class Observations:
    """Peaks that a user observed in real runs of one workload.

    Args:
        found: the observations; `load` reads those in the state directory.
    """

    def __init__(self, found: Iterable[Observation] = ()) -> None:
        self._found = tuple(found)

    @classmethod
    def load(cls, workload: WorkloadRef) -> Self:
        """Reads a workload's stored observations; logs a warning for each file that cannot be read."""
        return cls(seen for _, seen in _read(f"{workload_key(workload)}-*.json"))

    @property
    def digest(self) -> str:
        """Hash of all observed peaks, which identifies them in stored searches; empty if there are none."""
        if not self._found:
            return ""
        deciding = {seen.id: _plain(seen) for seen in self._found}
        for fields in deciding.values():
            del fields[_DECIDES_NOTHING]
        return fingerprint(deciding)

    def of(
        self, knobs: Knobs, card: Card, setup: Setup, *, mode: str, convolves: bool
    ) -> tuple[Observation, ...]:
        """Observed peaks of runs with the given knobs, setup and mode on a card.

        Args:
            convolves: whether the step has convolutions; if not, the convolution algorithm does not matter.
        """
        asked = {
            "knobs": {**knobs.to_dict(), **({} if convolves else {"conv_algo": None})},
            "mode": mode,
            "batch_kind": setup.batch_kind,
            "degrees": [list(degree) for degree in setup.parallel.degrees],
            "nonzero_share": setup.nonzero_share,
            "card": card_key(card),
            **({} if setup.torch is None else {"torch": setup.torch}),
        }
        return tuple(seen for seen in self._found if seen.step == asked)


def card_key(card: Card) -> str:
    """Key of a card in the catalogue, else its name; empty if the card is not known."""
    if card.may_be:
        return ""
    try:
        return find_gpu(card.name).key
    except UnknownGpuError:
        return card.name


def keep(workload: WorkloadRef, observation: Observation) -> None:
    """Stores an observed peak in the state directory; raises `StorageError` if that cannot be written."""
    path = paths.observations_dir() / f"{workload_key(workload)}-{observation.id}.json"
    paths.write_atomically(path, json.dumps({_STORED: _plain(observation)}, indent=2))


def kept() -> list[Observation]:
    """Observed peaks of all workloads in the state directory, ordered by workload and day."""
    return sorted((seen for _, seen in _read("*.json")), key=lambda seen: (seen.workload, seen.day, seen.id))


def forget(name: str) -> list[Observation]:
    """Deletes the stored observed peaks with the id `name`, and returns them; empty if there are none."""
    found = [(path, seen) for path, seen in _read("*.json") if seen.id == name]
    for path, _ in found:
        path.unlink(missing_ok=True)
    return [seen for _, seen in found]


def stored_files() -> list[Path]:
    """Files of the observed peaks of all workloads in the state directory."""
    return sorted(paths.observations_path().glob("*.json"))


def read_stored(path: Path) -> Observation:
    """Reads the observed peak that a file holds; raises one of `UNREADABLE` if it holds none."""
    return from_plain(Observation, parse_json(read_file(path))[_STORED])


def _read(pattern: str) -> list[tuple[Path, Observation]]:
    found = []
    for path in sorted(paths.observations_path().glob(pattern)):
        try:
            found.append((path, read_stored(path)))
        except UNREADABLE as error:
            _log.warning("the observation %s cannot be read and is ignored: %s", path, error)
    return found


def _plain(observation: Observation) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(observation)))
    return plain


def workload_key(workload: WorkloadRef) -> str:
    """Hash that identifies a workload by its source, independent of the folder it is in."""
    is_file = workload.kind in ("file", "script")
    call = workload.script
    return fingerprint(
        {
            "workload": [
                workload.kind,
                workload.target.rsplit("/", 1)[-1] if is_file else workload.target,
                workload.source_sha256,
                *workload.said_of_samples,
            ],
            "script": None
            if call is None
            else [
                list(call.arguments),
                call.batch_argument,
                call.batch_variable,
                call.batch_name,
                *([list(call.launcher)] if call.launcher else []),
            ],
        }
    )[:16]
