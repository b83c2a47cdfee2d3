"""fsdp_qlora.csv: LoRA and QLoRA of Llama-2 7B on two cards of 24 GB by FullyShardedDataParallel.

Source: AnswerDotAI/fsdp_qlora, `benchmarks_03_2024.md` and `train.py` at 05ed9f2a, Apache-2.0; what the
template's command and the script's defaults say:
- FULL_SHARD, of `ddp` rows NO_SHARD; a unit for each block and for each layer without parts whose weight is
  trained; `use_orig_params` is off, all-gathers are limited, BACKWARD_PRE prefetches (PyTorch's default);
  no mixed precision: all is bfloat16, adapters too.
- The model is loaded by the first rank on the CPU and synced (`sync_module_states`); of a quantized one each
  layer is quantized on the card and goes back, in bfloat16 as its storage, and then the cache is emptied.
- Checkpointing by PyTorch's wrapper, reentrant, inside of the units; AdamW, no clipping; texts that fill the
  context, with no mask; LoRA of rank 64 on all linear layers but `o_proj`, dropout 0.1.
- bitsandbytes was before 0.43.2, whose products of 4 bits keep their inputs; see `fsdp_qlora_stages`.
- The outputs live until the optimizer has stepped, with logits in float32.
- transformers was not 4.38 or 4.39, which the script refuses: up to 4.37, see `old_transformers`.

The peak is what is reserved at most, to 0.01 GiB, of rank 0, since training began; the largest would be
beyond the card, which then empties its cache.

Not traced: rows with the parameters offloaded to the CPU, and rows without a peak.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from autofit.hardware.budget import assumed_context
from autofit.hardware.gpus import Gpu, find_gpu
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import Parallel
from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.workload import Workload
from tests.bench.language.fsdp_qlora_stages import keep_inputs_of_quantized_layers
from tests.bench.language.old_transformers import Until437
from tests.bench.language.runs import Run, Table

FILE = "llm/fsdp_qlora.csv"
_NAME = "Llama-2 7B"
_CONFIG = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "use_cache": False,
}
_ADAPTER = "lora:r=64,alpha=16,dropout=0.1,targets=k_proj,q_proj,v_proj,up_proj,down_proj,gate_proj"
_KINDS = {"fsdp1": "fsdp1", "fsdp1-NO_SHARD": "fsdp1+no-shard"}
_QUANTITIES = {"max_reserved": "reserved on its card", "max_allocated": "allocated peak"}
_MODEL = "meta-llama/Llama-2-7b-hf"
_TOTAL_MIB = {"rtx-4090": 24217}  # see gpus.toml, of older drivers
_CARDS = {"RTX 3090": find_gpu("rtx-3090"), "RTX 4090": find_gpu("rtx-4090")}


def read(folder: Path) -> list[Run]:
    """The rows whose parameters stay on the card."""
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if _is_traced(row)]
    return [_run(row) for row in rows]


def _is_traced(row: dict[str, str]) -> bool:
    return bool(row["peak_bytes"]) and row["model"] == _MODEL and "cpu_offload=True" not in row["other"]


def _run(row: dict[str, str]) -> Run:
    kind, _, num_ranks = row["parallel"].partition(":")
    card = _CARDS[row["gpu"]]
    return Run(
        table=TABLE.name,
        name=f"{row['gpu']} {row['method']} {row['parallel']} batch {row['batch_size']}, "
        f"{row['seq_len']} tokens, {row['peak_kind']}",
        group=row["method"],
        make=functools.partial(_workload, int(row["seq_len"])),
        batch_size=int(row["batch_size"]),
        architecture=card.architecture,
        knobs=Knobs(
            adapter=_ADAPTER, base="nf4" if row["method"].startswith("qlora") else None, precision="bf16"
        ),
        parallel=Parallel.parse(f"{_KINDS[kind]}:{num_ranks}"),
        measured={_QUANTITIES[row["peak_kind"]]: int(row["peak_bytes"])},
        usable_bytes=_usable_bytes(card, int(num_ranks)),
    )


def _usable_bytes(card: Gpu, num_ranks: int) -> int:
    """Likely bytes that PyTorch could reserve: what drivers of early 2024 reported, less context and NCCL."""
    outside, _ = assumed_context(card.architecture, card.key, (num_ranks,))
    return _TOTAL_MIB.get(card.key, card.total_bytes >> 20) * 2**20 - outside.likely_bytes


def _workload(length: int) -> Workload:
    trained = _Trained(length)
    return Workload(
        build_model=trained.build_model,
        make_batch=trained.make_batch,
        loss=trained.loss,
        optimizer=torch.optim.AdamW,
        name=_NAME,
    )


class _Trained:
    def __init__(self, length: int) -> None:
        self._release = Until437()
        self._length = length
        self._is_prepared = False
        self._llama: Any = None
        self._logits: torch.Tensor | None = None

    def build_model(self) -> nn.Module:
        transformers: Any = imported("transformers", _NAME)
        self._llama = self._release.build(transformers.LlamaConfig(**_CONFIG))
        self._llama.fsdp_options = {"use_orig_params": False, "sync_module_states": True}
        self._llama.enable_input_require_grads()
        made: nn.Module = self._llama
        return made

    def make_batch(self, batch_size: int, device: torch.device) -> dict[str, torch.Tensor]:
        self._logits = None
        shape = (batch_size, self._length)
        return {name: torch.ones(shape, dtype=torch.int64).to(device) for name in ("tokens", "labels")}

    def loss(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if not self._is_prepared:
            self._is_prepared = True
            keep_inputs_of_quantized_layers(model)
            self._checkpoint(model)
        self._logits = logits = self._release.forward(model, self._llama, batch["tokens"]).logits.float()
        shifted, labels = logits[..., :-1, :].contiguous(), batch["labels"][..., 1:].contiguous()
        return cross_entropy(shifted.view(-1, _CONFIG["vocab_size"]), labels.view(-1))

    def _checkpoint(self, model: nn.Module) -> None:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
            CheckpointImpl,
            apply_activation_checkpointing,
            checkpoint_wrapper,
        )

        block = type(self._llama.model.layers[0]._fsdp_wrapped_module)
        apply_activation_checkpointing(
            model,
            checkpoint_wrapper_fn=functools.partial(
                checkpoint_wrapper, checkpoint_impl=CheckpointImpl.REENTRANT
            ),
            check_fn=lambda module: isinstance(module, block),
        )


TABLE = Table(
    name="fsdp_qlora",
    read=read,
    asked={"reserved on its card": (0.04, 0.12), "allocated peak": (0.04, 0.12)},
)
