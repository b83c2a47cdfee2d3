"""Settings of the search: its goal, the memory to keep free, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import partial

from autofit.hardware.budget import DEFAULT_MARGIN
from autofit.settings import values
from autofit.settings.goals import Batching, Maximized, Objective, Risk
from autofit.settings.lengths import BatchLengths
from autofit.settings.lengths_file import lengths as read_lengths
from autofit.settings.options.option import Option, Topic
from autofit_workers.spec.knobs.knob import whole_number

_of_search = partial(Option, topic=Topic.SEARCH, of_search=True)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SearchSettings:
    """Settings of the search: its goal, the memory to keep free, and its limits; all are options of `tune`.

    A limit of None means no limit.
    """

    maximize: Maximized = _of_search(
        values.maximized,
        "What to make as large as fits: the batch, or at --batch-size the size of a sample.",
        choices=tuple(Maximized),
    ).with_default(Maximized.BATCH_SIZE)
    batch_size: int | None = _of_search(
        whole_number(minimum=1),
        "The batch size at which --maximize seq-len looks for the longest samples.",
        default="1",
        metavar="N",
    ).with_default(None)
    lengths: BatchLengths | None = _of_search(
        read_lengths,
        "The tokens of each sample of the data, one number a line, or FILE:COLUMN of a CSV, JSON lines "
        "or Parquet table: the batch is made for the longest, and it is told when a larger one would fail.",
        metavar="FILE",
    ).with_default(None)
    batching: Batching = _of_search(
        values.batching,
        "How batches are made of samples of different lengths: shuffled and padded, grouped by length, "
        "or packed.",
        choices=tuple(Batching),
    ).with_default(Batching.SHUFFLED)
    max_batch: int = _of_search(
        whole_number(minimum=1), "Largest batch size to consider.", metavar="N"
    ).with_default(65536)
    margin: Decimal = Option(
        values.margin, "Share of the device's memory to keep free.", topic=Topic.CARD, metavar="PERCENT"
    ).with_default(DEFAULT_MARGIN)
    reserve_bytes: int = Option(
        values.size_or_zero,
        "Memory to leave to other processes on the device.",
        name="reserve",
        topic=Topic.CARD,
        metavar="SIZE",
    ).with_default(0)
    risk: Risk = _of_search(
        values.risk,
        "Which level of a prediction has to fit: safe, the high end of its 95 % interval; likely, its "
        "likely peak; worst, the largest workspace of every convolution.",
        is_common=True,
        choices=tuple(Risk),
    ).with_default(Risk.SAFE)
    objective: Objective = _of_search(
        values.objective,
        "What the best has most of: samples per batch, or samples per second, measured or predicted.",
        choices=tuple(Objective),
    ).with_default(Objective.BATCH)
    epoch_samples: int | None = Option(
        whole_number(minimum=1),
        "Samples of an epoch: tells how long one takes, where the time of a step is predicted.",
        name="samples",
        topic=Topic.SEARCH,
        metavar="N",
    ).with_default(None)
    soak_steps: int | None = _of_search(
        whole_number(minimum=0),
        "Steps for which the winner runs again in a fresh process; 0 for none.",
        default="20 on CUDA, 5 on the CPU",
        metavar="N",
    ).with_default(None)
    max_trials: int | None = _of_search(
        whole_number(minimum=1),
        "End after this many measured trials, including those of earlier runs.",
        metavar="N",
        decides=False,
    ).with_default(None)
    max_seconds: float | None = _of_search(
        values.seconds,
        "End after this long; trials that are running then are stopped.",
        metavar="SECONDS",
        decides=False,
    ).with_default(None)
