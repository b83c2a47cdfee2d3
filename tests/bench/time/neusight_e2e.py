"""neusight_e2e.csv: forward and backward passes of three language models, in float32 without tensor cores.

Source: sitar-lab/NeuSight (ASPLOS'25), `scripts/asplos/label`: CUDA-event times, the mean of the five fastest
of 25 runs, of PyTorch 2.1 with eager Transformers models.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from tests.bench.tables.neusight_models import RELEASE
from tests.bench.tables.setting import Setting

FILE = "time/neusight_e2e.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """One run.

    Attributes:
        card: key of the card, see `cards`.
        backward_seconds: 0 in inference.
    """

    model: str
    setting: Setting
    batch_size: int
    card: str
    forward_seconds: float
    backward_seconds: float

    @property
    def seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds


def read(folder: Path) -> list[PassRow]:
    """The plain runs: without fusion, of one card."""
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        return [_row(line) for line in csv.DictReader(file) if not line["option"]]


def _row(line: dict[str, str]) -> PassRow:
    training = line["mode"] == "train"
    return PassRow(
        model=line["model"],
        setting=Setting(
            source="neusight",
            model=f"{line['model']}-{line['seq_len']}",
            mode="train" if training else "infer",
            optimizer="never-called",
            step="neusight" if training else "usual",
            num_classes=None,
            release=RELEASE,
        ),
        batch_size=int(line["batch_size"]),
        card=line["gpu"],
        forward_seconds=float(line["forward_seconds"]),
        backward_seconds=float(line["backward_seconds"]),
    )
