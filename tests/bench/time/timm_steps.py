"""timm_step_times.csv.gz: how long steps and forward passes of timm's models took.

Source: huggingface/pytorch-image-models, `results/`, Apache-2.0: its `benchmark.py`, random images that are
on the card, 10 steps to warm up and 40 that are timed, each synchronised, `cudnn.benchmark` on, AMP.
Training: SGD with Nesterov momentum, one parameter after the other, as PyTorch before 2.0 did.
"""

from __future__ import annotations

import csv
import functools
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.tables.families import family_of, timm_modules
from tests.bench.tables.setting import Setting
from tests.bench.tables.timm_history import former_arguments, had_fast_norms

FILE = "time/timm_step_times.csv.gz"
_CARDS = {
    "3090": "rtx-3090",
    "4090": "rtx-4090",
    "5090": "rtx-5090",
    "pro6000maxq": "rtx-pro-6000-max-q",
}
_FAST_NORM = ("3090", "4090", "pro6000maxq")  # see tests.bench.tables.timm_brackets
_MEMORY_FORMATS = {"nchw": "contiguous", "nhwc": "channels_last"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRow:
    """One run.

    Attributes:
        card: key of the card in the catalogue.
        layout: `nchw` or `nhwc`.
        gmacs, macts_millions: multiplications and elements that layers return, of one sample, as a counter of
            the eager model says; None where the table has none.
    """

    model: str
    family: str
    setting: Setting
    batch_size: int
    card: str
    layout: str
    torch_release: str
    step_seconds: float
    gmacs: float | None
    macts_millions: float | None


def read(folder: Path, *, mode: str, card: str, torch_release: str, layout: str = "") -> list[TimedRow]:
    """The eager AMP rows of one mode, card and PyTorch."""
    wanted = {"mode": mode, "torch": torch_release, "compile": "eager", "precision": "amp"}
    rows = []
    for line in _lines(folder):
        if any(line[name] != value for name, value in wanted.items()) or _CARDS.get(line["gpu"]) != card:
            continue
        if not layout or line["layout"] == layout:
            rows.append(_row(line))
    return rows


@functools.cache
def _lines(folder: Path) -> tuple[dict[str, str], ...]:
    with gzip.open(folder / FILE, "rt", encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def _row(line: dict[str, str]) -> TimedRow:
    model, training = line["model"], line["mode"] == "train"
    module = timm_modules().get(model)
    return TimedRow(
        model=model,
        family=family_of(model, module),
        setting=Setting(
            source="timm",
            model=model,
            mode=line["mode"],
            optimizer="sgd-nesterov-single",
            precision="amp-fp16",
            memory_format=_MEMORY_FORMATS[line["layout"]],
            step="timm-benchmark" if training else "usual",
            image_size=int(line["img_size"]),
            num_classes=None,
            release="timm==0.6.7" if training else "",
            arguments=() if training else former_arguments(model),
            fused_attention=not training,
            fast_norm=not training and line["gpu"] in _FAST_NORM and had_fast_norms(module, line["torch"]),
        ),
        batch_size=int(float(line["batch_size"])),
        card=_CARDS[line["gpu"]],
        layout=line["layout"],
        torch_release=line["torch"],
        step_seconds=float(line["step_seconds"]),
        gmacs=_number(line["gmacs"]),
        macts_millions=_number(line["macts_millions"]),
    )


def _number(text: str) -> float | None:
    return float(text) if text else None


def settings(rows: list[TimedRow]) -> Iterator[tuple[Setting, int]]:
    """What has to be traced for rows, each once."""
    yield from dict.fromkeys((row.setting, row.batch_size) for row in rows)
