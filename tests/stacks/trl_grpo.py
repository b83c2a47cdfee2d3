"""TRL's GRPOTrainer: four samples a prompt by transformers' generate, LoRA by peft, a reward by length."""

from __future__ import annotations

from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from texts import tokenizer
from transformers import AutoConfig, AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer


def lengths(completions, **_others):
    return [float(len(text)) for text in completions]


config = AutoConfig.from_pretrained(Path(__file__).with_name("config.json"))
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
arguments = GRPOConfig(
    "out",
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=64,
    bf16=True,
    gradient_checkpointing=True,
    report_to=[],
    save_strategy="no",
)
GRPOTrainer(
    model=model,
    args=arguments,
    reward_funcs=lengths,
    train_dataset=Dataset.from_dict({"prompt": ["a " * 64] * 64}),
    processing_class=tokenizer(),
    peft_config=LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
).train()
