"""How fast predictions are: `python tests/bench/estimate_speed.py [NAME …]`.

Wants the project installed, with transformers. For every built-in workload, or those named, one `autofit
estimate` as a whole process, then what is asked most beside that; each in turns with `import torch` alone,
so that what else the machine does weighs on both: the ratio is what the limits of the questions are of. All
of these are first questions: no trace is kept from one run to the next. Then second questions, whose traces
are kept from a first one, and the milliseconds of a further batch size on a curve that has its traces.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import autofit
from autofit_workers.spec.workloads.builtins import BUILTINS

NUM_RUNS = 3
ESTIMATE_LIMIT_SECONDS = 6.0
CURVE_LIMIT_SECONDS = 0.020
BATCH_SIZES = range(10, 130, 7)
IMPORT_TORCH = [sys.executable, "-c", "import torch"]
AUTOFIT = str(Path(sys.executable).with_name("autofit"))

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
_LLAMA = (
    "--model hf:{llama} --seq-len 2048 --precision bf16 --checkpointing blocks --optimizer adamw "
    "--optimizer-impl fused --gpu h100-80g"
)
_PRODUCT = "--search precision=fp32,amp-bf16 --search memory-format=contiguous,channels_last"
# What is asked most, with how many times `import torch` alone it may take.
QUESTIONS = (
    ("tune --model davenet --gpu-mem 16G", 3.0),
    ("tune --model davenet --gpu a100-40g", 2.5),
    (f"tune --model resnet50 --gpu-mem 16G --conv-algo cudnn {_PRODUCT}", 7.0),
    (f"estimate --batch-size 4 {_LLAMA}", 4.0),
    (f"tune {_LLAMA}", 6.0),
)
# A first question, another on the same model, and how many times `import torch` alone that may take.
# `{number}` makes a budget new in each run.
SECOND_QUESTIONS = (
    ("tune --model davenet --gpu-mem 16G", "tune --model davenet --gpu-mem 16G", 0.23),
    ("tune --model davenet --gpu-mem 16G", "tune --model davenet --gpu-mem 12.{number}G", 0.35),
    (
        "check --model resnet50 --batch-size 32 --gpu t4",
        "check --model resnet50 --batch-size 32 --gpu h100-80g",
        0.3,
    ),
    (
        "estimate --model gpt2 --batch-size 4 --gpu a100-40g",
        "estimate --model gpt2 --batch-size 4 --gpu l4",
        0.3,
    ),
)


def seconds_of(command: list[str]) -> float:
    """The wall time of a command that finds an answer."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def forget() -> None:
    """Removes the traces that are kept, so that the next question is a first one."""
    shutil.rmtree(Path(os.environ["AUTOFIT_STATE_DIR"], "kept"), ignore_errors=True)


def beside_torch(commands: Iterable[list[str]], before_each: Callable[[], None]) -> tuple[float, float]:
    """The median wall time of commands, one a run, and the median of their ratios to `import torch`.

    Each run has an import before it and another after it, the mean of which it is held against.
    """
    seconds, ratios = [], []
    before = seconds_of(IMPORT_TORCH)
    for command in commands:
        before_each()
        seconds.append(seconds_of(command))
        after = seconds_of(IMPORT_TORCH)
        ratios.append(2 * seconds[-1] / (before + after))
        before = after
    return statistics.median(seconds), statistics.median(ratios)


def exceeded_by_questions(folder: Path, num_questions: int, num_runs: int) -> list[str]:
    """Prints the table of the first questions, and returns which of them took more than they may."""
    llama = folder / "llama-3-8b"
    llama.mkdir()
    (llama / "config.json").write_text(json.dumps(LLAMA_3_8B))
    print("\n| question | seconds | × `import torch` | at most |\n|---|---|---|---|")
    exceeded = []
    for question, limit in QUESTIONS[:num_questions]:
        command = [AUTOFIT, *question.format(llama=llama).split()]
        fresh = ["--fresh"] if question.startswith("tune") else []
        seconds, ratio = beside_torch(num_runs * [[*command, *fresh]], forget)
        shown = question.format(llama="llama-3-8b")
        print(f"| `{shown}` | {seconds:.1f} | {ratio:.1f} | {limit:g} |", flush=True)
        if ratio > limit:
            exceeded.append(f"{shown} took {ratio:.1f} times as long as import torch, more than {limit:g}")
    return exceeded


