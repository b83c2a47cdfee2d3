"""Models and steps of the example scripts, written as workloads."""

import torch
from torch import nn

from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.workload import Workload

CLASSES = 10


def _clipped_step(loss):
    def step(model, optimizer, batch):
        optimizer.zero_grad()
        loss(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def _cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def _samples(*shape):
    def make_batch(batch_size, device):
        return torch.randn(batch_size, *shape).to(device), torch.randint(CLASSES, (batch_size,)).to(device)

    return make_batch


def plain():
    from plain import make_model

    kept = []

    def step(model, optimizer, batch):
        optimizer.zero_grad()
        kept[:] = [output := model(batch[0])]  # as the script's variable is, until the next overwrites it
        loss = nn.functional.cross_entropy(output, batch[1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        (output.argmax(1) == batch[1]).sum()

    return Workload(
        build_model=make_model,
        make_batch=_samples(3, 16, 16),
        loss=_cross_entropy,
        step=step,
        optimizer="adamw",
    )


def trainer():
    imported("transformers", "the script's model")
    from trainer import LENGTH, VOCABULARY, make_model

    def make_batch(batch_size, device):
        tokens = torch.randint(VOCABULARY, (batch_size, LENGTH))
        return {"input_ids": tokens.to(device), "labels": tokens.clone().to(device), "use_cache": False}

    def loss(model, batch):
        return model(**batch).loss

    return Workload(
        build_model=make_model,
        make_batch=make_batch,
        loss=loss,
        step=_clipped_step(loss),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True),
    )


def lightning_fit():
    imported("pytorch_lightning", "the script's model")
    from lightning_fit import make_model

    return Workload(build_model=make_model, make_batch=_samples(64), loss=_cross_entropy, optimizer="adam")


def accelerated():
    from accelerated import make_model

    def loss(model, batch):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(batch[0])
        return nn.functional.cross_entropy(output.float(), batch[1])

    return Workload(
        build_model=make_model,
        make_batch=_samples(64),
        loss=loss,
        step=_clipped_step(loss),
        optimizer="adamw",
    )
