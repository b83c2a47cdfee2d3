"""gpumemnet_synthetic_cnn.csv: generated CNNs, Adam, fp32; the maximum GPU memory, or that it ran out.

Source: itu-rad/GPUMemNet, git history, CC BY 4.0. The file name of a run says how its network was
made, the column of layers what came of it. Rows of 0 MiB ran on no GPU.
"""

from __future__ import annotations

import ast
import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.bench.tables.cards import card
from tests.bench.tables.rows import Row, Setting

FILE = "gpumemnet_synthetic_cnn.csv"
GPU = "a100-40g"

_MIB = 1024**2
_NAME = re.compile(
    r"input_channels:(?P<channels>\d+)_num_classes:(?P<classes>\d+)_depth:(?P<depth>\d+)"
    r"_arch:(?P<architecture>\w+?)_base_filters:(?P<filters>\d+)_batch:(?P<batch>\d+)"
    r"_input_size:(?P<size>\d+)_act:(?P<activation>\w+?)_dropout:(?P<rate>[\d.]+)"
    r"_dropout:(?P<dropout>True|False)_batchnorm:(?P<batch_norm>True|False)\.out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a network was made, as its file name says.

    Attributes:
        architecture: `dense`, `residual`, or a way in which the widths of plain layers follow.
        dropout_rate: None without dropout.
    """

    architecture: str
    input_channels: int
    image_size: int
    num_classes: int
    activation: str
    dropout_rate: float | None
    batch_norm: bool

    @classmethod
    def from_name(cls, name: str) -> Self:
        """Reads a file name; raises `ValueError` for one that says something else."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"{name} does not say how the network was made")
        return cls(
            architecture=match["architecture"],
            input_channels=int(match["channels"]),
            image_size=int(match["size"]),
            num_classes=int(match["classes"]),
            activation=match["activation"],
            dropout_rate=float(match["rate"]) if match["dropout"] == "True" else None,
            batch_norm=match["batch_norm"] == "True",
        )


def read(folder: Path) -> list[Row]:
    """The rows of the table that were measured."""
    a100 = card(GPU)
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if int(line["Max GPU Memory (MiB)"]) > 0]
    rows = []
    for line in lines:
        name, ran = line["Filename"], line["Status"] == "SUCCESSFUL"
        recipe = Recipe.from_name(name)
        rows.append(
            Row(
                table="synthetic",
                model=name.removesuffix(".out"),
                family=recipe.architecture,
                setting=Setting(
                    source="synthetic",
                    model=name,
                    image_size=recipe.image_size,
                    num_classes=recipe.num_classes,
                    layers=tuple(ast.literal_eval(line["Activations-Params"])),
                ),
                batch_size=int(line["Batch Size"]),
                **a100._asdict(),
                measured_bytes=int(line["Max GPU Memory (MiB)"]) * _MIB if ran else None,
                ran=ran,
            )
        )
    return rows