def exceeded_by_second_questions(num_questions: int, num_runs: int) -> list[str]:
    """Prints the table of the first second questions, and returns which of them took more than they may."""
    print("\n| after | second question | seconds | × `import torch` | at most |\n|---|---|---|---|---|")
    exceeded = []
    for first, second, limit in SECOND_QUESTIONS[:num_questions]:
        seconds_of([AUTOFIT, *first.split()])
        commands = [[AUTOFIT, *second.format(number=number).split()] for number in range(num_runs)]
        seconds, ratio = beside_torch(commands, lambda: None)
        shown = second.format(number="…")
        print(f"| after `{first}` | `{shown}` | {seconds:.1f} | {ratio:.2f} | {limit:g} |", flush=True)
        if ratio > limit:
            exceeded.append(f"{shown} took {ratio:.2f} times as long as import torch, more than {limit:g}")
    return exceeded


def curve_seconds() -> list[float]:
    """One further batch size of resnet50, as often as there are `BATCH_SIZES`."""
    curve = autofit.peak_curve("resnet50")
    seconds = []
    for batch_size in BATCH_SIZES:
        started = time.perf_counter()
        curve.peak_reserved_bytes(batch_size, stop_above_bytes=1 << 60)
        seconds.append(time.perf_counter() - started)
    return seconds


def machine() -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load}"


def main(folder: Path) -> int:
    """Prints the tables; 1 if a limit is exceeded.

    Args:
        folder: for what the questions are of.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(BUILTINS), metavar="NAME", help="only these")
    parser.add_argument(
        "--questions", type=int, default=len(QUESTIONS), help=f"so many, from the first [{len(QUESTIONS)}]"
    )
    parser.add_argument("--runs", type=int, default=NUM_RUNS, help=f"of each command [{NUM_RUNS}]")
    options = parser.parse_args()
    print(f"{machine()}; Python {platform.python_version()}; medians of {options.runs}\n")
    exceeded = []
    seconds_of([AUTOFIT, "estimate", "--batch-size", "8", "--model", "lstm"])  # with the self-test
    print("| `autofit estimate --batch-size 8` | seconds | × `import torch` |\n|---|---|---|")
    for name in options.names:
        command = [AUTOFIT, "estimate", "--batch-size", "8", "--model", name]
        seconds, ratio = beside_torch(options.runs * [command], forget)
        print(f"| `{name}` | {seconds:.1f} | {ratio:.1f} |", flush=True)
        if seconds > ESTIMATE_LIMIT_SECONDS:
            exceeded.append(f"{name} took {seconds:.1f} s, more than {ESTIMATE_LIMIT_SECONDS:.0f}")
    exceeded += exceeded_by_questions(folder, options.questions, options.runs)
    exceeded += exceeded_by_second_questions(options.questions, options.runs)
    further = curve_seconds()
    median_ms, worst_ms = 1000 * statistics.median(further), 1000 * max(further)
    print(
        f"\nOne further batch size of resnet50: {median_ms:.0f} ms "
        f"(median of {len(further)}; worst {worst_ms:.0f})."
    )
    if statistics.median(further) > CURVE_LIMIT_SECONDS:
        exceeded.append(
            f"a further batch size took {median_ms:.0f} ms, more than {1000 * CURVE_LIMIT_SECONDS:.0f}"
        )
    print("\n".join(exceeded) or "within the limits")
    return bool(exceeded)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as state:
        os.environ["AUTOFIT_STATE_DIR"] = state
        sys.exit(main(Path(state)))
