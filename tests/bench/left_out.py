"""Which real runs do not calibrate, by a rule that knows nothing of our error.

A run is left out where the table itself shows that its peak is not what the step needs:

- it took far more than the same with a larger batch: it was not alone on the card;
- it took far more than three or more runs of the same with other batches say. Where kernels stay the same,
  a peak grows along a line of the batch, so that is more than the line through any two of them gives. With
  fewer of them it is not known which of all is wrong;
- it was repeated, and both differ by more than identical runs do: one of them is wrong. Adam and AdamW take
  the same, and of a step without convolutions the card makes no difference either;
- its loss cannot have run, so that the peak is of less than a step.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from autofit.predict.confidence import ModelClass
from tests.bench.tables.gpumemnet_timm import TOO_FEW

# Identical runs differ by 2 %, rarely by 15 % (xMem's table).
REPEATED, FAR_MORE = 0.02, 1.15
_MIN_OTHERS = 3

Line = Mapping[str, str]  # of the CSV of `accuracy.py --rows`


def left_out(lines: Sequence[Line]) -> list[bool]:
    """For every line of a table's runs with a measured peak, whether it is left out.

    What a line without a prediction took counts against others.
    """
    batches, repeats = defaultdict(list), defaultdict(list)
    for line in lines:
        batches[_of_any_batch(line)].append(line)
        repeats[_of_the_same(line)].append(line)
    return [
        _is_far_above_others(line, batches[_of_any_batch(line)])
        or _differs_when_repeated(repeats[_of_the_same(line)])
        or _ended_early(line)
        for line in lines
    ]


def _of_any_batch(line: Line) -> tuple[str | None, ...]:
    """What the runs of one step with all batches have in common."""
    return tuple(line.get(column) for column in ("table", "model", "optimizer", "step", "precision", "gpu"))


def _of_the_same(line: Line) -> tuple[str | None, ...]:
    """What repeated runs have in common."""
    columns = ["table", "model", "step", "precision", "batch_size"]
    if line["model_class"] != ModelClass.WITHOUT_CONVOLUTIONS:
        columns.append("gpu")
    optimizer = "adam" if line["optimizer"] == "adamw" else line["optimizer"]
    return optimizer, *(line.get(column) for column in columns)


def _is_far_above_others(line: Line, same: Sequence[Line]) -> bool:
    batch_size, peak_bytes = int(line["batch_size"]), int(line["measured_bytes"])
    # Of repeated runs the least counts: the largest are overwritten.
    runs = sorted(((int(o["batch_size"]), int(o["measured_bytes"])) for o in same), reverse=True)
    peaks = dict(runs)
    if any(peak_bytes > FAR_MORE * peaks[other] for other in peaks if other > batch_size):
        return True
    peaks.pop(batch_size)
    return len(peaks) >= _MIN_OTHERS and peak_bytes > FAR_MORE * max(_lines(peaks, batch_size))


def _lines(peaks: Mapping[int, int], batch_size: int) -> Iterator[float]:
    """What the lines through every two peaks say of a batch."""
    for one, other in itertools.combinations(peaks, 2):
        slope = (peaks[other] - peaks[one]) / (other - one)
        yield peaks[one] + slope * (batch_size - one)


def _differs_when_repeated(repeats: Sequence[Line]) -> bool:
    peaks = [int(line["measured_bytes"]) for line in repeats]
    return max(peaks) > (1 + REPEATED) * min(peaks)


def _ended_early(line: Line) -> bool:
    return TOO_FEW in line["groups"].split("; ")
