"""TRL's SFTTrainer: LoRA by peft, bfloat16 weights and autocast, checkpointing."""

from __future__ import annotations

from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from texts import tokenizer
from transformers import AutoConfig, AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

config = AutoConfig.from_pretrained(Path(__file__).with_name("config.json"))
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
texts = Dataset.from_dict({"text": ["a " * 600] * 64})
arguments = SFTConfig(
    "out",
    per_device_train_batch_size=8,
    bf16=True,
    gradient_checkpointing=True,
    max_length=512,
    report_to=[],
    save_strategy="no",
)
lora = LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
SFTTrainer(
    model=model, args=arguments, train_dataset=texts, processing_class=tokenizer(), peft_config=lora
).train()
