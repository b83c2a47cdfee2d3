"""Training script in plain PyTorch, as many write it, which does not use autofit."""

import argparse
import json
import math
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 64, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=int(os.environ.get("BATCH", "8")))
    parser.add_argument("--out", default="run")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(0)
        print(torch.cuda.device_count(), properties.name, properties.total_memory)
    data = TensorDataset(torch.randn(512, 3, 16, 16), torch.randint(10, (512,)))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, pin_memory=device.type == "cuda")
    os.makedirs(args.out, exist_ok=True)
    with open(f"{args.out}/args.json", "w") as file:
        json.dump(vars(args), file)
    model = make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(4):
        total, correct = 0.0, 0
        for number, (images, labels) in enumerate(loader, 1):
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            optimizer.zero_grad()
            output = model(images)
            loss = criterion(output, labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
            correct += (output.argmax(1) == labels).sum().item()
            if not math.isfinite(loss.item()) or torch.isnan(loss):
                raise SystemExit("the loss is not finite")
            print(f"{epoch} {loss.item():.4f} {total / number:.3f} {100 * correct / 512:.1f}")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "model.pt")


if __name__ == "__main__":
    main()
