"""TRL's DPOTrainer: LoRA by peft; a preferred text and another one are two rows of a sample."""

from __future__ import annotations

from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from texts import tokenizer
from transformers import AutoConfig, AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

config = AutoConfig.from_pretrained(Path(__file__).with_name("config.json"))
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
texts = {"prompt": ["a " * 256] * 64, "chosen": ["a " * 255] * 64, "rejected": ["a " * 255] * 64}
arguments = DPOConfig(
    "out",
    per_device_train_batch_size=8,
    bf16=True,
    gradient_checkpointing=True,
    max_length=512,
    report_to=[],
    save_strategy="no",
)
lora = LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
DPOTrainer(
    model=model,
    args=arguments,
    train_dataset=Dataset.from_dict(texts),
    processing_class=tokenizer(),
    peft_config=lora,
).train()
