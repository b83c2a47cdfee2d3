"""Small trainings of transformers, as users write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from autofit_workers.workload.libraries.importing import without_missing_operators

# torchvision, which transformers imports where it is installed, may be of another build than PyTorch here.
with without_missing_operators():
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

__all__ = ["Texts", "Trainer", "arguments", "padded", "small_gpt2"]


class Texts:
    """Data set of texts of random tokens, of 8 to 16 tokens each."""

    def __init__(self, size: int = 64) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(place)
        length = 8 + place % 9
        return {"tokens": torch.randint(1, 50, (length,), generator=generator), "unused": "text"}


def padded(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    tokens = torch.nn.utils.rnn.pad_sequence([sample["tokens"] for sample in samples], batch_first=True)
    return {"input_ids": tokens, "labels": tokens.masked_fill(tokens == 0, -100)}


def small_gpt2(dropout: float = 0.0, n_embd: int = 32) -> GPT2LMHeadModel:
    torch.manual_seed(5)
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return GPT2LMHeadModel(
        GPT2Config(n_embd=n_embd, n_layer=2, n_head=2, vocab_size=50, n_positions=32, **rates)
    )


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    said: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "per_device_eval_batch_size": 64,
        "max_steps": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 7,
        "remove_unused_columns": False,
    }
    return TrainingArguments(**{**said, **changes})
