"""transformers' Trainer on ranks: FSDP2 by `fsdp_config`, bfloat16, checkpointing, a sharded checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

NUM_TOKENS = 512


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        tokens = torch.full((NUM_TOKENS,), index)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


config = AutoConfig.from_pretrained(Path(__file__).with_name("config.json"))
model = AutoModelForCausalLM.from_config(config)
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=4,
    bf16=True,
    gradient_checkpointing=True,
    deepspeed={
        "zero_optimization": {"stage": 3},
        "bf16": {"enabled": "auto"},
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    },
    report_to=[],
    save_strategy="no",
)
Trainer(model=model, args=arguments, train_dataset=Texts()).train()
