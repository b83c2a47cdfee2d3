"""One finder of batch sizes on one training, under a limit on this process's memory; `peers.py` starts it.

Prints one JSON document: the size that was found or the error, and the sizes that really ran. `verify` runs
steps at a given size with the trainer itself. The limit is the kernel's (`RLIMIT_DATA`), as for a trial of
autofit on the CPU. A finder of autofit is told the limit instead, and its trials are processes of their own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from trained import TRAININGS, Batch, Training, optimizer_of

from autofit_workers.trials.measure.cpu import data_limit
from autofit_workers.workload.libraries.importing import without_missing_operators

NUM_STEPS = 3  # of a try, as Lightning's `steps_per_trial`
START = 720  # first size of those that only shrink; it has many divisors, as the samples of a step stay


@dataclass
class Tried:
    """What a finder found.

    Attributes:
        sizes: sizes that really ran, in their order.
        num_tries: number of sizes that autofit tried in processes of their own, where it is a finder of it.
    """

    batch_size: int | None = None
    sizes: list[int] = field(default_factory=list)
    num_tries: int | None = None


# ── Lightning ────────────────────────────────────────────────────────────────


def _lightning() -> Any:
    import pytorch_lightning

    return pytorch_lightning


def _module(training: Training, tried: Tried, batch_size: int = 2) -> Any:
    class Module(_lightning().LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = batch_size
            self.model = training.build()

        def on_train_start(self) -> None:
            tried.sizes.append(self.batch_size)

        def training_step(self, batch: Batch, _place: int) -> Any:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return optimizer_of(self.parameters())

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(training.samples, batch_size=self.batch_size)

    return Module()


def _lightning_trainer(folder: str) -> Any:
    silent: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return _lightning().Trainer(
        accelerator="cpu",
        max_steps=NUM_STEPS,
        default_root_dir=folder,
        enable_checkpointing=False,
        **silent,
    )


def lightning_of_its_own(mode: str) -> Callable[..., None]:
    def find(training: Training, tried: Tried, folder: str, **_: Any) -> None:
        from pytorch_lightning.tuner.tuning import Tuner

        module = _module(training, tried)
        tried.batch_size = Tuner(_lightning_trainer(folder)).scale_batch_size(module, mode=mode)

    return find


def lightning_by_autofit(
    training: Training, tried: Tried, folder: str, *, limit_bytes: int, **_: Any
) -> None:
    _lightning()  # under the name that this program imports
    from autofit.integrations.lightning import AutofitBatchSizeFinder

    finder = AutofitBatchSizeFinder(gpu_mem=str(limit_bytes))
    finder._early_exit = True  # as `scale_batch_size` does, which hides what was found
    trainer = _lightning_trainer(folder)
    trainer.callbacks = [finder, *trainer.callbacks]
    trainer.fit(_module(training, tried))
    tried.batch_size, tried.num_tries = (
        finder.optimal_batch_size,
        finder.found.num_trials if finder.found else 0,
    )


def lightning_verified(training: Training, tried: Tried, folder: str, *, size: int, **_: Any) -> None:
    _lightning_trainer(folder).fit(_module(training, tried, size))
    tried.batch_size = size


# ── transformers ─────────────────────────────────────────────────────────────


def _arguments(folder: str, batch_size: int, **more: Any) -> Any:
    from transformers import TrainingArguments

    silent: dict[str, Any] = {
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
    }
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=batch_size,
        max_steps=NUM_STEPS,
        use_cpu=True,
        max_grad_norm=0.0,
        remove_unused_columns=False,
        **silent,
        **more,
    )


def _train(training: Training, arguments: Any, tried: Tried) -> int:
    """Trains with transformers' Trainer; returns the batch size that it ended with."""
    from transformers import Trainer, TrainerCallback

    class Noted(TrainerCallback):
        def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            tried.sizes.append(state.train_batch_size)

    trainer = Trainer(
        model=training.build(),
        args=arguments,
        train_dataset=training.samples,
        data_collator=torch.utils.data.default_collate,
        callbacks=[Noted()],
    )
    trainer.train()
    return int(trainer.state.train_batch_size or 0)


def transformers_of_its_own(training: Training, tried: Tried, folder: str, **_: Any) -> None:
    tried.batch_size = _train(training, _arguments(folder, START, auto_find_batch_size=True), tried)


