"""What each lever would save at one batch size."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from autofit.predict.estimate import Estimate
from workers.protocol import Knobs

BYTES_OF_ESTIMATE = ("peak_allocated_bytes", "peak_reserved_bytes", "device_peak_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One change of a configuration.

    Attributes:
        name: what is changed, such as `precision`.
        value: to what.
        how: what to type or to set for it.
        knobs: the whole setting with that change.
        allocator: the value of `PYTORCH_ALLOC_CONF` that it needs; empty for none.
    """

    name: str
    value: str
    how: str
    knobs: Knobs
    allocator: str = ""

    @property
    def label(self) -> str:
        return f"{self.name} {self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverResult:
    """What a lever comes to.

    Attributes:
        saved_bytes: of the likely reserved peak; less than 0 where it takes more.
        saved_allocated_bytes: of the allocated peak.
        estimate: with the lever; None where it does not apply.
        reason: why it does not apply; empty where it does.
    """

    lever: Lever
    saved_bytes: int = 0
    saved_allocated_bytes: int = 0
    estimate: Estimate | None = None
    reason: str = ""

    @property
    def changes_something(self) -> bool:
        return bool(self.saved_bytes or self.saved_allocated_bytes)

    def to_dict(self) -> dict[str, Any]:
        estimate = self.estimate
        peaks = {} if estimate is None else {name: getattr(estimate, name) for name in BYTES_OF_ESTIMATE}
        return {
            **dataclasses.asdict(self.lever),
            "saved_bytes": None if estimate is None else self.saved_bytes,
            "saved_allocated_bytes": None if estimate is None else self.saved_allocated_bytes,
            **peaks,
            "interval": None if estimate is None else dataclasses.asdict(estimate.interval),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """All levers of a configuration.

    Attributes:
        base: the estimate of the configuration as it is.
        results: those that apply first, what saves most before what saves less.
    """

    base: Estimate
    results: tuple[LeverResult, ...]

    @property
    def applicable(self) -> tuple[LeverResult, ...]:
        return tuple(result for result in self.results if result.estimate is not None)

    @property
    def effective(self) -> tuple[LeverResult, ...]:
        """Those that change a peak."""
        return tuple(result for result in self.applicable if result.changes_something)

    @property
    def inapplicable(self) -> tuple[LeverResult, ...]:
        return tuple(result for result in self.results if result.estimate is None)

    def to_dict(self) -> list[dict[str, Any]]:
        """The field `what_if` of an estimate's document."""
        return [result.to_dict() for result in self.results]
