"""Decorators that combine the results of a curve over ranks that differ in their memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sized
from typing import Any, TypeVar, cast

from autofit.predict.times.step_times import StepTime
from autofit_workers.spec.protocol import Verdict

_Method = TypeVar("_Method", bound=Callable[..., Any])
_Sized = TypeVar("_Sized", bound=Sized)


def over_ranks(combine: Callable[[Iterator[Any]], Any]) -> Callable[[_Method], _Method]:
    """Decorates a method of a curve, so that a curve with several `ranks` combines the results of all.

    Args:
        combine: takes an iterator over the ranks' results, rank 0's first, and returns the combined one;
            results that it does not ask for are not computed.
    """

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def combined(curve: Any, *args: Any, **kwargs: Any) -> Any:
            if not curve.ranks:
                return method(curve, *args, **kwargs)
            return combine(method(rank, *args, **kwargs) for rank in curve.ranks.values())

        return cast("_Method", combined)

    return decorate


def at_worst_rank(method: _Method) -> _Method:
    """Decorates a method of a curve, so that a curve with several `ranks` calls it on the largest rank.

    That is the rank with the highest reserved peak at the batch size, the first argument of the method.
    """

    @functools.wraps(method)
    def of_worst(curve: Any, batch_size: int, *args: Any, **kwargs: Any) -> Any:
        if curve.ranks:
            curve = max(curve.ranks.values(), key=lambda rank: rank.peak_reserved_bytes(batch_size))
        return method(curve, batch_size, *args, **kwargs)

    return cast("_Method", of_worst)


def worst(verdicts: Iterator[Verdict]) -> Verdict:
    """Worst of some verdicts: `OOM`, else `THRASH`, else `FITS`; stops at the first `OOM`."""
    found = Verdict.FITS
    for verdict in verdicts:
        if verdict is Verdict.OOM:
            return verdict
        found = found if verdict is Verdict.FITS else verdict
    return found


def shortest(sequences: Iterator[_Sized]) -> _Sized:
    """Shortest of the sequences that the ranks have."""
    return min(sequences, key=len)


def first_reason(reasons: Iterator[str | None]) -> str | None:
    """First reason that a rank gives; None if no rank gives any."""
    return next((reason for reason in reasons if reason is not None), None)


def slowest(times: Iterator[StepTime | None]) -> StepTime | None:
    """Step time of the slowest rank, which the others wait for; None if a rank's time is unknown."""
    found = list(times)
    known = [time for time in found if time is not None]
    return max(known, key=lambda time: time.likely_seconds) if len(known) == len(found) else None
