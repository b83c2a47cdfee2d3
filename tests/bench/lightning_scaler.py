"""Lightning's `scale_batch_size` on a workload of ours; `peers.py` runs this in Lightning's environment.

Prints one JSON document: the size that it returned or the error it ended with, and the sizes that it ran.
The limit is the kernel's, as for a trial on the CPU. Nothing of Lightning is changed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "workers"))  # autofit is not installed where Lightning is

from autofit_workers.spec.workloads.references import parse_reference
from autofit_workers.trials.measure.cpu import data_limit
from autofit_workers.workload.libraries.importing import without_missing_operators
from autofit_workers.workload.optimizers import make_optimizers
from autofit_workers.workload.workload import Optimizers, Workload, resolve

with without_missing_operators():  # of a torchvision that is there for CUDA, beside a torch for CPUs
    import pytorch_lightning as pl
    from pytorch_lightning.tuner import Tuner


class Batches(torch.utils.data.IterableDataset):
    """Batches without end, made as a trial makes them: no copy by a collating loader."""

    def __init__(self, workload: Workload, batch_size: int) -> None:
        self._workload = workload
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self._workload.make_batch(self._batch_size, torch.device("cpu"))


class Module(pl.LightningModule):
    """The workload as Lightning wants it.

    Attributes:
        tried: the batch size of every run that Lightning began.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.batch_size = 2
        self.tried: list[int] = []
        self._workload = workload
        self.model = workload.build_model()

    def on_train_start(self) -> None:
        self.tried.append(self.batch_size)

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        return self._workload.loss(self.model, batch)

    def configure_optimizers(self) -> Optimizers:
        return make_optimizers(self._workload, self.model)

    def train_dataloader(self) -> torch.utils.data.DataLoader:
        return torch.utils.data.DataLoader(Batches(self._workload, self.batch_size), batch_size=None)


def main() -> None:
    """Scales the batch size with Lightning's own defaults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--optimizer", required=True)
    parser.add_argument("--mode", required=True, choices=("power", "binsearch"))
    parser.add_argument("--budget-bytes", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    workload = dataclasses.replace(resolve(parse_reference(options.model)), optimizer=options.optimizer)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="cpu",
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        size = error = None
        module = Module(workload)
        with data_limit(options.budget_bytes):
            try:
                size = Tuner(trainer).scale_batch_size(module, mode=options.mode)
            except Exception as failure:  # noqa: BLE001 - how Lightning ends is what is reported
                error = f"{type(failure).__name__}: {str(failure).splitlines()[0] if str(failure) else ''}"
        print(json.dumps({"batch_size": size, "error": error, "tried": module.tried}))


if __name__ == "__main__":
    main()
