"""A training script as people write it, with its batch size as an argument."""

import argparse
import os

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def network() -> nn.Module:
    """A small convolutional classifier of 64×64 images."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.BatchNorm2d(128),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def main() -> None:
    """Trains on random images; under torchrun, each process its share of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    rank, num_ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    model: nn.Module = network().to(device)
    images = TensorDataset(torch.randn(2048, 3, 64, 64), torch.randint(10, (2048,)))
    sampler = None
    if num_ranks > 1:
        torch.distributed.init_process_group("nccl")
        model = DistributedDataParallel(model, device_ids=[rank])
        sampler = DistributedSampler(images)
    loader = DataLoader(images, options.batch_size, shuffle=sampler is None, sampler=sampler, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(options.epochs):
        for batch, labels in loader:
            loss = nn.functional.cross_entropy(model(batch.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
