"""transformers' Trainer: LoRA by peft, bfloat16 weights and autocast, checkpointing, clipped gradients."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

NUM_TOKENS = 512


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        tokens = torch.full((NUM_TOKENS,), index)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


config = AutoConfig.from_pretrained(Path(__file__).with_name("config.json"))
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
model.enable_input_require_grads()
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
    bf16=True,
    gradient_checkpointing=True,
    report_to=[],
    save_strategy="no",
)
Trainer(model=model, args=arguments, train_dataset=Texts()).train()
