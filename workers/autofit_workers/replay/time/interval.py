"""Confidence of a predicted step time, from past errors by class of kernels and by card.

All kernels of a class are assumed to have the same error, independent of other classes, so each class counts
by its share of the step's time. The error of a card is added to the sum over classes.

    sigma² = sum over classes of (share · sigma of the class)² + (share that waits for the host · its sigma)²
             + sigma of the card²

Collectives that are fast enough are hidden behind other kernels, so their error counts as the time by which
the step gets longer if each collective takes longer by the error of its class.

Errors are factors, so an interval is likely · exp(± z · sigma).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from autofit_workers.replay.time.kernels import EXCHANGES, KernelClass
from autofit_workers.replay.time.speeds import Speeds
from autofit_workers.replay.time.step import CONVOLUTIONS, StepClock
from autofit_workers.replay.time.tables import text_of
from autofit_workers.spec.pythons import Self, read_toml

SCHEMA = "autofit.time-residuals/1"
HOST = "host"
_SHOWN_SHARE = 0.01  # classes without measured runs are named from this share of a step's time on


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """Spread of the errors of predicted times, for a class of kernels or for a card.

    Attributes:
        sigma: standard deviation of log(measured / predicted).
        num_rows: number of measured runs that `sigma` is computed from; 0 if it is assumed.
        sources: names of the data sets with these runs.
        lacks: for a card, the classes of kernels that occur in none of its measured runs.
    """

    sigma: float
    num_rows: int = 0
    sources: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Makes a residual from an entry of residuals.toml."""
        return cls(**{**data, "sources": tuple(data["sources"]), "lacks": tuple(data.get("lacks", ()))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """Confidence in the predicted time of a step: the spread of its error, and how much of it was measured.

    Attributes:
        sigma: standard deviation of log(measured / predicted) of the whole step.
        known_share: share of the step's time in classes of kernels with measured runs.
        unmeasured: classes without measured runs, by their share of the time, largest first.
        is_card_measured: whether there are measured runs of the card.
        is_stated: whether the prediction is certain enough that answers state its seconds.
    """

    sigma: float
    known_share: float
    unmeasured: tuple[str, ...]
    is_card_measured: bool
    is_stated: bool

    def ends(self, seconds: float, level: float) -> tuple[float, float]:
        """Interval in seconds that holds the real time with a given probability.

        Args:
            seconds: the predicted time.
            level: the probability, from 0 to 1.
        """
        factor = math.exp(NormalDist().inv_cdf((1 + level) / 2) * self.sigma)
        return seconds / factor, seconds * factor


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeResiduals:
    """Spreads of the errors of predicted times, by class of kernels and by card.

    A sigma is a standard deviation of log(measured / predicted).

    Attributes:
        classes: spread for each class of kernels, and for the time of the host (`host`).
        cards: spread by a card's name or architecture, which is added to those of the classes.
        class_sigma, card_sigma: sigma assumed for a class, and for a card, without measured runs.
        setting_sigma, other_sigma: sigma of a predicted time that was corrected by measured steps of the same
            workload on the same card: steps with the same training options, or with others.
        least_share, most_sigma: answers state seconds if at least this share of a step's time is in measured
            classes, and if the sigma of the whole step is at most this.
    """

    classes: Mapping[str, Residual]
    cards: Mapping[str, Residual]
    class_sigma: float
    card_sigma: float
    setting_sigma: float
    other_sigma: float
    least_share: float
    most_sigma: float

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Parses the text of residuals.toml; raises `ValueError` for another schema."""
        data = read_toml(text)
        if data.get("schema") != SCHEMA:
            raise ValueError(f"expected residuals of schema {SCHEMA}, got {data.get('schema')!r}")
        classes = dict(data.get("classes", {}))
        if HOST in data:
            classes[HOST] = data[HOST]
        return cls(
            classes={name: Residual.from_dict(each) for name, each in classes.items()},
            cards={name: Residual.from_dict(each) for name, each in data.get("cards", {}).items()},
            **data["unmeasured"],
            **data["observed"],
            **data["stated"],
        )

    def exchange_factor(self, clock: StepClock) -> float:
        """Factor by which a step's collectives may take longer than predicted, at one standard deviation."""
        nowhere = Residual(sigma=0.0)
        kinds = EXCHANGES & clock.class_seconds.keys()
        return math.exp(max(self._of_class(kind, nowhere).sigma for kind in kinds))

    def of(self, clock: StepClock, speeds: Speeds, *, conv_algo: str = "", late: float = 0.0) -> Confidence:
        """Confidence in the predicted time of a step on a device.

        Args:
            clock: predicted times of the step.
            speeds: the device.
            conv_algo: the convolution algorithm; empty for cuDNN's default.
            late: share by which the step gets longer if its collectives take `exchange_factor` times as long.
        """
        shares = _shares(clock, conv_algo)
        card = self._of_card(speeds)
        residuals = {name: self._of_class(name, card) for name in shares}
        variance = late**2 + sum(
            (share * residuals[name].sigma) ** 2 for name, share in shares.items() if name not in EXCHANGES
        )
        known_share = sum(share for name, share in shares.items() if residuals[name].num_rows)
        if any(name in EXCHANGES and not residuals[name].num_rows for name in shares):
            known_share = min(known_share, 1 - late)
        unmeasured = [
            name
            for name, share in sorted(shares.items(), key=lambda each: -each[1])
            if not residuals[name].num_rows and share >= _SHOWN_SHARE
        ]
        sigma = math.sqrt(variance + card.sigma**2)
        # Unknown kernels may take longer than their operands suggest.
        has_other = shares.get(KernelClass.OTHER, 0.0) >= _SHOWN_SHARE
        is_known = bool(card.num_rows) and known_share >= self.least_share and not has_other
        return Confidence(
            sigma=sigma,
            known_share=known_share,
            unmeasured=tuple(unmeasured),
            is_card_measured=bool(card.num_rows),
            is_stated=is_known and sigma <= self.most_sigma,
        )

    def scaled(self, confidence: Confidence, *, is_of_setting: bool) -> Confidence:
        """Confidence in a predicted time that was corrected by measured steps of the workload on the card.

        Args:
            confidence: confidence before the correction.
            is_of_setting: whether the measured steps had the same training options.
        """
        sigma = self.setting_sigma if is_of_setting else self.other_sigma
        sigma = min(sigma, confidence.sigma)
        return dataclasses.replace(
            confidence, sigma=sigma, is_card_measured=True, is_stated=sigma <= self.most_sigma
        )

    def _of_class(self, name: str, card: Residual) -> Residual:
        unknown = Residual(sigma=self.class_sigma)
        return unknown if name in card.lacks else self.classes.get(name, unknown)

    def _of_card(self, speeds: Speeds) -> Residual:
        found = self.cards.get(speeds.name) or self.cards.get(speeds.architecture)
        return found or Residual(sigma=self.card_sigma)


def _shares(clock: StepClock, conv_algo: str) -> dict[str, float]:
    """Shares of a step's time by class of kernels, and the share in which the device waits for the host.

    Args:
        clock: predicted times of the step.
        conv_algo: convolution algorithm, if it is not cuDNN's default: convolutions are then a class of its
            name.
    """
    shares = {HOST: clock.waiting_seconds / clock.seconds}
    for kind, seconds in clock.class_seconds.items():
        name = f"{kind} {conv_algo}" if conv_algo and kind in CONVOLUTIONS else str(kind)
        shares[name] = seconds / clock.seconds
    return shares


@functools.cache
def time_residuals() -> TimeResiduals:
    """Residuals shipped with this version of autofit, read from residuals.toml once."""
    return TimeResiduals.from_toml(text_of("residuals.toml"))
