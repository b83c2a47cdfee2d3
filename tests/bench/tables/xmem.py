"""xmem_runs.csv: training runs on two consumer cards, and what four other predictors said of them.

Source: Stone-ResearchLife/xMem, `plot/data/**/evaluation_result.json`, MIT. PyTorch 2.6, CUDA 12.4.
How the runs were made is in that repository's `exp/trainer` and `exp/run.py`.

The peak is relative to the first sample of NVML, when the context was there, so it leaves the context
out. The thread that takes it is started right before the model moves to the GPU. The loop for images
goes on at once, so that the sample is taken while the first batch is read: what the model and the
optimizer's constructor put on the GPU is left out too (0.5 GB of VGG16, 1.1 GB with Adagrad). The loop
for transformers waits for two seconds first. What the context takes later, for the kernels of cuDNN and
others as they are loaded, is in every peak: the table's constants. Where memory ran out, only that says
something.
"""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

from tests.bench.tables.cards import card
from tests.bench.tables.rows import Row
from tests.bench.tables.setting import Setting

FILE = "xmem_runs.csv"
IMAGE_SIZE = 86

# By the table's name, as in `perf_estimator/models.py`: the torchvision constructor, the family, and the
# number of classes.
_TORCHVISION = {
    "ConvNeXtBase": ("convnext_base", "convnext", 1000),
    "ConvNeXtTiny": ("convnext_tiny", "convnext", 1000),
    "MnasNet": ("mnasnet1_0", "mnasnet", 10),
    "MobileNetV2": ("mobilenet_v2", "mobilenet", 1000),
    "MobileNetV3Large": ("mobilenet_v3_large", "mobilenet", 10),
    "MobileNetV3Small": ("mobilenet_v3_small", "mobilenet", 10),
    "RegNetX32GF": ("regnet_x_32gf", "regnet", 1000),
    "RegNetX400MF": ("regnet_x_400mf", "regnet", 1000),
    "RegNetY32GF": ("regnet_y_32gf", "regnet", 1000),
    "RegNetY400MF": ("regnet_y_400mf", "regnet", 1000),
    "ResNet50": ("resnet50", "resnet", 1000),
    "ResNet101": ("resnet101", "resnet", 1000),
    "ResNet152": ("resnet152", "resnet", 1000),
    "VGG11": ("vgg11", "vgg", 1000),
    "VGG16": ("vgg16", "vgg", 1000),
    "VGG19": ("vgg19", "vgg", 1000),
}
_RELEASE = "transformers==4.51.3"  # of `paper_container/config.py`
_TORCH = "2.6"
_TRANSFORMERS = {
    "EleutherAI/gpt-neo-125M": "gpt-neo",
    "T5-small": "t5",
    "distilbert/distilgpt2": "gpt2",
    "facebook/opt-125m": "opt",
    "facebook/opt-350m": "opt",
    "openai-community/gpt2": "gpt2",
    "t5-base": "t5",
}
# Where the step dropped its gradients: xMem's training loops call it 0 (at the beginning of a step),
# 1 (just before backward) and 2 (at its end). `?` marks a run that does not say, from before it could be
# chosen: then the loop for images had 1 for its default, and that for transformers first dropped them at
# the end, whatever was asked for. Later it had 1 for its default too; which of both made a run is not known.
_DROPPED = {"0": "begin", "1": "middle", "2": "end"}
_UNCHOSEN = "1?"
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
    is_unsaid = line["zero_grad_mode_effective_by_code"] == _UNCHOSEN
    return Row(
        table="xmem",
        model=line["model"],
        family=family,
        groups=(line["family"],),
        setting=setting,
        batch_size=int(line["batch_size"]),
        **{**card(line["gpu"])._asdict(), "total_bytes": int(line["gpu_total_bytes"])},
        torch_release=_TORCH,
        measured_from="step 1 input" if line["family"] == "CNN" else "",
        measured_bytes=int(line["ground_nvml_peak_bytes"]) if ran else None,
        ran=ran,
        or_else=dataclasses.replace(setting, step="xmem-tokens-middle")
        if is_unsaid and setting.source == "transformers"
        else None,
        others={name: _bytes(line[column]) for name, column in _OTHERS.items() if line[column]},
    )


def _model(line: dict[str, str]) -> tuple[str, Setting]:
    name, optimizer = line["model"], line["optimizer"].lower()
    of_images = line["family"] == "CNN"
    places = {**_DROPPED, _UNCHOSEN: "middle" if of_images else "end"}
    dropped = places[line["zero_grad_mode_effective_by_code"]]
    if of_images:
        constructor, family, num_classes = _TORCHVISION[name]
        return family, Setting(
            source="torchvision",
            model=constructor,
            optimizer=optimizer,
            step=f"xmem-{dropped}",
            image_size=IMAGE_SIZE,
            num_classes=num_classes,
            torch=_TORCH,
        )
    return _TRANSFORMERS[name], Setting(
        source="transformers",
        model=name,
        optimizer=optimizer,
        step=f"xmem-tokens-{dropped}",
        num_classes=None,
        release=_RELEASE,
        torch=_TORCH,
    )


def _bytes(text: str) -> int | None:
    """A prediction; the table has -1 for one that failed."""
    value = float(text)
    return int(value) if value > 0 else None
