from __future__ import annotations

from pathlib import Path

import pytest

from autofit.gpus import find_gpu
from autofit.settings import TuneSettings, resolve_settings

CONFIGS = Path(__file__).parents[2] / "configs"
EXPECTED = {
    "davenet-16g.toml": TuneSettings(model="davenet", gpu_mem_bytes=17179869184, probe="predict"),
    "resnet50-rtx-3090.toml": TuneSettings(
        model="resnet50",
        gpu=find_gpu("rtx-3090"),
        precision="amp-bf16",
        optimizer="adam",
        conv_algos=("cudnn", "cudnn-benchmark"),
        reserve_bytes=1024**3,
        study="resnet50-rtx-3090",
    ),
    "davenet-audio-cpu.toml": TuneSettings(
        model="davenet-audio",
        device="cpu",
        gpu_mem_bytes=1500 * 1024**2,
        optimizer="adam",
        max_batch=256,
        num_threads=1,
        deadline_seconds=300.0,
        metrics_port=9464,
    ),
}


def test_every_example_is_tested() -> None:
    assert {path.name for path in CONFIGS.iterdir()} == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_means_what_it_says(name: str) -> None:
    assert resolve_settings({}, {}, CONFIGS / name) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_says_how_to_use_it(name: str) -> None:
    first_lines = (CONFIGS / name).read_text(encoding="utf-8").split("[tune]")[0]
    assert f"autofit tune --config configs/{name}" in first_lines
