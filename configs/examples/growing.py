"""Keeps the outputs of every step, to score them at the end: memory grows until the card is full."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
outputs = []
for _ in range(100_000):
    inputs, labels = torch.randn(64, 1024).cuda(), torch.randint(1000, (64,)).cuda()
    predicted = model(inputs)
    loss = nn.functional.cross_entropy(predicted, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    outputs.append(predicted)
