# train_setup.py
import autofit, torch
from torch import nn

workload = autofit.Workload(
    build_model=lambda: nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 10)),
    make_batch=lambda n, gpu: (torch.randn(n, 1024, device=gpu), torch.randint(10, (n,), device=gpu)),
    loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
    optimizer="adamw",
)
