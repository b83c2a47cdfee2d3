"""The bench of single operators: its rows, and what a call of each mode takes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.bench import language_models
from tests.bench.language import liger
from tests.bench.language.answers import Answer
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
def predict() -> Iterator[Callable[[Run], Answer]]:
    """Predicts in a process of its own, as it changes the one that it is in."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield lambda run: pool.submit(language_models.predict, run).result()


def peak(predict: Callable[[Run], Answer], run: Run) -> int:
    answer = predict(run)
    assert not answer.failure
    return answer.predicted["allocated peak of a call"]


UTILS = """
from dataclasses import dataclass
import torch
def run_benchmarks(*args, **options): raise NotImplementedError
def _test_memory(func): raise NotImplementedError
@dataclass
class SingleBenchmarkRunInput:
    x: int
    kernel_provider: str
    kernel_operation_mode: str
    extra_benchmark_config: dict
"""
SCRIPT = """
import torch
import triton
from utils import SingleBenchmarkRunInput, _test_memory, run_benchmarks
from liger_kernel.doubled import doubled
def bench(input):
    told = input.extra_benchmark_config
    x = torch.randn(input.x, told["N"], device="cuda", dtype=told["dtype"])
    _test_memory(lambda: doubled(x))
def speed(input):
    x = torch.randn(input.x, 64, device="cuda")
    triton.testing.do_bench(lambda: x @ x.t())
if __name__ == "__main__":
    common = dict(kernel_name="doubled", kernel_providers=["liger"], x_values=[8, 16])
    run_benchmarks(bench_test_fn=speed, metric_name="speed", **common)
    run_benchmarks(bench_test_fn=bench, metric_name="memory", **common)
"""
DOUBLED = """
import torch
import triton
@triton.jit
def kernel(x, y): ...
def doubled(x):
    y, scratch = torch.empty_like(x), torch.empty({copies} * x.numel(), device=x.device)
    kernel[(1,)](x, y)
"""
TOLD = "kernel_name,kernel_provider,kernel_operation_mode,x_value,extra_benchmark_config_str\n"


def clone_of(folder: Path) -> tuple[Path, str]:
    """A repository whose second commit publishes a row of its own code, and a third that changes the code."""
    files = {
        "pyproject.toml": '[project]\nname = "liger-kernel"\nversion = "0.0.1"\n',
        "benchmark/scripts/utils.py": UTILS,
        "benchmark/scripts/benchmark_doubled.py": SCRIPT,
        "benchmark/data/all_benchmark_data.csv": TOLD,
    }

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(folder), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(copies: int) -> str:
        for name, text in {**files, "src/liger_kernel/doubled.py": DOUBLED.format(copies=copies)}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        git("add", "-A")
        git("commit", "-q", "-m", str(copies))
        return git("rev-parse", "HEAD")

    folder.mkdir()
    git("init", "-q")
    commit(1)
    extra = '"{""N"": 1024, ""dtype"": ""torch.float16""}"'
    files["benchmark/data/all_benchmark_data.csv"] = f"{TOLD}doubled,liger,full,16.0,{extra}\n"
    commit(2)
    return folder, f"https://example.org/blob/{commit(3)}/benchmark/data/all_benchmark_data.csv#L2"


def test_a_kernel_is_called_by_the_script_of_the_commit_that_published_its_row(predict, tmp_path: Path):
    clone, url = clone_of(tmp_path / "clone")
    (tmp_path / liger.FILE).parent.mkdir()
    row = f"kernel: doubled,op:full,liger,NVIDIA A100-SXM4-80GB,dtype=torch.float16,4096,{url}\n"
    (tmp_path / liger.FILE).write_text(HEADER + row)
    (run,) = liger.read(tmp_path, clone)
    answer = predict(run)
    assert not answer.failure
    # The input, the output in half precision, two copies in single, and what timing left.
    assert answer.predicted == {
        "allocated peak of a kernel's call": 16 * 1024 * (2 + 2 + 8) + CUBLAS_BYTES // 2
    }


def test_an_operator_that_is_not_written_here_is_called_by_its_script(predict, tmp_path: Path):
    clone, url = clone_of(tmp_path / "clone")
    (tmp_path / liger.FILE).parent.mkdir()
    row = f"kernel: doubled,op:full,torch,NVIDIA A100-SXM4-80GB,dtype=torch.float16,4096,{url}\n"
    (tmp_path / liger.FILE).write_text(HEADER + row)
    (run,) = liger.read(tmp_path, clone)
    assert peak(predict, run) == 16 * 1024 * (2 + 2 + 8) + CUBLAS_BYTES // 2
    (run,) = liger.read(tmp_path)
    assert "wants --liger" in predict(run).failure


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
