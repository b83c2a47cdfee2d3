"""Training script with a loop of Accelerate, in bfloat16 by autocast."""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_model():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()
    accelerator = Accelerator(mixed_precision="bf16")
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(512, 64), torch.randint(10, (512,)))
    loader = DataLoader(data, batch_size=options.batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for samples, labels in loader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(samples), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            accelerator.print(loss.item())
    accelerator.save_state("checkpoint")


if __name__ == "__main__":
    main()
