"""How near predicted times come to measured ones: `python tests/bench/step_times.py --table vidur`.

Prints the median and the 90th percentile of |predicted - measured| / measured, the median of the ratio, and
for whole steps of timm's models how many lie in their intervals of 80 %, by group and by card. `--rows`
prints every row.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autofit_workers.replay.time.constants import constants  # noqa: E402
from autofit_workers.replay.time.costs import Costs  # noqa: E402
from autofit_workers.replay.time.interval import time_residuals  # noqa: E402
from autofit_workers.replay.time.step import clocked  # noqa: E402
from autofit_workers.spec.work import Operand, Work, WorkCall  # noqa: E402
from tests.bench import libraries  # noqa: E402
from tests.bench.tables.folder import DEFAULT_TABLES  # noqa: E402
from tests.bench.time import cards, neusight_e2e, neusight_kernels, timm_steps, vidur  # noqa: E402
from tests.bench.time.works import Works  # noqa: E402

_LOSS = ("aten._log_softmax", "aten.nll_loss_forward")  # that nobody times, see neusight_models
_OF_80 = statistics.NormalDist().inv_cdf(0.9)  # standard deviations to either end of an interval of 80 %
EVENT_SECONDS = 14e-6  # between two CUDA events around an operator, beside its kernel


# `cudaMalloc` takes what the driver and the host need, as long for 2 MiB as for 300 MiB. Of NeuSight's
# machines its runs on an A100 of 80 GB say 0.35 to 0.55 ms where the host decides, those on a V100 at most
# 0.30 to 0.50. On later machines the times of events in snapshots of PyTorch 2.11 say 0.09 to 0.12 ms, an
# operator's 10 µs left out: 3,454 segments of a card of 80 GB (kkaitlyn111/cs336-a2-systems, memory_files).
# No row of this table is behind that. Sizes: c10/core/AllocatorConfig.h of PyTorch.
_MALLOC_SECONDS = {"sm_90": 0.11e-3}
_OLDER_MALLOC_SECONDS = 0.35e-3
_SMALL_BYTES, _OWN_SEGMENT_BYTES, _SEGMENT_BYTES = 2**20, 10 * 2**20, 20 * 2**20


_MAMF_FILE = "time/mamf_matmul_ceiling.csv"
_MAMF_CARDS = {
    "NVIDIA A100 SXM": "a100-80g",
    "NVIDIA H100 SXM": "h100-80g",
    "NVIDIA GH200 SXM": "gh200-96g",
    "NVIDIA B200 SXM": "b200",
    "NVIDIA GB200 SXM": "gb200",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A row with its prediction.

    Attributes:
        group: rows of one kind.
        name: tells it apart from others of its group.
        sigma: standard deviation of log(measured / predicted) that the prediction is given with; 0 for none.
    """

    group: str
    card: str
    name: str
    predicted_seconds: float
    seconds: float
    sigma: float = 0.0

    @property
    def is_held(self) -> bool:
        """Whether the measured time lies in the interval of 80 %."""
        return abs(math.log(self.ratio)) <= _OF_80 * self.sigma

    @property
    def error(self) -> float:
        return abs(self.ratio - 1)

    @property
    def ratio(self) -> float:
        return self.predicted_seconds / self.seconds


@functools.cache
def costs_of(card: str) -> Costs:
    """Of a card as a table names it."""
    return Costs(cards.speeds(card), constants())


def device_seconds(works: Iterable[Work], costs: Costs) -> float:
    """What the kernels of operators take, one after the other."""
    return sum(costs.seconds(kernel) for work in works for kernel in costs.kernels(work))


def neusight_kernel_times(folder: Path) -> Iterator[Timed]:
    """Rows that the device decides, of language models' sizes and of odd ones."""
    for row in neusight_kernels.of_device(neusight_kernels.read(folder)):
        yield Timed(
            group=f"{row.operator} {row.split}",
            card=row.card,
            name=" ".join(str(each.shape) for each in row.work.inputs),
            predicted_seconds=device_seconds([row.work], costs_of(row.card)) + EVENT_SECONDS,
            seconds=row.seconds,
        )


def vidur_times(folder: Path) -> Iterator[Timed]:
    """Rows of language models' operators, by the cuBLAS of their time."""
    costs = functools.cache(lambda card: Costs(cards.speeds(card), constants(), of_older_cublas=True))
    for row in vidur.read(folder):
        yield Timed(
            group=row.operator,
            card=row.card,
            name=f"{row.model} {row.num_tokens} tokens, {row.num_workers} workers",
            predicted_seconds=device_seconds(row.works, costs(row.card)),
            seconds=row.seconds,
        )


def neusight_e2e_times(folder: Path) -> Iterator[Timed]:
    """Forward and backward, each from an idle device, as they were timed.

    The cache is emptied before each run: a forward pass whose results are kept waits for `cudaMalloc`.
    """
    works = Works()
    for row in neusight_e2e.read(folder):
        libraries.install(row.setting.release)
        calls = works.of(row.setting, row.batch_size)
        if isinstance(calls, str):
            print(f"{row.setting.model}: {calls}", file=sys.stderr)
            continue
        forward, backward = _passes(calls)
        costs = costs_of(row.card)
        predicted = clocked(forward, [False] * len(forward), costs).seconds
        if row.backward_seconds:
            of_one = _MALLOC_SECONDS.get(costs.speeds.architecture, _OLDER_MALLOC_SECONDS)
            predicted = max(predicted, of_one * _num_segments(forward))
            predicted += clocked(backward, [True] * len(backward), costs).seconds
        yield Timed(
            group=row.setting.mode,
            card=row.card,
            name=f"{row.model} x{row.batch_size}",
            predicted_seconds=predicted,
            seconds=row.seconds,
        )


