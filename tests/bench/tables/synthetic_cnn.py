"""gpumemnet_synthetic_cnn.csv: generated CNNs, Adam, fp32; the maximum GPU memory, or that it ran out.

Source: itu-rad/GPUMemNet, git history, CC BY 4.0. The file name of a run says how its network was
made, the column of layers what came of it, which is the output of torchsummary: the runs are those of
the versions of `NeuroNetGen_scripts/CNN/cnn.py` that begin with its pass over two images. Rows of 0 MiB
ran on no GPU.
"""

from __future__ import annotations

import ast
import csv
from pathlib import Path

from tests.bench.tables.cards import card
from tests.bench.tables.rows import Row
from tests.bench.tables.setting import Setting
from tests.bench.tables.synthetic_recipe import Recipe

FILE = "gpumemnet_synthetic_cnn.csv"
GPU = "a100-40g"

_MIB = 1024**2
# Context and monitoring, in every row: the largest peaks of runs that succeeded are the card's own memory.
_CONSTANT_BYTES = 1700 * _MIB


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
                    step="gpumemnet",
                    image_size=recipe.image_size,
                    num_classes=recipe.num_classes,
                    layers=tuple(ast.literal_eval(line["Activations-Params"])),
                ),
                batch_size=int(line["Batch Size"]),
                **a100._replace(context_bytes=_CONSTANT_BYTES)._asdict(),
                measured_bytes=int(line["Max GPU Memory (MiB)"]) * _MIB if ran else None,
                ran=ran,
            )
        )
    return rows
