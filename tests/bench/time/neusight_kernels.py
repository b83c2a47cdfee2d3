"""neusight_kernels_fp32.csv.gz: how long single operators took, in float32 without tensor cores.

Source: sitar-lab/NeuSight (ASPLOS'25), `dataset/`, `neusight/Dataset/collect.py`: PyTorch 2.1; two CUDA
events around one call, the mean of the five fastest of 25. What is short is therefore the host's time to
launch, of each card's own machine, and not the device's.
"""

from __future__ import annotations

import csv
import functools
import gzip
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autofit_workers.spec.work import Operand, Work

FILE = "time/neusight_kernels_fp32.csv.gz"

_BINARY = ("add", "mul", "pow", "div")
_UNARY = ("addu", "mulu", "powu", "divu", "relu", "gelu", "tanh")
_OPERATORS = {"softmax": "_softmax", "ln": "native_layer_norm", "linear": "addmm", "bmm": "bmm"}
_HOSTS_MULTIPLE = 2.0  # of the shortest call of an operator on a card: below, the host decides
_SHORTEST_SHARE = 50  # the shortest of so many is what the host takes


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """One operator, timed.

    Attributes:
        operator: as the table names it.
        split: `train` (many odd sizes) or `test` (sizes of language models).
        card: as CUDA names it.
        work: what was run.
        seconds: between the two events.
    """

    operator: str
    split: str
    card: str
    work: Work
    seconds: float


@functools.cache
def read(folder: Path) -> tuple[KernelRow, ...]:
    """All rows but convolutions."""
    with gzip.open(folder / FILE, "rt", encoding="utf-8", newline="") as file:
        return tuple(_row(line) for line in csv.DictReader(file) if line["op"] != "conv")


def of_device(rows: Sequence[KernelRow]) -> list[KernelRow]:
    """The rows whose time is the device's: well above the shortest of their card and operator.

    A card without small rows is held against the others'.
    """
    known = defaultdict(list)
    for row in rows:
        if row.split == "train":
            known[row.operator, row.card].append(row.seconds)
    of_host = {key: statistics.quantiles(times, n=_SHORTEST_SHARE)[0] for key, times in known.items()}
    usual = {
        operator: statistics.median(seconds for (each, _), seconds in of_host.items() if each == operator)
        for operator, _ in of_host
    }
    return [
        row
        for row in rows
        if row.seconds > _HOSTS_MULTIPLE * of_host.get((row.operator, row.card), usual[row.operator])
    ]


def _row(line: dict[str, str]) -> KernelRow:
    return KernelRow(
        operator=line["op"],
        split=line["split"],
        card=line["gpu"],
        work=_work(line),
        seconds=float(line["latency_ms"]) * 1e-3,
    )


def _work(line: dict[str, str]) -> Work:
    operator = line["op"]
    if operator in ("linear", "bmm"):
        batch, rows, inner, columns = (int(float(line[name])) for name in ("B", "M", "N", "K"))
        if operator == "linear":
            left, right = _operand(batch * rows, inner), _operand(inner, columns)
            return Work("aten.addmm", (_operand(columns), left, right), (_operand(batch * rows, columns),))
        inputs = (_operand(batch, rows, inner), _operand(batch, inner, columns))
        return Work("aten.bmm", inputs, (_operand(batch, rows, columns),))
    whole = _operand(int(float(line["B"])), int(float(line["H"])))
    if operator == "ln":
        weight, statistic = _operand(whole.shape[1]), _operand(whole.shape[0], 1)
        return Work("aten.native_layer_norm", (whole, weight, weight), (whole, statistic, statistic))
    inputs = (whole, whole) if operator in _BINARY else (whole,)
    return Work(f"aten.{_OPERATORS.get(operator, operator)}", inputs, (whole,))


def _operand(*shape: int) -> Operand:
    return Operand(shape, "float32")
