"""Training script of a small Llama by transformers' Trainer, with Liger's kernels or without."""

from __future__ import annotations

import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Texts(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.full((64,), index)
        return {"input_ids": tokens, "labels": tokens}


model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=32000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
)
arguments = TrainingArguments(
    output_dir="trained",
    per_device_train_batch_size=int(os.environ["BATCH"]),
    max_steps=3,
    report_to=[],
    use_liger_kernel=os.environ.get("KERNELS") == "liger",
)
Trainer(model=model, args=arguments, train_dataset=Texts()).train()
