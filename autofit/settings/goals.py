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
    """What the best configuration has most of: samples a step, or samples a second."""

    BATCH = "batch"
    THROUGHPUT = "throughput"


class Batching(StrEnum):
    """How a loader makes batches of samples of different lengths.

    Attributes:
        SHUFFLED: of any samples, padded to the longest of them.
        GROUPED: of samples of about one length, as transformers' `group_by_length` does it: the longest
            sample of all is in the first batch (`get_length_grouped_indices`, trainer_pt_utils.py).
        PACKED: all are as long as the longest sample, filled up with others.
    """

    SHUFFLED = "shuffled"
    GROUPED = "grouped"
    PACKED = "packed"


class Maximized(StrEnum):
    """What is made as large as fits: the batch, or at one batch the size of a sample."""

    BATCH_SIZE = "batch-size"
    SEQ_LEN = "seq-len"
