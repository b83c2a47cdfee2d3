from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from autofit.hardware.gpus import find_gpu
from autofit.predict.predictor import local_predictor
from autofit.questions.check import Answer, run_check
from autofit.settings.resolve import chosen_cards, resolve_settings
from autofit.settings.tune_settings import TuneSettings
from autofit.settings.workloads import refer
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import Parallel, Setup

CONFIGS = Path(__file__).parents[2] / "configs"
EXPECTED = {
    "davenet-16g.toml": TuneSettings(model="davenet", gpu_mem_bytes=17179869184, probe="predict"),
    "resnet50-rtx-3090.toml": TuneSettings(
        model="resnet50",
        gpu=find_gpu("rtx-3090"),
        conv_algos=("cudnn", "cudnn-benchmark"),
        reserve_bytes=1024**3,
        study="resnet50-rtx-3090",
        knobs=Knobs(precision="amp-bf16", optimizer="adam"),
    ),
    "davenet-audio-cpu.toml": TuneSettings(
        model="davenet-audio",
        device="cpu",
        gpu_mem_bytes=1500 * 1024**2,
        max_batch=256,
        num_threads=1,
        deadline_seconds=300.0,
        metrics_port=9464,
        knobs=Knobs(optimizer="adam"),
    ),
    "resnet50-fleet.toml": TuneSettings(
        model="resnet50",
        gpu=find_gpu("t4"),
        conv_algos=("cudnn", "cudnn-benchmark"),
        knobs=Knobs(precision="amp-fp16", memory_format="channels_last", optimizer="sgd-momentum"),
    ),
    "gpt2-a100.toml": TuneSettings(
        model="gpt2",
        gpu=find_gpu("a100-40g"),
        conv_algos=("cudnn",),
        setup=Setup(parallel=Parallel(degrees=(("ddp", 8),))),
        knobs=Knobs(precision="amp-bf16", checkpointing="blocks", optimizer="adamw", optimizer_impl="fused"),
    ),
}
FLEETS = {"resnet50-fleet.toml": ("t4", "a100-40g", "h100-80g")}

every_example = pytest.mark.parametrize("name", EXPECTED)


def read(name: str, card: str | None = None) -> TuneSettings:
    """The settings of an example; of a fleet's, those of one of its cards."""
    card = card or next(iter(FLEETS.get(name, ())), None)
    return resolve_settings({"gpu": card}, {}, CONFIGS / name)


def test_every_example_is_tested() -> None:
    assert {path.name for path in CONFIGS.glob("*.toml")} == EXPECTED.keys()


@every_example
def test_an_example_means_what_it_says(name: str) -> None:
    assert read(name) == EXPECTED[name]


@pytest.mark.parametrize("name", FLEETS)
def test_a_fleet_has_several_cards(name: str) -> None:
    assert chosen_cards({}, {}, CONFIGS / name) == FLEETS[name]


@every_example
def test_an_example_says_how_to_use_it(name: str) -> None:
    first_lines = (CONFIGS / name).read_text(encoding="utf-8").split("[tune]")[0]
    command = "submit" if name in FLEETS else "tune"
    assert f"autofit {command} --config configs/{name}" in first_lines


@every_example
def test_a_small_batch_of_an_example_is_predicted_to_fit(name: str) -> None:
    """On every card of a fleet; of the memory alone where the example measures on the CPU."""
    settings = read(name)
    predictor = local_predictor(refer(settings.model), setup=settings.setup)
    for card in FLEETS.get(name, (None,)):
        one = read(name, card)
        one = dataclasses.replace(
            one, device="auto", probe="predict", conv_algos=(one.conv_algos or ("cudnn",))[:1]
        )
        assert run_check(one, predictor, 4).verdict is Answer.FITS, card
