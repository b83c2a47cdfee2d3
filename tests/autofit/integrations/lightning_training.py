"""Small trainings of Lightning, as users write them; as a program, one of two ranks on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autofit_workers.workload.libraries.importing import without_missing_operators

with without_missing_operators():
    import pytorch_lightning as pl


class Squares(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.full((32,), place / 64)


class Small(pl.LightningModule):
    def __init__(self, batch_size: int = 2) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.2), nn.Linear(64, 32))
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, _batch_idx: int) -> torch.Tensor:
        loss = (self.layers(batch) - batch**2).square().mean()
        self.log("loss", loss)
        if self._trainer is not None:
            self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Squares(), batch_size=self.batch_size, shuffle=True)


def small(**arguments: Any) -> Small:
    torch.manual_seed(5)
    return Small(**arguments)


def trainer(folder: Path, *callbacks: pl.Callback, **changes: Any) -> pl.Trainer:
    said: dict[str, Any] = {
        "accelerator": "cpu",
        "max_steps": 4,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
    }
    return pl.Trainer(callbacks=[*callbacks], **{**said, **changes})


if __name__ == "__main__":
    from autofit.integrations.lightning import AutofitBatchSizeFinder

    finder = AutofitBatchSizeFinder(gpu="rtx-3090", max_val=16)
    module = small()
    trained = trainer(Path(sys.argv[1]), finder, devices=2, strategy="ddp")
    trained.fit(module)
    told = f"{module.batch_size} {finder.optimal_batch_size} {finder.found.evidence} {len(module.losses)}"
    (Path(sys.argv[1]) / f"rank{trained.global_rank}").write_text(told)
