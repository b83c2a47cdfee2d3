"""transformers' Trainer that evaluates with a larger batch and saves, after each of its steps."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        tokens = torch.full((128,), index)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


smaller = {**json.loads(Path(__file__).with_name("config.json").read_text()), "num_hidden_layers": 2}
model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**smaller), dtype=torch.bfloat16)
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=4,
    per_device_eval_batch_size=256,
    eval_strategy="steps",
    eval_steps=1,
    save_steps=1,
    bf16=True,
    report_to=[],
)
Trainer(model=model, args=arguments, train_dataset=Texts(), eval_dataset=Texts()).train()
