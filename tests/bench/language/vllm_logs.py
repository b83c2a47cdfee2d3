"""tables_by_hand.csv, rows of vLLM: what its start-up logs say of weights, activations and the KV cache.

Source: pull requests of vllm-project/vllm, Apache-2.0, that show logs of their own build: 2031 (0.2.5), 10511
(between 0.6.4 and 0.6.5) and 12126 (0.7.0). Nothing is traced here: `autofit.questions.kv` predicts.

Not scored: "non-torch memory", of which the logs do not say what it is made of. Pull request 10511's has
1.79 GiB on one card and twice that on two, which no release repeats: what it leaves to the KV cache is scored
all the same.

Configurations that are not complete: none names its `max_num_batched_tokens` or `max_num_seqs` unless it is
in the command, so that they are the release's own; 2031 does not name the card's total.
Models that read images are profiled with images, which is not predicted.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.language.runs import Table, UntracedRun

FILE = "llm/tables_by_hand.csv"
_SOURCE = "vLLM"
_RELEASES = {"2031": "0.2", "10511": "0.6", "12126": "0.7"}
_LLAMA: dict[str, Any] = {"model_type": "llama", "tie_word_embeddings": False}
_CONFIGS: dict[str, dict[str, Any]] = {
    "Llama-2-7B": {
        **_LLAMA,
        "max_position_embeddings": 4096,
    },
    "Llama-2-70B": {
        **_LLAMA,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
    },
    "Meta-Llama-3-8B": {
        **_LLAMA,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    },
    "Llama-3.2-11B-Vision": {"model_type": "mllama", "vision_config": {"image_size": 560}},
}
_CARDS = {"A100": "a100-80g", "H100": "h100-80g"}
_QUANTITIES = {
    "vllm: model weights": "weights",
    "vllm: torch activation peak of the profile run": "activations of the profiling run",
    "vllm: available KV cache": "KV cache",
    "vllm: number of 16-token GPU blocks": "blocks of the KV cache",
}
_OPTION = re.compile(
    r"(max.model.len|max.num.seqs|max.num.batched.tokens|gpu.memory.utilization)[ =]+([\d.]+)"
)


def read(folder: Path) -> list[UntracedRun]:
    """One run a log, with what it says."""
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"].startswith(_SOURCE)]
    logs: dict[tuple[str, ...], dict[str, int]] = {}
    for row in rows:
        if row["peak_kind"] in _QUANTITIES:
            log = tuple(row[name] for name in ("url", "model", "parallel", "gpu", "other", "precision"))
            logs.setdefault(log, {})[_QUANTITIES[row["peak_kind"]]] = int(row["peak_bytes"])
    return [_run(*log, measured) for log, measured in logs.items()]


def _run(  # noqa: PLR0917 - in the order of the table's columns
    url: str, model: str, parallel: str, gpu: str, other: str, precision: str, measured: Mapping[str, int]
) -> UntracedRun:
    number = url.rpartition("/")[2]
    name = model.rpartition("/")[2]
    options: dict[str, Any] = {
        re.sub(r"\W", "_", option): float(value) if "." in value else int(value)
        for option, value in _OPTION.findall(other)
    }
    options |= {
        "tensor_parallel": int(parallel.partition(":")[2] or 1),
        "release": _RELEASES[number],
        "dtype": precision,
    }
    return UntracedRun(
        table=TABLE.name,
        name=f"{name} {parallel} of {number}",
        group=name,
        predict=partial(_sized, name, _CARDS[gpu[:4]], options),
        batch_size=1,
        architecture="",
        measured=measured,
    )


def _sized(name: str, card: str, options: Mapping[str, Any]) -> dict[str, int]:
    """What `autofit kv` says, by quantity."""
    import json
    import tempfile

    from autofit.hardware.gpus import find_gpu
    from autofit.questions.kv import KvQuestion, kv_cache
    from autofit_workers.spec.workloads.references import parse_reference
    from autofit_workers.tracing.listing_parts import parts_of

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(_CONFIGS[name]), encoding="utf-8")
        question = KvQuestion(gpu=find_gpu(card), **options)
        answer = kv_cache(parse_reference(f"hf:{path}"), question, parts=parts_of)
    return {
        "weights": answer.sizing.weights_bytes,
        "activations of the profiling run": answer.sizing.activation_bytes,
        "KV cache": answer.sizing.left_bytes,
        "blocks of the KV cache": answer.sizing.pool.num_blocks,
    }


TABLE = Table(
    name="vllm_logs",
    read=read,
    asked={
        "weights": (0.01, 0.01),
        "activations of the profiling run": (0.05, 0.05),
        "KV cache": (0.02, 0.02),
        "blocks of the KV cache": (0.02, 0.02),
    },
)