def _num_segments(calls: Sequence[WorkCall]) -> float:
    """What PyTorch's allocator asks CUDA for where every result is kept: one each, or a share of 20 MiB."""
    sizes = [
        result.num_bytes
        for call in calls
        if not call.work.operator.endswith("_")
        for result in call.work.outputs
        if result.num_bytes > _SMALL_BYTES
    ]
    return sum(1.0 if size > _OWN_SEGMENT_BYTES else size / _SEGMENT_BYTES for size in sizes)


def _passes(calls: Sequence[WorkCall]) -> tuple[Sequence[WorkCall], Sequence[WorkCall]]:
    """The calls before and after those of the loss."""
    places = [place for place, call in enumerate(calls) if call.work.operator.startswith(_LOSS)]
    return (calls[: places[0]], calls[places[-1] + 1 :]) if places else (calls, ())


def mamf_times(folder: Path) -> Iterator[Timed]:
    """The best product that was found on each card (stas00/ml-engineering, mamf-finder)."""
    with (folder / _MAMF_FILE).open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["dtype"] == "BF16"]
    for line in lines:
        card = _MAMF_CARDS.get(line["gpu"])
        if card is None:
            continue
        rows, columns, inner = map(int, line["best_shape_MNK"].split("x"))
        inputs = (Operand((rows, inner), "bfloat16"), Operand((inner, columns), "bfloat16"))
        work = Work("aten.mm", inputs, (Operand((rows, columns), "bfloat16"),))
        yield Timed(
            group="best product",
            card=card,
            name=line["best_shape_MNK"],
            predicted_seconds=device_seconds([work], costs_of(card)),
            seconds=2 * rows * columns * inner / (float(line["mamf_tflops"]) * 1e12),
        )


def timm_times(mode: str, card: str, release: str, folder: Path) -> Iterator[Timed]:
    """Eager AMP steps of timm's models, training or inference, in both layouts."""
    works = Works()
    for row in timm_steps.read(folder, mode=mode, card=card, torch_release=release):
        libraries.install(row.setting.release)
        calls = works.of(row.setting, row.batch_size)
        if isinstance(calls, str):
            print(f"{row.model}: {calls}", file=sys.stderr)
            continue
        is_old = release.startswith("1.")
        costs = Costs(cards.speeds(card), constants(), allow_tf32=True, of_pytorch_1=is_old)
        clock = clocked(calls, [False] * len(calls), costs)
        yield Timed(
            group=f"{mode} {row.layout}",
            card=card,
            name=f"{row.model} x{row.batch_size}",
            predicted_seconds=clock.seconds,
            seconds=row.step_seconds,
            sigma=time_residuals().of(clock, costs.speeds).sigma,
        )


TABLES: dict[str, Callable[[Path], Iterator[Timed]]] = {
    "neusight_kernels": neusight_kernel_times,
    "neusight_e2e": neusight_e2e_times,
    "vidur": vidur_times,
    "mamf": mamf_times,
    "timm_training": functools.partial(timm_times, "train", "rtx-3090", "1.12"),
    "timm_inference": functools.partial(timm_times, "infer", "rtx-3090", "2.4.0"),
    "timm_4090": functools.partial(timm_times, "infer", "rtx-4090", "2.9.1"),
    "timm_5090": functools.partial(timm_times, "infer", "rtx-5090", "2.9.1"),
    "timm_pro_6000": functools.partial(timm_times, "infer", "rtx-pro-6000-max-q", "2.9.1"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", choices=TABLES, required=True, help="which table")
    parser.add_argument("--folder", type=Path, default=DEFAULT_TABLES, help="where the tables are")
    parser.add_argument("--limit", type=int, help="at most so many rows")
    parser.add_argument("--rows", action="store_true", help="print every row")
    arguments = parser.parse_args()
    timed = list(itertools.islice(TABLES[arguments.table](arguments.folder), arguments.limit))
    if arguments.rows:
        for each in timed:
            print(f"{each.ratio:8.3f} {each.seconds:.3e} s  {each.group}  {each.card}  {each.name}")
    for line in summary(timed):
        print(line)


def summary(timed: Sequence[Timed]) -> Iterator[str]:
    """A line for each group on each card, for each group, for each card, and for all."""
    by: dict[tuple[str, str], list[Timed]] = defaultdict(list)
    for each in timed:
        for group in (each.group, "all"):
            for card in (each.card, "all"):
                by[group, card].append(each)
    yield f"{'group':28} {'card':24} {'rows':>7} {'median':>8} {'p90':>8} {'bias':>8} {'held':>5}"
    for (group, card), members in sorted(by.items()):
        errors = sorted(each.error for each in members)
        median, ninth = statistics.median(errors), errors[int(0.9 * (len(errors) - 1))]
        bias = statistics.median(each.ratio for each in members) - 1
        stated = [each.is_held for each in members if each.sigma]
        held = f"{statistics.fmean(stated):5.0%}" if stated else ""
        line = f"{group:28} {card:24} {len(members):7} {median:8.1%} {ninth:8.1%} {bias:+8.1%} {held}"
        yield line.rstrip()


if __name__ == "__main__":
    main()
