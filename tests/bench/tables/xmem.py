"""xmem_runs.csv: training runs on two consumer cards, and what four other predictors said of them.

Source: Stone-ResearchLife/xMem, `plot/data/**/evaluation_result.json`, MIT. PyTorch 2.6, CUDA 12.4.
The peak is relative to the first sample of NVML, when the context was there, so it leaves the context
out; it may read 0.5 to 1.1 GB low for VGG. Where memory ran out, only that says something.
"""

from __future__ import annotations

import csv
from pathlib import Path

from tests.bench.tables.cards import card
from tests.bench.tables.rows import Row
from tests.bench.tables.setting import Setting

FILE = "xmem_runs.csv"
IMAGE_SIZE = 86

# By the table's name: the torchvision constructor, the family, and the number of classes.
_TORCHVISION = {
    "ConvNeXtTiny": ("convnext_tiny", "convnext", 1000),
    "MnasNet": ("mnasnet1_0", "mnasnet", 10),
    "MobileNetV3Large": ("mobilenet_v3_large", "mobilenet", 10),
    "RegNetX400MF": ("regnet_x_400mf", "regnet", 1000),
    "ResNet152": ("resnet152", "resnet", 1000),
    "VGG16": ("vgg16", "vgg", 1000),
}
_TRANSFORMERS = {
    "EleutherAI/gpt-neo-125M": "gpt-neo",
    "T5-small": "t5",
    "distilbert/distilgpt2": "gpt2",
    "facebook/opt-125m": "opt",
}
# Where the step dropped its gradients: xMem's training loops call it 0 (at the beginning of a step),
# 1 (just before backward) and 2 (at its end); `?` marks a run that took the default.
_DROPPED = {"0": "begin", "1": "middle", "1?": "middle", "2": "end"}
_OTHERS = {
    "xMem": "xmem_est_bytes",
    "DNNMem": "dnnmem_est_bytes",
    "SchedTune": "schedtune_est_bytes",
    "LLMem": "llmem_est_bytes",
}


def read(folder: Path) -> list[Row]:
    """The rows of the table.

    Raises:
        KeyError: a model, a card or a way to drop gradients that is not known here.
    """
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        return [_row(line) for line in csv.DictReader(file)]


def _row(line: dict[str, str]) -> Row:
    ran = line["real_oom"] == "false"
    family, setting = _model(line)
    return Row(
        table="xmem",
        model=line["model"],
        family=family,
        groups=(line["family"],),
        setting=setting,
        batch_size=int(line["batch_size"]),
        **{**card(line["gpu"])._asdict(), "total_bytes": int(line["gpu_total_bytes"])},
        torch_release="2.6",
        measured_bytes=int(line["ground_nvml_peak_bytes"]) if ran else None,
        ran=ran,
        others={name: _bytes(line[column]) for name, column in _OTHERS.items() if line[column]},
    )


def _model(line: dict[str, str]) -> tuple[str, Setting]:
    name, optimizer = line["model"], line["optimizer"].lower()
    dropped = _DROPPED[line["zero_grad_mode_effective_by_code"]]
    if line["family"] == "CNN":
        constructor, family, num_classes = _TORCHVISION[name]
        return family, Setting(
            source="torchvision",
            model=constructor,
            optimizer=optimizer,
            step=f"xmem-{dropped}",
            image_size=IMAGE_SIZE,
            num_classes=num_classes,
        )
    return _TRANSFORMERS[name], Setting(
        source="transformers",
        model=name,
        optimizer=optimizer,
        step=f"xmem-tokens-{dropped}",
        num_classes=None,
    )


def _bytes(text: str) -> int | None:
    """A prediction; the table has -1 for one that failed."""
    value = float(text)
    return int(value) if value > 0 else None
