"""How a workload is run beside its knobs: in which mode, with which kind of batches, on how many ranks."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Self

TRAIN, INFER, GENERATE = "train", "infer", "generate"
MODES = (TRAIN, INFER, GENERATE)
# The kinds of batches that a `make_batch` with a parameter `kind` can make.
TYPICAL, WORST = "typical", "worst"
BATCH_KINDS = (TYPICAL, WORST)
DDP = "ddp"
LIKELY_SHARE = 0.5
PARALLEL_KINDS = {DDP: "DistributedDataParallel"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How several processes train together, one on each GPU.

    Attributes:
        degrees: by kind of parallelism, how many ranks share the work so; their product is the number of
            ranks. Empty for a process by itself.

    Raises:
        ValueError: there is no such kind, or fewer than two ranks share.
    """

    degrees: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for kind, degree in self.degrees:
            if kind not in PARALLEL_KINDS:
                raise ValueError(f"{kind!r} is not one of {', '.join(PARALLEL_KINDS)}")
            if degree < 2:
                raise ValueError(f"{kind}:{degree}: at least 2 ranks train together")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `ddp:8`; one rank is a process by itself.

        Raises:
            ValueError: it is of another kind, or says no number.
        """
        kind, _, number = text.strip().partition(":")
        if kind == "fsdp":
            raise ValueError(
                "fsdp cannot be predicted yet: wrap the model in your own script and measure with "
                "torch.cuda.max_memory_reserved() on every rank, or predict ddp:N, which shards nothing"
            )
        if kind not in PARALLEL_KINDS or not number.isascii() or not number.isdecimal() or int(number) < 1:
            raise ValueError(f"{text!r} is not ddp:N, with N ranks of DistributedDataParallel, as in ddp:4")
        return cls(degrees=((kind, int(number)),) if int(number) > 1 else ())

    @property
    def num_ranks(self) -> int:
        return math.prod(degree for _, degree in self.degrees)

    def __bool__(self) -> bool:
        """Whether there is more than one rank."""
        return bool(self.degrees)

    def __str__(self) -> str:
        """As `parse` reads it; `ddp:1` for a process by itself."""
        return ",".join(f"{kind}:{degree}" for kind, degree in self.degrees) or f"{DDP}:1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a workload is run, whatever its knobs.

    Attributes:
        mode: `train`, `infer`, `generate`, or None for the workload's own.
        batch_kind: `TYPICAL`, or `WORST` for the largest batches that the data can make, of a workload
            that has kinds of them.
        parallel: with more than one rank, one of them is predicted, or all are measured together.
        nonzero_share: of a prediction, how much of what it may select a mask does whose values are not
            known, from 0 to 1.
        allows_long: whether a sample may be longer than the model was made for.

    Raises:
        ValueError: there is no such mode or kind of batches, or the share is none.
    """

    mode: str | None = None
    batch_kind: str = TYPICAL
    parallel: Parallel = field(default_factory=Parallel)
    nonzero_share: float = LIKELY_SHARE
    allows_long: bool = False

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}; got {self.mode!r}")
        if self.batch_kind not in BATCH_KINDS:
            raise ValueError(f"batch_kind must be one of {', '.join(BATCH_KINDS)}; got {self.batch_kind!r}")
        if not 0 <= self.nonzero_share <= 1:
            raise ValueError(f"nonzero_share must be from 0 to 1; got {self.nonzero_share}")

    @property
    def num_ranks(self) -> int:
        return self.parallel.num_ranks

    @property
    def is_worst_case(self) -> bool:
        return self.batch_kind == WORST

    def with_other_batches(self) -> Self:
        """The same with batches of the other kind."""
        return dataclasses.replace(self, batch_kind=TYPICAL if self.is_worst_case else WORST)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        degrees = tuple((kind, degree) for kind, degree in data["parallel"]["degrees"])
        return cls(**{**data, "parallel": Parallel(degrees=degrees)})


ALONE = Setup()
