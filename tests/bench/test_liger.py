"""The bench of single operators: its rows, and what a call of each mode takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.bench import language_models
from tests.bench.language import liger
from tests.bench.language.runs import Run

HEADER = "model,task,method,gpu,other,peak_bytes,url\n"
ROW = "kernel: {},op:{},{},NVIDIA A100-SXM4-80GB,{},4096,https://example.org/data.csv#L7\n"
MLP = "bsz=2; T=128; hidden_size=64; intermediate_size=256; hidden_act=silu; dtype=torch.bfloat16"
CUBLAS_BYTES = 2 * 8_519_680


def run_of(folder: Path, kernel: str, mode: str = "full", provider: str = "torch", other: str = "N=1024"):
    file = folder / liger.FILE
    file.parent.mkdir(parents=True)
    file.write_text(
        HEADER + ROW.format(kernel, mode, provider, other) + ROW.format(kernel, mode, "liger", other)
    )
    (run,) = liger.read(folder)
    return run


@pytest.fixture(scope="module")
def predict() -> Iterator[Callable[[Run], language_models.Answer]]:
    """Predicts in a process of its own, as it changes the one that it is in."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield lambda run: pool.submit(language_models.predict, run).result()


def peak(predict: Callable[[Run], language_models.Answer], run: Run) -> int:
    answer = predict(run)
    assert not answer.failure
    return answer.predicted["allocated peak of a call"]


def test_a_row_says_what_is_called_and_on_which_card(tmp_path: Path):
    run = run_of(tmp_path, "softmax")
    assert (run.name, run.group, run.architecture) == ("softmax torch full L7", "torch", "sm_80")
    assert run.measured == {"allocated peak of a call": 4096}


def test_gradients_of_the_call_before_are_there(predict, tmp_path: Path):
    # The input, its gradient, the output, that of the output, their product, and a new gradient.
    assert peak(predict, run_of(tmp_path, "softmax")) == 6 * 1024 * 4


def test_a_forward_pass_is_called_without_gradients_and_after_backward_was_timed(predict, tmp_path: Path):
    run = run_of(tmp_path, "tiled_swiglu", "forward", "huggingface", MLP)
    weights_bytes, hidden_bytes, inner_bytes = 3 * 64 * 256 * 2, 2 * 128 * 64 * 2, 2 * 128 * 256 * 2
    assert peak(predict, run) == CUBLAS_BYTES + weights_bytes + 2 * hidden_bytes + 4 * inner_bytes


def test_a_backward_pass_keeps_what_forward_saved(predict, tmp_path: Path):
    backward = peak(predict, run_of(tmp_path / "1", "tiled_swiglu", "backward", "huggingface", MLP))
    full = peak(predict, run_of(tmp_path / "2", "tiled_swiglu", "full", "huggingface", MLP))
    assert backward == full


@pytest.mark.parametrize(("kernel", "other"), [("unheard_of", "N=1"), ("softmax", "M=1")])
def test_what_is_not_modelled_is_not_predicted(predict, kernel, other, tmp_path: Path):
    assert predict(run_of(tmp_path, kernel, other=other)).failure
