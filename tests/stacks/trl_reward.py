"""TRL's RewardTrainer: a preferred text and another one, one score each."""

from __future__ import annotations

from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from texts import tokenizer
from transformers import AutoConfig, AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer

config = AutoConfig.from_pretrained(Path(__file__).with_name("config.json"), num_labels=1, pad_token_id=0)
model = AutoModelForSequenceClassification.from_config(config, dtype=torch.bfloat16)
texts = {"chosen": ["a " * 511] * 64, "rejected": ["a " * 511] * 64}
arguments = RewardConfig(
    "out",
    per_device_train_batch_size=8,
    bf16=True,
    gradient_checkpointing=True,
    max_length=512,
    report_to=[],
    save_strategy="no",
)
RewardTrainer(
    model=model,
    args=arguments,
    train_dataset=Dataset.from_dict(texts),
    processing_class=tokenizer(),
    peft_config=LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="SEQ_CLS"),
).train()
