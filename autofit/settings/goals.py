"""Goals of a search: which level of a peak has to fit, and what to maximize."""

from __future__ import annotations

from autofit_workers.spec.pythons import StrEnum


class Risk(StrEnum):
    """Level of a predicted peak that has to fit within the budget (the memory that PyTorch may use).

    `SAFE` is the high end of the 95 % interval, `LIKELY` the likely peak. `WORST` is the peak if every
    convolution takes the cuDNN plan with the largest workspace.
    """

    SAFE = "safe"
    LIKELY = "likely"
    WORST = "worst"


class Objective(StrEnum):
    """Objective of a search: the most samples a step (`BATCH`), or the most samples a second."""

    BATCH = "batch"
    THROUGHPUT = "throughput"


class Batching(StrEnum):
    """Method by which a data loader batches samples of different lengths.

    Attributes:
        SHUFFLED: batches of random samples, padded to the longest sample of the batch.
        GROUPED: batches of samples of about one length, as transformers' `group_by_length` does: the longest
            sample of all is in the first batch (`get_length_grouped_indices`, trainer_pt_utils.py).
        PACKED: all rows are as long as the longest sample; shorter samples are joined to fill a row.
    """

    SHUFFLED = "shuffled"
    GROUPED = "grouped"
    PACKED = "packed"


class Maximized(StrEnum):
    """Quantity to maximize: the batch size, or at a fixed batch size the size of a sample."""

    BATCH_SIZE = "batch-size"
    SEQ_LEN = "seq-len"
