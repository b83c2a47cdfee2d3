"""`autofit conv-algos`: the catalogue, and what each algorithm is to a model's layers."""

from __future__ import annotations

import pytest

from autofit_workers.spec import conv_algorithms as conv

_MODELS = """
import torch
from torch import nn
from autofit_workers.workload import Workload


def workload(*layers, loss=lambda model, batch: model(batch).square().mean()):
    return Workload(
        build_model=lambda: nn.Sequential(*layers),
        make_batch=lambda batch_size, device: torch.randn(batch_size, 3, 20, 24, device=device),
        loss=loss,
    )


mixed = workload(
    nn.Conv2d(3, 3, 5), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.ConvTranspose2d(3, 2, 3)
)
none = workload(nn.Flatten(), nn.Linear(3 * 20 * 24, 2))
typo = workload(nn.Conv2d(3, 3, 5), loss=lambda model, batch: model.forwrad(batch))
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(tmp_path / "state"))
    path = tmp_path / "models.py"
    path.write_text(_MODELS)
    return lambda name: f"{path}:{name}"


def test_the_list_says_of_each_what_it_takes_and_where_that_is_from(autofit):
    out = autofit("conv-algos").out
    for algorithm in conv.offered():
        assert f"takes {algorithm.takes}" in out
        assert algorithm.source in out


def test_layers_of_a_model_are_listed_with_what_each_algorithm_takes(autofit, model):
    finished = autofit("conv-algos", "--model", model("mixed"), "--batch-size", "4", "--gpu", "t4", "-q")
    assert finished.code == 0
    lines = [" ".join(line.split()) for line in finished.out.splitlines()]
    assert "matmul-1x1 2 of 4 1: its filter is 5×5, not one point; 1: it is transposed" in lines
    assert "im2col 3 of 4 1: it is transposed" in lines
    assert "cudnn 4 of 4" in lines
    assert "0: 4×3×20×24 → 4×3×16×20, filter 5×5" in lines
    assert "2 × 1, 2: 4×3×16×20 → 4×3×16×20, filter 1×1" in lines
    assert "3: 4×3×16×20 → 4×2×18×22, transposed filter 3×3" in lines


def test_the_document_has_every_layer_with_its_reasons(autofit, model):
    document = autofit(
        "conv-algos", "--model", model("mixed"), "--batch-size", "4", "--gpu", "t4", "--json", "-q"
    ).document
    assert document["schema"] == "autofit.conv-algos/1"
    assert (document["batch_size"], document["mode"], document["num_layers"]) == (4, "train", 4)
    algorithms = {each["name"]: each for each in document["conv_algos"]}
    assert algorithms["matmul-1x1"]["num_layers"] == 2
    assert algorithms["matmul-1x1"]["reasons"] == {
        "its filter is 5×5, not one point": 1,
        "it is transposed": 1,
    }
    assert not {"onednn", "mixed"} & algorithms.keys()
    first, second, third = document["layers"]
    columns = 4 * 4 * 3 * 25 * 16 * 20
    assert first["workspaces"]["im2col"] == dict.fromkeys(
        ("low_bytes", "likely_bytes", "high_bytes"), columns
    )
    assert first["workspaces"].keys() | first["reasons"].keys() == algorithms.keys()
    assert second["modules"] == ["1", "2"]
    assert second["workspaces"]["matmul-1x1"]["high_bytes"] == 0
    assert third["reasons"]["fft"] == "it is transposed"


def test_on_the_cpu_the_backend_is_asked_and_rewrites_are_the_same(autofit, model):
    document = autofit(
        "conv-algos", "--model", model("mixed"), "--batch-size", "4", "--device", "cpu", "--mode", "infer",
        "--json", "-q",
    ).document  # fmt: skip
    assert (document["device"], document["mode"]) == (
        {"kind": "cpu", "name": "cpu", "driver": None},
        "infer",
    )
    workspaces = document["layers"][0]["workspaces"]
    columns = 4 * 4 * 3 * 25 * 16 * 20
    assert workspaces["im2col"]["likely_bytes"] == columns
    assert workspaces["native"]["likely_bytes"] == columns
    assert set(workspaces) == {"onednn", "native", "im2col", "fft", "im2col-chunked:4096", "chunked:8"}


def test_a_model_without_convolutions_says_so(autofit, model):
    finished = autofit("conv-algos", "--model", model("none"), "-q")
    assert finished.code == 0
    assert "The model has no convolution." in finished.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "t4"), "--gpu needs a model: name one, such as resnet50"),
        (("--batch-size", "4"), "--batch-size needs a model"),
        (("--model", "vgg16", "--gpu", "t4", "--device", "cpu"), "--device cpu uses none"),
        (("--model", "vgg61"), "Did you mean vgg16?"),
        (("--model", "vgg16", "--gpu", "t44"), "--gpu"),
    ],
)
def test_bad_input_is_told_before_anything_runs(autofit, arguments, message):
    finished = autofit("conv-algos", *arguments)
    assert finished.code == 2
    assert message in finished.err


def test_a_workload_that_fails_ends_with_its_own_code(autofit, model):
    finished = autofit("conv-algos", "--model", model("typo"), "-q")
    assert finished.code == 4
    assert "forwrad" in finished.err
