"""What `torchtune_full.yaml` trains, as a workload: torchtune's own model, loss and checkpointing."""

from __future__ import annotations

import torch
from torchtune import training
from torchtune.models.llama3 import llama3
from torchtune.modules import TransformerSelfAttentionLayer
from torchtune.modules.loss import CEWithChunkedOutputLoss

import autofit

_NUM_TOKENS = 512  # to which the recipe's texts are cut
_criterion = CEWithChunkedOutputLoss()


def _build_model():
    model = llama3(
        vocab_size=128_256,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        embed_dim=256,
        max_seq_len=1024,
        intermediate_dim=704,
    )
    training.set_activation_checkpointing(model, auto_wrap_policy={TransformerSelfAttentionLayer})
    model.set_num_output_chunks(_criterion.num_output_chunks)
    return model


def _make_batch(batch_size, device):
    return torch.zeros(2, batch_size, _NUM_TOKENS, dtype=torch.long, device=device)


def _loss(model, batch):
    tokens, labels = batch
    logits = model(tokens=tokens)
    ignored = torch.full((labels.shape[0], 1), _criterion.ignore_index, device=labels.device)
    return _criterion(logits, torch.hstack((labels[..., 1:], ignored)))


workload = autofit.Workload(build_model=_build_model, make_batch=_make_batch, loss=_loss, optimizer="adamw")
