"""What a search is after: which level of a peak has to fit, and what the best has most of."""

from __future__ import annotations

from enum import StrEnum


class Risk(StrEnum):
    """Which level of a predicted peak has to be within the budget.

    `SAFE` is the high end of the 95 % interval, `LIKELY` the likely peak. `WORST` is the largest that
    the workspaces may come to: every convolution takes the plan that wants most.
    """

    SAFE = "safe"
    LIKELY = "likely"
    WORST = "worst"


class Objective(StrEnum):
    """What the best configuration has most of: samples a step, or measured samples a second."""

    BATCH = "batch"
    THROUGHPUT = "throughput"


class Maximized(StrEnum):
    """What is made as large as fits: the batch, or at one batch the size of a sample."""

    BATCH_SIZE = "batch-size"
    SEQ_LEN = "seq-len"
