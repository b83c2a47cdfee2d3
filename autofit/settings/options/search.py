"""Options of `autofit tune` for the search: its goal, the memory to keep free, and its limits."""

from __future__ import annotations

from autofit.settings import values
from autofit.settings.goals import Batching, Maximized, Objective, Risk
from autofit.settings.lengths_file import lengths
from autofit.settings.options.option import Option, Topic
from autofit_workers.spec.knobs.knob import whole_number

SEARCH = (
    Option(
        name="maximize",
        topic=Topic.SEARCH,
        field="maximize",
        read=values.maximized,
        help="What to make as large as fits: the batch, or at --batch-size the size of a sample.",
        default="batch-size",
        choices=tuple(Maximized),
        of_search=True,
    ),
    Option(
        name="batch-size",
        topic=Topic.SEARCH,
        field="batch_size",
        read=whole_number(minimum=1),
        help="The batch size at which --maximize seq-len looks for the longest samples.",
        default="1",
        metavar="N",
        of_search=True,
    ),
    Option(
        name="lengths",
        topic=Topic.SEARCH,
        field="lengths",
        read=lengths,
        help="The tokens of each sample of the data, one number a line, or FILE:COLUMN of a CSV, JSON lines "
        "or Parquet table: the batch is made for the longest, and it is told when a larger one would fail.",
        metavar="FILE",
        of_search=True,
    ),
    Option(
        name="batching",
        topic=Topic.SEARCH,
        field="batching",
        read=values.batching,
        help="How batches are made of samples of different lengths: shuffled and padded, grouped by length, "
        "or packed.",
        default="shuffled",
        choices=tuple(Batching),
        of_search=True,
    ),
    Option(
        name="max-batch",
        topic=Topic.SEARCH,
        field="max_batch",
        read=whole_number(minimum=1),
        help="Largest batch size to consider.",
        default="65536",
        metavar="N",
        of_search=True,
    ),
    Option(
        name="margin",
        topic=Topic.CARD,
        field="margin",
        read=values.margin,
        help="Share of the device's memory to keep free.",
        default="3%",
        metavar="PERCENT",
    ),
    Option(
        name="reserve",
        topic=Topic.CARD,
        field="reserve_bytes",
        read=values.size_or_zero,
        help="Memory to leave to other processes on the device.",
        metavar="SIZE",
    ),
    Option(
        name="risk",
        topic=Topic.SEARCH,
        is_common=True,
        field="risk",
        read=values.risk,
        help="Which level of a prediction has to fit: safe, the high end of its 95 % interval; likely, its "
        "likely peak; worst, the largest workspace of every convolution.",
        default="safe",
        choices=tuple(Risk),
        of_search=True,
    ),
    Option(
        name="objective",
        topic=Topic.SEARCH,
        field="objective",
        read=values.objective,
        help="What the best has most of: samples per batch, or samples per second, measured or predicted.",
        default="batch",
        choices=tuple(Objective),
        of_search=True,
    ),
    Option(
        name="samples",
        topic=Topic.SEARCH,
        field="epoch_samples",
        read=whole_number(minimum=1),
        help="Samples of an epoch: tells how long one takes, where the time of a step is predicted.",
        metavar="N",
    ),
    Option(
        name="soak-steps",
        topic=Topic.SEARCH,
        field="soak_steps",
        read=whole_number(minimum=0),
        help="Steps for which the winner runs again in a fresh process; 0 for none.",
        default="20 on CUDA, 5 on the CPU",
        metavar="N",
        of_search=True,
    ),
    Option(
        name="max-trials",
        topic=Topic.SEARCH,
        field="max_trials",
        read=whole_number(minimum=1),
        help="End after this many measured trials, including those of earlier runs.",
        metavar="N",
        of_search=True,
        decides=False,
    ),
    Option(
        name="max-seconds",
        topic=Topic.SEARCH,
        field="max_seconds",
        read=values.seconds,
        help="End after this long; trials that are running then are stopped.",
        metavar="SECONDS",
        of_search=True,
        decides=False,
    ),
)
