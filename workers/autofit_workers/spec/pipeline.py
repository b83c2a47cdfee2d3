"""Pipelines of stages: their schedules and their number of microbatches."""

from __future__ import annotations

from dataclasses import dataclass

from autofit_workers.spec.pythons import Self


def is_count(text: str) -> bool:
    """Whether a text is a whole number from 1 on, in digits."""
    return text.isascii() and text.isdecimal() and int(text) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule of `torch.distributed.pipelining`: the order of the stages' forward and backward passes.

    Attributes:
        class_name: name of its class in `torch.distributed.pipelining`.
        stages_per_rank: how many stages of the model a rank runs.
        returns: whether stages are given to the ranks from first to last and back, in a V. If not, they go
            round: rank 0 has stage 0, and also the stage after the last rank's.
        fills_stages: whether it needs at least as many microbatches as there are stages.
    """

    class_name: str
    stages_per_rank: int = 1
    returns: bool = False
    fills_stages: bool = False


# As `get_schedule_class` of torch/distributed/pipelining/schedules.py names them, in small letters.
SCHEDULES = {
    "1f1b": Schedule(class_name="Schedule1F1B", fills_stages=True),
    "gpipe": Schedule(class_name="ScheduleGPipe"),
    "interleaved1f1b": Schedule(class_name="ScheduleInterleaved1F1B", stages_per_rank=2),
    "loopedbfs": Schedule(class_name="ScheduleLoopedBFS", stages_per_rank=2),
    "interleavedzerobubble": Schedule(class_name="ScheduleInterleavedZeroBubble", stages_per_rank=2),
    "zbvzerobubble": Schedule(class_name="ScheduleZBVZeroBubble", stages_per_rank=2, returns=True),
}
DEFAULT_SCHEDULE = "1f1b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline, in which each of several ranks runs one or more stages of a model.

    Attributes:
        schedule: one of `SCHEDULES`.
        num_ranks: number of ranks of the pipeline.
        num_microbatches: number of microbatches in a step, each of the batch size that is asked for.

    Raises:
        ValueError: there is no such schedule, or it needs more microbatches.
    """

    schedule: str
    num_ranks: int
    num_microbatches: int

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"{self.schedule!r} is not a schedule: choose {', '.join(SCHEDULES)}")
        fewest = self.num_stages if self._schedule.fills_stages else 1
        if self.num_microbatches < fewest:
            raise ValueError(
                f"pp:{self.num_ranks}+{self.schedule}+{self.num_microbatches}: that schedule takes {fewest} "
                "microbatches or more, one for each stage"
            )

    @classmethod
    def parse(cls, num_ranks: int, options: str) -> Self:
        """Parses the part of `--parallel` that describes a pipeline.

        Args:
            num_ranks: number of ranks of the pipeline.
            options: text after this number: `gpipe`, `1f1b+8` (with 8 microbatches) or nothing.

        Raises:
            ValueError: `options` does not name a schedule, or its number of microbatches is no number.
        """
        schedule, _, number = options.partition("+")
        schedule = schedule or DEFAULT_SCHEDULE
        if schedule not in SCHEDULES:
            raise ValueError(
                f"pp:{num_ranks}+{options}: {schedule!r} is not a schedule: choose {', '.join(SCHEDULES)}"
            )
        default = num_ranks * SCHEDULES[schedule].stages_per_rank
        if number and not is_count(number):
            raise ValueError(
                f"pp:{num_ranks}+{options}: {number!r} is not a number of microbatches, as in "
                f"pp:{num_ranks}+{schedule}+{default}"
            )
        return cls(schedule=schedule, num_ranks=num_ranks, num_microbatches=int(number or default))

    @property
    def _schedule(self) -> Schedule:
        return SCHEDULES[self.schedule]

    @property
    def class_name(self) -> str:
        return self._schedule.class_name

    @property
    def num_stages(self) -> int:
        """Number of stages of all ranks together."""
        return self.num_ranks * self._schedule.stages_per_rank

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Indices of the stages that a rank of the pipeline runs, ascending."""
        if self._schedule.returns:
            return rank, self.num_stages - 1 - rank
        return tuple(range(rank, self.num_stages, self.num_ranks))

    def __str__(self) -> str:
        """Text of schedule and microbatches in `--parallel`: `+gpipe`, `+1f1b+8`; empty for the defaults."""
        is_usual = self.num_microbatches == self.num_stages
        if is_usual:
            return "" if self.schedule == DEFAULT_SCHEDULE else f"+{self.schedule}"
        return f"+{self.schedule}+{self.num_microbatches}"
