"""`autofit compare`: the seed's two ways to one map, and what cannot be compared."""

from __future__ import annotations

import pytest

from autofit_workers.spec.workloads.references import parse_reference
from autofit_workers.trials.measure.comparison import ComparisonFailedError, compare_outputs

_MODELS = """
import torch
from torch import nn
from autofit_workers.workload import Workload


def workload(build, features=6, loss=lambda model, batch: model(batch).sum()):
    return Workload(
        build_model=build,
        make_batch=lambda batch_size, device: torch.randn(batch_size, features, device=device),
        loss=loss,
    )


def two_layers(width):
    return lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, width))


class Doubled(nn.Linear):
    def forward(self, batch):
        return 2 * super().forward(batch)


def fails_on_real_values(model, batch):
    if not batch.is_cuda:
        raise ValueError("no such thing")
    return model(batch).sum()


plain = workload(two_layers(3))
deeper = workload(lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3), nn.Identity()))
wider = workload(two_layers(5))
linear = workload(lambda: nn.Linear(6, 3))
doubled = workload(lambda: Doubled(6, 3))
other_batch = workload(lambda: nn.Linear(7, 3), features=7)
fails = workload(lambda: nn.Linear(6, 3), loss=fails_on_real_values)
typo = workload(lambda: nn.Linear(6, 3), loss=lambda model, batch: model.forwrad(batch))
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(_MODELS)
    return path


@pytest.mark.process
def test_the_seed_s_comparison_is_reproduced(autofit, monkeypatch, tmp_path):
    """A TensorFlow listing of 2017: a 1×1 convolution against a product by a stacked filter."""
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(tmp_path))
    finished = autofit("compare", "conv1x1", "matmul1x1", "--batch-size", "10")
    assert finished.code == 0
    lines = [line.split() for line in finished.out.splitlines()]
    for name, shape, elements, storage in (
        ("conv1x1/convolution:0", "[10, 512, 1, 1000]", 5_120_000, "19.53 MiB"),
        ("conv1x1/squeeze:0", "[10, 512, 1000]", 5_120_000, "shared with conv1x1/convolution:0"),
        ("conv1x1/transpose_1:0", "[10, 1000, 512]", 5_120_000, "shared with conv1x1/convolution:0"),
        ("matmul1x1/bmm:0", "[10, 1000, 512]", 5_120_000, "19.53 MiB"),
        ("conv1x1/input:0", "[10, 1000, 32]", 320_000, "1.22 MiB"),
        ("matmul1x1/stack:0", "[10, 32, 512]", 163_840, "640.00 KiB"),
        ("conv1x1/unsqueeze_2:0", "[512, 32, 1, 1]", 16_384, "shared with conv1x1/filt"),
        ("conv1x1/filt", "[32, 512]", 16_384, "64.00 KiB"),
    ):
        (line,) = [line for line in lines if line[:1] == [name]]
        text = " ".join(line)
        assert text.startswith(f"{name} {shape} {elements} 4 ")
        assert text.endswith(storage)
    elements = [int(words[words.index("4") - 1]) for words in lines if "4" in words and ":0" in words[0]]
    assert elements == sorted(elements, reverse=True)
    assert "conv1x1 equal to matmul1x1? True" in finished.out
    assert "7 of 10 tensors (squeeze, transpose, unsqueeze, …) are views" in finished.out


@pytest.mark.process
def test_the_document_says_whose_storage_a_view_has(autofit, monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(tmp_path))
    document = autofit("compare", "conv1x1", "matmul1x1", "--batch-size", "10", "--json", "-q").document
    assert document["schema"] == "autofit.compare/1"
    conv, matmul = document["models"]
    assert conv["storage_bytes"] == 4 * (5_120_000 + 320_000 + 16_384)
    assert matmul["storage_bytes"] == conv["storage_bytes"] + 4 * 163_840
    assert conv["nominal_bytes"] == sum(row["num_bytes"] for row in conv["tensors"]) > 3 * 20_480_000
    views = {row["name"]: row["view_of"] for row in conv["tensors"] if row["storage_bytes"] == 0}
    assert views["squeeze:0"] == "convolution:0"
    assert views["t:0"] == "filt"
    assert conv["peak_allocated_bytes"] >= conv["storage_bytes"]
    assert conv["peak_allocated_bytes"] < conv["storage_bytes"] + 2 * 1024**2  # the loss is not in it
    (outputs,) = document["outputs"]
    assert (outputs["equal"], outputs["num_shared"], outputs["not_shared"]) == (True, 1, [])


def references(file, *names):
    return [parse_reference(f"{file}:{name}", cwd=file.parent) for name in names]


@pytest.mark.process
def test_parameters_are_the_first_one_s_where_names_and_shapes_agree(file):
    same, wider, linear = compare_outputs(
        references(file, "plain", "deeper", "wider", "linear"), batch_size=2, deadline_seconds=300
    )
    assert (same.equal, same.num_shared, same.not_shared) == (True, 4, ())
    assert wider.equal is None
    assert wider.reason == "their outputs differ in shape or type: [2, 3] float32 and [2, 5] float32"
    assert wider.not_shared == ("2.bias", "2.weight")
    assert (linear.equal, linear.num_shared) == (False, 0)
    assert len(linear.not_shared) == 6


@pytest.mark.process
def test_a_difference_is_told_and_other_batches_are_not_compared(file):
    doubled, other = compare_outputs(
        references(file, "linear", "doubled", "other_batch"), batch_size=2, deadline_seconds=300
    )
    assert (doubled.equal, doubled.num_shared) == (False, 2)
    assert doubled.largest_difference == pytest.approx(doubled.largest_output)
    assert other.equal is None
    assert other.reason == "their batches differ: [2, 6] float32 and [2, 7] float32"


@pytest.mark.process
def test_what_fails_for_real_alone_is_the_workload_s_failure(file):
    with pytest.raises(ComparisonFailedError, match=r"ValueError: no such thing \(.*models.py:\d+"):
        compare_outputs(references(file, "linear", "fails"), batch_size=2, deadline_seconds=300)


def test_a_comparison_that_takes_too_long_costs_only_the_outputs(file):
    with pytest.raises(ComparisonFailedError, match="did not finish within 0 s") as failed:
        compare_outputs(references(file, "linear", "doubled"), batch_size=2, deadline_seconds=0)
    assert failed.value.error is None


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("conv1x1", "--batch-size", "10"), 2, "at least two models, got 1"),
        (("conv1x1", "matmul1", "--batch-size", "10"), 2, "Did you mean matmul1x1?"),
        (("conv1x1", "matmul1x1"), 2, "Missing option '--batch-size'"),
        (("conv1x1", "matmul1x1", "--batch-size", "10", "--gpu", "rtx-9"), 2, "--gpu"),
    ],
)
def test_bad_input_is_told_before_anything_runs(autofit, arguments, code, message):
    finished = autofit("compare", *arguments)
    assert finished.code == code
    assert message in finished.err


def test_a_workload_that_fails_is_told_with_its_line(autofit, file, monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(tmp_path / "state"))
    finished = autofit("compare", f"{file}:linear", f"{file}:typo", "--batch-size", "2", "-q")
    assert finished.code == 4
    assert "forwrad" in finished.err
