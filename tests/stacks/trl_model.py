"""What `trl_sft.py` and `trl_dpo.py` train, as workloads: TRL's own head, the adapter by autofit's knobs."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import logsigmoid
from transformers import AutoConfig, AutoModelForCausalLM
from trl.trainer.utils import add_fused_lm_head

import autofit

_NUM_TOKENS, _NUM_OF_PROMPT = 512, 256
_IGNORED = -100  # a label that no loss is made of
_BETA = 0.1


def _build_model(*outputs):
    config = AutoConfig.from_pretrained(Path(__file__).with_name("config.json"))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    add_fused_lm_head(model, outputs=outputs)
    return model


def _batch(shape, device, num_ignored=0):
    tokens = torch.ones((*shape, _NUM_TOKENS), dtype=torch.int64)
    labels = tokens.clone()
    labels[..., :num_ignored] = _IGNORED
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}
    return {name: each.to(device) for name, each in batch.items()}


def _sft_loss(model, batch):
    outputs = model(**batch, use_cache=False, fused_lm_head=True)
    return -outputs.log_probs.sum() / outputs.label_mask.sum()


def _dpo_loss(model, batch):
    rows = {name: each.flatten(0, 1) for name, each in batch.items()}
    chosen, rejected = _log_probs(model, rows).chunk(2)
    with torch.no_grad(), model.disable_adapter():
        chosen_before, rejected_before = _log_probs(model, rows).chunk(2)
    return -logsigmoid(_BETA * ((chosen - chosen_before) - (rejected - rejected_before))).mean()


def _log_probs(model, rows):
    return model(**rows, use_cache=False, fused_lm_head=True).log_probs.sum(dim=1)


sft = autofit.Workload(
    build_model=lambda: _build_model("log_probs", "entropy", "is_top1"),
    make_batch=lambda size, device: _batch((size,), device),
    loss=_sft_loss,
    optimizer="adamw",
)
dpo = autofit.Workload(
    build_model=lambda: _build_model("log_probs"),
    make_batch=lambda size, device: _batch((size, 2), device, _NUM_OF_PROMPT),
    loss=_dpo_loss,
    optimizer="adamw",
)
