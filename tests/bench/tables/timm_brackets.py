"""timm_train_brackets.csv and timm_infer_brackets.csv: the batch that ran, and the next one that did not.

Source: huggingface/pytorch-image-models, `results/`, Apache-2.0: its `benchmark.py` went down a ladder of
batch sizes, in one process, until one ran (`tests.bench.ladder`). AMP with fp16, `cudnn.benchmark` on.
Training: PyTorch 1.12 on an RTX 3090, backward inside autocast, no GradScaler, SGD with Nesterov momentum,
gradients left allocated, attention not fused, and no lazy loading of kernels. Inference: PyTorch 2.1 to 2.9,
eager. The same runs repeated agree on 95 to 98 % of the rungs; across PyTorch versions, on 83 to 85 %.
"""

from __future__ import annotations

import csv
from pathlib import Path

from tests.bench.tables.cards import card
from tests.bench.tables.families import family_of, groups_of, timm_modules
from tests.bench.tables.rows import Row
from tests.bench.tables.setting import Setting
from tests.bench.tables.timm_history import former_arguments, had_fast_norms

TRAIN_FILE = "timm_train_brackets.csv"
INFER_FILE = "timm_infer_brackets.csv"

_CARDS = {
    "rtx3090": "rtx-3090",
    "rtx4090": "rtx-4090",
    "4090": "rtx-4090",
    "5090": "rtx-5090",
    "pro6000maxq": "rtx-pro-6000",
}
# The runs on these GPUs had timm's `--fast-norm`, which their files do not say: with norms in fp32, half of
# ConvNeXt V2's brackets lie above what these GPUs have; on the RTX 5090 it is without that they are true.
_FAST_NORM = ("rtx3090", "rtx4090", "4090", "pro6000maxq")
# timm's last release before the training files were added to its `results/`, in July 2022. Inference ran
# with three, and is traced with the one that is here and what is known to have been otherwise.
_TRAINED_WITH = "timm==0.6.7"
# The largest batch that did not run in any of their files: where the ladder began.
_FIRST_TRIED = {"train": 512, "infer": 1024}
_FIRST_TRIED_ON = {"pro6000maxq": 2048}
_MEMORY_FORMATS = {"nchw": "contiguous", "nhwc": "channels_last"}
# CUDA 11.3 loaded every kernel when the context was made: more than 1 GB (README of the tables), 1.0 to 1.5
# GB for a process with one tensor on this card (autofit/data/contexts.toml), cuDNN and cuBLAS left out. The
# one constant of the training table: of 137 rungs 1.5 GB find 85 %, 1.8 GB 92 %, 2.1 to 2.7 GB 96 %.
EAGER_CONTEXT_BYTES = 2000 * 1024**2


def read_train(folder: Path) -> list[Row]:
    """The training rows."""
    return _read(folder / TRAIN_FILE, "timm-train")


def read_infer(folder: Path) -> list[Row]:
    """The inference rows."""
    return _read(folder / INFER_FILE, "timm-infer")


def _read(path: Path, table: str) -> list[Row]:
    modules = timm_modules()
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(line, table, modules) for line in csv.DictReader(file)]


def _row(line: dict[str, str], table: str, modules: dict[str, str]) -> Row:
    model, gpu = line["model"], card(_CARDS[line["gpu"]])
    module = modules.get(model)
    family = family_of(model, module)
    training = line["mode"] == "train"
    assert line["precision"] == "amp", f"{model}: what {line['precision']!r} means is not known here"
    if line["torch"] == "1.12":
        gpu = gpu._replace(context_bytes=EAGER_CONTEXT_BYTES)
    memory_format = _MEMORY_FORMATS[line["layout"]]
    first_tried = _FIRST_TRIED_ON.get(line["gpu"], _FIRST_TRIED[line["mode"]])
    return Row(
        table=table,
        model=model,
        family=family,
        groups=(*groups_of(family), f"torch {line['torch']} {gpu.gpu} {line['layout']}"),
        setting=Setting(
            source="timm",
            model=model,
            mode=line["mode"],
            optimizer="sgd-nesterov-single",
            precision="amp-fp16",
            memory_format=memory_format,
            step="timm-benchmark" if training else "usual",
            image_size=int(line["img_size"]),
            num_classes=None,
            release=_TRAINED_WITH if training else "",
            arguments=() if training else former_arguments(model),
            fused_attention=not training,
            fast_norm=not training and line["gpu"] in _FAST_NORM and had_fast_norms(module, line["torch"]),
        ),
        batch_size=int(line["fits_batch"]),
        failed_batch_size=int(line["did_not_fit_batch"]),
        first_tried=first_tried,
        ran=True,
        **gpu._asdict(),
        torch_release=line["torch"],
        conv_algo="cudnn-benchmark",
    )
