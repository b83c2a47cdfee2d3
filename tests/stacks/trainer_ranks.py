"""transformers' Trainer on ranks, bfloat16, checkpointing: FSDP2 by `fsdp_config`, ZeRO 3 by `deepspeed`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

NUM_TOKENS = 512
HOW = {
    "fsdp": {
        "fsdp": True,
        "fsdp_config": {
            "fsdp_version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
            "state_dict_type": "SHARDED_STATE_DICT",
        },
        "save_steps": 1,
    },
    "zero": {
        "deepspeed": {
            "zero_optimization": {"stage": 3},
            "bf16": {"enabled": "auto"},
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
        },
        "save_strategy": "no",
    },
}


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
    report_to=[],
    **HOW[sys.argv[-1]],  # DeepSpeed's launcher puts --local_rank before it
)
Trainer(model=model, args=arguments, train_dataset=Texts()).train()
