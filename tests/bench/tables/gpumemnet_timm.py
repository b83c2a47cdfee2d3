"""gpumemnet_timm.csv: the maximum GPU memory of timm models in fp32 training, as NVML saw it.

Source: itu-rad/GPUMemNet, `Related_works/FakeTensor/fake_tensor.xlsx`, CC BY 4.0. A 40 GB card; the
models' own image sizes. A constant of 1.75 to 1.8 GiB (context, monitoring) is in every row. Runs that
crashed were dropped by whoever prepared the table; a few that read too low may remain.
"""

from __future__ import annotations

import csv
from pathlib import Path

from tests.bench.tables.cards import card
from tests.bench.tables.families import family_of, groups_of, timm_modules
from tests.bench.tables.rows import Row
from tests.bench.tables.setting import Setting
from tests.bench.tables.timm_history import former_arguments

FILE = "gpumemnet_timm.csv"
GPU = "a100-40g"
# Neither optimizer nor loop is published with the table. The loop is the one of GPUMemNet's own scripts
# for ImageNet. Those use Adam, but small batches of large transformers take less than parameters,
# activations and Adam's two moments, and their optimizer step four times the parameters: SGD with
# momentum and decay, as ImageNet's recipes have it, is within 2 % where Adam is 5 to 20 % too high.
OPTIMIZER = "sgd-momentum-decay"
STEP = "gpumemnet"
# Context and monitoring: see above.
_CONSTANT_BYTES = 1775 * 1024**2

_MIB = 1024**2


def read(folder: Path) -> list[Row]:
    """The rows of the table."""
    modules, a100 = timm_modules(), card(GPU)
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    rows = []
    for line in lines:
        model = line["timm_model"]
        family = family_of(model, modules.get(model))
        rows.append(
            Row(
                table="timm",
                model=model,
                family=family,
                groups=groups_of(family),
                setting=Setting(
                    source="timm",
                    model=model,
                    optimizer=OPTIMIZER,
                    step=STEP,
                    arguments=former_arguments(model),
                ),
                batch_size=int(line["batch_size"]),
                **a100._replace(context_bytes=_CONSTANT_BYTES)._asdict(),
                measured_bytes=int(float(line["real_max_gpu_mem_MiB"]) * _MIB),
            )
        )
    return rows
