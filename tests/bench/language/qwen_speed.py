"""qwen_speed.csv: the peak of `generate` of Qwen2 on one A100, prompts to 30,720 tokens and 2,048 new ones.

Source: QwenLM/Qwen3, `examples/speed-benchmark/` and `docs/source/benchmark/` at 1182f4b, Apache-2.0:
batch 1, bfloat16, FlashAttention 2, `max_memory_allocated` in 0.01 GiB; PyTorch 2.1.2, transformers 4.38.2.
What that release kept is in `generations.py`. Rows of several GPUs and of quantized weights are left out; so
are those of Qwen3, which leave out the prompt's pass.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Any

import torch

from autofit_workers.spec.knobs import Knobs
from autofit_workers.workload.workload import Workload
from tests.bench.language import generations
from tests.bench.language.runs import Run, Table

FILE = "llm/qwen_speed.csv"
_USED = {"source": "Qwen speed benchmark (Qwen2)", "method": "bf16"}
_LARGE = 3584  # hidden units from which on the head has weights of its own
_COMMON: dict[str, Any] = {
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
}


def _config(**sizes: int) -> dict[str, Any]:
    return {**sizes, "tie_word_embeddings": sizes["hidden_size"] < _LARGE, **_COMMON}


# From the models' config.json.
_CONFIGS = {
    "Qwen/Qwen2-0.5B-Instruct": _config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151936,
    ),
    "Qwen/Qwen2-1.5B-Instruct": _config(
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        vocab_size=151936,
    ),
    "Qwen/Qwen2-7B-Instruct": _config(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
    ),
}


def read(folder: Path) -> list[Run]:
    """The rows of Qwen2 in bfloat16 on one GPU."""
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if row["model"] in _CONFIGS and _USED.items() <= row.items()
        ]
    return [_run(row) for row in rows if "gpus=1;" in row["other"]]


def _run(row: dict[str, str]) -> Run:
    prompt, new_tokens = map(int, row["seq_len"].split("+"))
    return Run(
        table="qwen_speed",
        name=f"{row['model'].partition('/')[2]} {row['seq_len']}",
        group=row["model"],
        make=functools.partial(_workload, row["model"], prompt),
        batch_size=1,
        architecture="sm_80",
        knobs=Knobs(precision="bf16", attention="fa2", new_tokens=new_tokens),
        measured={"allocated peak": int(row["peak_bytes"])},
    )


def _workload(model: str, prompt: int) -> Workload:
    config = _CONFIGS[model]

    def make_batch(batch_size: int, device: torch.device) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.ones((batch_size, prompt), dtype=torch.int64, device=device)}

    return Workload(
        build_model=functools.partial(generations.build, "Qwen2Config", config),
        make_batch=make_batch,
        loss=generations.no_loss,
        mode="generate",
        name=model,
    )


TABLE = Table(name="qwen_speed", read=read, asked={"allocated peak": (0.015, 0.04)})
