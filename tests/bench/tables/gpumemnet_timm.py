"""gpumemnet_timm.csv: the maximum GPU memory of timm models in fp32 training, as NVML saw it.

Source: itu-rad/GPUMemNet, `Related_works/FakeTensor/fake_tensor.xlsx`, CC BY 4.0. A 40 GB card; the
models' own image sizes. A constant of about 1.75 GiB (context, monitoring) is in every row. Runs that
crashed were dropped by whoever prepared the table. Some remain: of the models that return fewer values
than ImageNet has classes, which are a group of their own, nearly all read too low.

Beside the peaks that sheet has what the authors' trackers of live tensors said under PyTorch's
`FakeTensorMode`: `gpumemnet_fake_tensor.csv.gz`, in MiB, for the rows of the table. It knows no context,
so it is scored as it is and with the table's constant.
"""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

from tests.bench.tables.cards import card
from tests.bench.tables.families import family_of, groups_of, timm_modules
from tests.bench.tables.rows import Row
from tests.bench.tables.setting import Setting
from tests.bench.tables.timm_heads import NUM_CLASSES, NUM_OUTPUTS

_MIB = 1024**2

FILE = "gpumemnet_timm.csv"
_FAKE_TENSOR_PATH = Path(__file__).with_name("gpumemnet_fake_tensor.csv.gz")
GPU = "a100-40g"
# The loop is not published with the table. Its authors say that they took timm's, with lines added for
# FakeTensor, and those lines, as other scripts of theirs have them (itu-rad/CARMA, `workloads`), are from a
# script that ends after three minutes and knows the input size of timm's models: timm's `train.py`, which
# turns `cudnn.benchmark` on, and whose optimizer is SGD with Nesterov momentum and decay. With that loop
# large transformers agree where the loop of GPUMemNet's own scripts was 5 to 12 % off.
OPTIMIZER, STEP, CONV_ALGO = "timm-sgd", "timm-training", "cudnn-benchmark"
# The last with which `sam2_hiera_tiny` had images of 224; 1.0.9 is the first that has it.
RELEASE = "timm==1.0.12"
# Context and monitoring: see above.
_CONSTANT_BYTES = 1775 * _MIB

TOO_FEW, ENOUGH = "fewer outputs than labels", "an output for every label"


def read(folder: Path) -> list[Row]:
    """The rows of the table."""
    modules, a100, fake_tensor_bytes = timm_modules(), card(GPU), _fake_tensor_bytes()
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    rows = []
    for line in lines:
        model, batch_size = line["timm_model"], int(line["batch_size"])
        family = family_of(model, modules.get(model))
        outputs = NUM_OUTPUTS.get(model, NUM_CLASSES)
        live_bytes = fake_tensor_bytes.get((model, batch_size))
        rows.append(
            Row(
                table="timm",
                model=model,
                family=family,
                groups=(*groups_of(family), TOO_FEW if outputs < NUM_CLASSES else ENOUGH),
                setting=Setting(
                    source="timm",
                    model=model,
                    optimizer=OPTIMIZER,
                    step=STEP,
                    num_classes=NUM_CLASSES if outputs == NUM_CLASSES else None,
                    release=RELEASE,
                ),
                batch_size=batch_size,
                conv_algo=CONV_ALGO,
                **a100._replace(context_bytes=_CONSTANT_BYTES)._asdict(),
                measured_bytes=int(float(line["real_max_gpu_mem_MiB"]) * _MIB),
                others={
                    "FakeTensor": live_bytes,
                    "FakeTensor and the constant": None
                    if live_bytes is None
                    else live_bytes + _CONSTANT_BYTES,
                },
            )
        )
    return rows


def _fake_tensor_bytes() -> dict[tuple[str, int], int]:
    with gzip.open(_FAKE_TENSOR_PATH, "rt", encoding="utf-8", newline="") as file:
        return {
            (line["model"], int(line["batch_size"])): int(line["mib"]) * _MIB for line in csv.DictReader(file)
        }
