"""Chooses the best and the recommended of the configurations that fit, and finds the throughput knee."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autofit.hardware.budget import DEFAULT_ARCHITECTURE
from autofit.search.boundary import Boundary
from autofit.search.pace import Pace
from autofit.settings.goals import Objective
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import TrialOutcome, Verdict
from autofit_workers.spec.pythons import StrEnum

NEAR_THE_BEST_RATE = 0.95  # share of the best samples a second that defines the throughput knee
# Predicted rates nearer to each other than this count as equal, and the larger batch is taken, because the
# change of a setting's rate with the batch is not predicted any better.
EQUALLY_FAST_RATE = 0.98

Configuration = tuple[Knobs, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Throughput knee: the smallest batch whose samples a second are within 5 % of the best rate.

    Attributes:
        best_samples_per_second: best rate of all configurations that fit.
        is_predicted: whether the rates are predicted, as no step time was measured.
    """

    batch_size: int
    knobs: Knobs
    samples_per_second: float
    best_samples_per_second: float
    is_predicted: bool = False


class RecommendedBy(StrEnum):
    """Reason why a configuration is recommended; "it" is the recommended configuration.

    Attributes:
        OBJECTIVE: it has the most samples a second, and throughput is the objective.
        CONV_ALGO: it has the largest batch, with the convolution algorithms that the user named.
        LARGEST: it has the largest batch, and there is only one convolution algorithm to choose from.
        ONLY_FIT: it fits, and with PyTorch's default convolution backend no batch size fits.
        PREDICTED_RATE: no configuration is predicted to process more samples a second, by more than
            predictions can distinguish (`EQUALLY_FAST_RATE`); it has the largest batch of these.
        MEASURED_RATE: it has the largest batch, and was measured to be no slower than the largest batch with
            PyTorch's default backend.
        DEFAULT_BACKEND: it has the largest batch with PyTorch's default backend. Another algorithm may fit
            more, but may be several times slower.
    """

    OBJECTIVE = "objective"
    CONV_ALGO = "conv-algo"
    LARGEST = "largest"
    ONLY_FIT = "only-fit"
    PREDICTED_RATE = "predicted-rate"
    MEASURED_RATE = "measured-rate"
    DEFAULT_BACKEND = "default-backend"


def decisive(outcomes: Iterable[TrialOutcome]) -> dict[Configuration, TrialOutcome]:
    """Outcome that counts for each configuration, where several trials ran it.

    The latest outcome counts, but any that did not fit takes precedence over those that did. Outcomes that
    say nothing about memory, such as of a lost process, are left out.

    Args:
        outcomes: in the order in which the trials ended.
    """
    telling = [outcome for outcome in outcomes if outcome.verdict.is_about_memory]
    telling.sort(key=lambda outcome: outcome.verdict is not Verdict.FITS)
    return {(outcome.knobs, outcome.batch_size): outcome for outcome in telling}


def best_of(
    known: Mapping[Configuration, TrialOutcome],
    boundaries: Mapping[Knobs, Boundary],
    objective: Objective,
    architecture: str = DEFAULT_ARCHITECTURE,
) -> TrialOutcome | None:
    """Outcome of the best configuration that fits, for an objective; None if none fits.

    For the objective batch, the best has the largest batch or, if a sample size is set, the largest product
    of batch and sample size; among equals the shorter step (measured, else predicted, else by the usual cost
    of its knobs), then the first algorithm. For throughput, the best has the most samples a second, and among
    equals the larger batch; if no step was timed, the objective batch applies.

    Args:
        known: outcome of each configuration, see `decisive`.
        boundaries: search for the largest batch of each knob setting.
        architecture: architecture of the card, on which the usual speed of knobs depends.
    """
    if objective is Objective.THROUGHPUT and (timed := _timed(known)):
        return max(timed, key=lambda outcome: (_rate(outcome), outcome.batch_size))
    fitting = [
        known[knobs, boundary.largest_fitting]
        for knobs, boundary in boundaries.items()
        if boundary.largest_fitting is not None
    ]
    return min(
        fitting,
        key=lambda o: (
            -o.batch_size * (o.knobs.seq_len or 1),
            o.step_seconds or 0.0,
            o.conv_cost or 1.0,
            Pace.usually(o.knobs, architecture),
            conv.rank(o.knobs.conv_algo),
        ),
        default=None,
    )


def recommended_of(
    known: Mapping[Configuration, TrialOutcome],
    boundaries: Mapping[Knobs, Boundary],
    objective: Objective,
    architecture: str = DEFAULT_ARCHITECTURE,
    *,
    default_algo: str | None,
) -> tuple[TrialOutcome, RecommendedBy] | None:
    """Outcome of the configuration to recommend, and the reason; None if nothing fits.

    It may differ from the best one: a convolution algorithm that fits a slightly larger batch than PyTorch's
    default backend may be several times slower.

    Args:
        known, boundaries, architecture: see `best_of`.
        default_algo: name of PyTorch's default convolution backend; None if the user named the algorithms.
    """
    best = best_of(known, boundaries, objective, architecture)
    if best is None:
        return None
    with_default = {
        knobs: boundary for knobs, boundary in boundaries.items() if knobs.conv_algo == default_algo
    }
    usual = best_of(known, with_default, Objective.BATCH, architecture)
    if objective is Objective.THROUGHPUT and best.samples_per_second is not None:
        by = RecommendedBy.OBJECTIVE
    elif default_algo is None:
        by = RecommendedBy.CONV_ALGO
    elif len({knobs.conv_algo for knobs in boundaries}) == 1:
        by = RecommendedBy.LARGEST
    elif usual is None:
        by = RecommendedBy.ONLY_FIT
    elif usual is not best and usual.samples_per_second is not None and _rate(best) >= _rate(usual):
        by = RecommendedBy.MEASURED_RATE
    else:
        return usual, RecommendedBy.DEFAULT_BACKEND
    return best, by


def knee_of(known: Mapping[Configuration, TrialOutcome]) -> Knee | None:
    """Throughput knee of all configurations that were measured and fit; None if no step was timed.

    Args:
        known: outcome of each configuration.
    """
    timed = _timed(known)
    if not timed:
        return None
    best_rate = max(map(_rate, timed))
    knee = min(
        (outcome for outcome in timed if _rate(outcome) >= NEAR_THE_BEST_RATE * best_rate),
        key=lambda outcome: (outcome.batch_size, -_rate(outcome)),
    )
    return Knee(
        batch_size=knee.batch_size,
        knobs=knee.knobs,
        samples_per_second=_rate(knee),
        best_samples_per_second=best_rate,
    )


def _timed(known: Mapping[Configuration, TrialOutcome]) -> list[TrialOutcome]:
    return [o for o in known.values() if o.verdict is Verdict.FITS and o.samples_per_second is not None]


def _rate(outcome: TrialOutcome) -> float:
    return outcome.samples_per_second or 0.0
