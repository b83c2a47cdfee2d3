"""optimum_benchmark.csv: Llama-2-7B on one A100-80GB, prompts of 256 tokens and 512 new ones, batch 1 to 64.

Source: huggingface/optimum-benchmark, `examples/running-llamas/artifacts/`, Apache-2.0: float16, PyTorch
2.1.1, transformers 4.35.2, whose habits are in `generations.py`; random weights (`no_weights=True`). `infer`
is the prompt's pass alone. Traced in bfloat16, which takes as much. What `generate` reserves is held against
a replay within the card: a cache that grows reserves what there is.
"""

from __future__ import annotations

import csv
import functools
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from autofit_workers.spec.knobs import Knobs
from autofit_workers.workload.workload import Workload
from tests.bench.language import generations
from tests.bench.language.runs import Run, Table

FILE = "llm/optimum_benchmark.csv"
_MODEL, _PROMPT, _NEW_TOKENS = "NousResearch/Llama-2-7b-hf", 256, 512
_ATTENTION = {"fp16": "eager", "fp16+fa2": "fa2"}
# Of an A100 of 80 GB, less what a process holds there outside the allocator.
_USABLE_BYTES = (81038 - 518) * 2**20
_QUANTITIES = {
    ("infer", "max_allocated"): "allocated peak",
    ("infer", "max_reserved"): "reserved peak",
    ("generate", "max_allocated"): "allocated peak of generate",
    ("generate", "max_reserved"): "reserved on its card",
}
_CONFIG: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}


def read(folder: Path) -> list[Run]:
    """The rows of random weights, one run for each task, batch size and kind of attention."""
    measured: dict[tuple[str, str, int], dict[str, int]] = defaultdict(dict)
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            quantity = _QUANTITIES.get((row["task"], row["peak_kind"]))
            if row["model"] == _MODEL and row["method"] in _ATTENTION and quantity:
                key = row["task"], row["method"], int(row["batch_size"])
                measured[key][quantity] = int(row["peak_bytes"])
    return [_run(*key, found) for key, found in measured.items()]


def _run(task: str, method: str, batch_size: int, measured: dict[str, int]) -> Run:
    return Run(
        table="optimum_benchmark",
        name=f"{task} {method} batch {batch_size}",
        group=task,
        make=functools.partial(_workload, task),
        batch_size=batch_size,
        architecture="sm_80",
        usable_bytes=_USABLE_BYTES,
        knobs=Knobs(
            precision="bf16",
            attention=_ATTENTION[method],
            new_tokens=_NEW_TOKENS if task == "generate" else None,
        ),
        measured=measured,
    )


def _workload(task: str) -> Workload:
    return Workload(
        build_model=functools.partial(
            generations.build, "LlamaConfig", _CONFIG, generates=task == "generate"
        ),
        make_batch=_prompts,
        loss=_forward,
        mode=task,
        name=_MODEL,
    )


def _prompts(batch_size: int, device: torch.device) -> dict[str, torch.Tensor]:
    shape = (batch_size, _PROMPT)
    return {
        "input_ids": torch.ones(shape, dtype=torch.int64, device=device),
        "attention_mask": torch.ones(shape, dtype=torch.int64, device=device),
    }


def _forward(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits: torch.Tensor = model(**batch).logits
    return logits


TABLE = Table(
    name="optimum_benchmark",
    read=read,
    asked=dict.fromkeys(_QUANTITIES.values(), (0.02, 0.06)),
)