def transformers_by_autofit(
    training: Training, tried: Tried, folder: str, *, limit_bytes: int, **_: Any
) -> None:
    arguments = _arguments(folder, START)
    from autofit.integrations.transformers import fit

    fitted = fit(
        arguments,
        training.build(),
        training.samples,
        data_collator=torch.utils.data.default_collate,
        loss=_loss,
        device="cpu",
        gpu_mem=str(limit_bytes),
    )
    tried.batch_size = arguments.per_device_train_batch_size
    tried.num_tries = fitted.found.num_trials if fitted.found else 0


def transformers_verified(training: Training, tried: Tried, folder: str, *, size: int, **_: Any) -> None:
    tried.batch_size = _train(training, _arguments(folder, size), tried)


# ── Accelerate ───────────────────────────────────────────────────────────────


def _loss(model: torch.nn.Module, batch: Batch) -> Any:
    return model(**batch)["loss"]


def _loop(training: Training, tried: Tried) -> Callable[[int], int]:
    """Training loop as the decorators take it; it returns the batch size that it ran with."""

    def train(batch_size: int) -> int:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        model = training.build()
        loader = torch.utils.data.DataLoader(training.samples, batch_size=batch_size)
        model, optimizer, loader = accelerator.prepare(model, optimizer_of(model.parameters()), loader)
        tried.sizes.append(batch_size)
        for _, batch in zip(range(NUM_STEPS), loader, strict=False):
            optimizer.zero_grad()
            accelerator.backward(_loss(model, batch))
            optimizer.step()
        return batch_size

    return train


def accelerate_of_its_own(training: Training, tried: Tried, _folder: str, **_: Any) -> None:
    from accelerate.utils import find_executable_batch_size

    tried.batch_size = find_executable_batch_size(starting_batch_size=START)(_loop(training, tried))()


def accelerate_by_autofit(
    training: Training, tried: Tried, _folder: str, *, limit_bytes: int, **_: Any
) -> None:
    from autofit import Workload
    from autofit.integrations.accelerate import find_executable_batch_size

    workload = Workload(
        build_model=training.build, make_batch=training.batch, loss=_loss, optimizer=optimizer_of
    )
    # The decorator predicts for cards alone; on the CPU sizes are tried.
    on_the_cpu = {"device": "cpu", "probe": "measure", "conv_algo": "onednn", "dispatch": "inline"}
    decorate = find_executable_batch_size(
        workload=workload, gpu_mem=str(limit_bytes), max_batch=START, max_trials=2, **on_the_cpu
    )
    with data_limit(limit_bytes):
        tried.batch_size = decorate(_loop(training, tried))()


def accelerate_verified(training: Training, tried: Tried, _folder: str, *, size: int, **_: Any) -> None:
    tried.batch_size = _loop(training, tried)(size)


FINDERS: dict[str, Callable[..., None]] = {
    "lightning-power": lightning_of_its_own("power"),
    "lightning-binsearch": lightning_of_its_own("binsearch"),
    "lightning-autofit": lightning_by_autofit,
    "lightning-verify": lightning_verified,
    "transformers-own": transformers_of_its_own,
    "transformers-autofit": transformers_by_autofit,
    "transformers-verify": transformers_verified,
    "accelerate-own": accelerate_of_its_own,
    "accelerate-autofit": accelerate_by_autofit,
    "accelerate-verify": accelerate_verified,
}


def main() -> None:
    """Runs a finder, and prints what it found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("finder", choices=FINDERS)
    parser.add_argument("training", choices=TRAININGS)
    parser.add_argument("--limit-bytes", type=int, required=True)
    parser.add_argument("--size", type=int, help="that `verify` runs")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    tried, error = Tried(), None
    is_told = options.finder.endswith("-autofit")
    with tempfile.TemporaryDirectory() as folder:
        # Of a torchvision that is there for CUDA, beside a torch for CPUs.
        with without_missing_operators(), nullcontext() if is_told else data_limit(options.limit_bytes):
            try:
                FINDERS[options.finder](
                    TRAININGS[options.training],
                    tried,
                    folder,
                    limit_bytes=options.limit_bytes,
                    size=options.size,
                )
            except Exception as failure:  # noqa: BLE001 - how a finder ends is what is reported
                error = f"{type(failure).__name__}: {str(failure).splitlines()[0] if str(failure) else ''}"
                tried.batch_size = None
        print(json.dumps({"error": error, **vars(tried)}))


if __name__ == "__main__":
    main()
