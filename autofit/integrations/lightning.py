"""Batch size finder for Lightning, in the place of its own, and of `Tuner.scale_batch_size`."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any

from autofit.errors import UsageError, WorkloadFailedError
from autofit.integrations.finding import (
    MAX_TRIALS,
    FoundBatch,
    UnreadableTrainerError,
    find_batch,
    reading_trainer,
)
from autofit.integrations.frameworks import framework
from autofit_workers.workload.workload import Workload

if TYPE_CHECKING:
    from autofit_workers.workload.live.models import EmptyModel

# Lightning has two names, whose classes differ: that which the user's program imported counts.
_NAMES = sorted(("pytorch_lightning", "lightning.pytorch"), key=lambda name: name not in sys.modules)
_lightning = framework(*_NAMES, install="pytorch-lightning")
_BatchSizeFinder = importlib.import_module(f"{_lightning.__name__}.callbacks").BatchSizeFinder

_PRECISIONS = {"32-true": "fp32", "16-mixed": "amp-fp16", "bf16-mixed": "amp-bf16", "bf16-true": "bf16"}
_PARALLEL = {"SingleDeviceStrategy": "", "DDPStrategy": "ddp", "FSDPStrategy": "fsdp"}

_log = logging.getLogger(__name__)


class AutofitBatchSizeFinder(_BatchSizeFinder):  # type: ignore[misc, valid-type]
    """Callback that sets the largest batch size that fits, in the place of Lightning's `BatchSizeFinder`.

    The size is predicted from the module, its data loader and its optimizer, and tried by real steps in
    processes of their own where the device is in this machine. The module that trains runs no step for it, so
    that its weights, optimizers and random numbers stay as they are. Under DDP and FSDP every rank gets the
    answer of rank 0.

        >>> Trainer(callbacks=[AutofitBatchSizeFinder()]).fit(module, datamodule=data)

    If the module cannot be predicted, a warning says why and Lightning's own search runs, which tries sizes
    on the module itself; so it does for `validate`, `test` and `predict`.

    Args:
        mode: `binsearch` for the largest size, `power` for `init_val` doubled as often as possible.
        steps_per_trial: steps of a trial in Lightning's own search; ours has a warm-up and three.
        init_val: size that `power` doubles, and the first of Lightning's own search.
        max_trials: most sizes that are tried.
        batch_arg_name: attribute of the module, its hyperparameters or its data module that is set.
        max_val: largest batch size.
        options: options of `autofit.tune`: `gpu` or `gpu_mem`, else this machine's card; on the CPU
            `gpu_mem` is the memory that the training may use; `margin`, `risk`, ….

    Attributes:
        optimal_batch_size: size that was set.
        found: what was found, with its evidence; None before, and after Lightning's own search.
    """

    def __init__(
        self,
        mode: str = "binsearch",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = MAX_TRIALS,
        batch_arg_name: str = "batch_size",
        *,
        max_val: int = 8192,
        **options: Any,
    ) -> None:
        if mode.lower() not in self.SUPPORTED_MODES:
            raise UsageError(f"mode must be one of {', '.join(self.SUPPORTED_MODES)}; got {mode!r}")
        super().__init__(mode, steps_per_trial, init_val, max_trials, batch_arg_name, max_val=max_val)
        self.found: FoundBatch | None = None
        self._options = options
        self._build: EmptyModel | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str | None = None) -> None:
        parsing = importlib.import_module(f"{_lightning.__name__}.utilities.parsing")
        if not parsing.lightning_hasattr(pl_module, self._batch_arg_name):
            raise UsageError(
                f"neither the module, its hyperparameters nor its data module have an attribute "
                f"{self._batch_arg_name!r}: let the data loader take its batch size from one, and name it "
                "with batch_arg_name"
            )
        if stage != "fit":
            super().setup(trainer, pl_module, stage)
            return
        if not trainer.fit_loop._data_source.is_module():  # noqa: SLF001 - as Lightning's own finder does
            raise UsageError(
                "a data loader was given to fit(), whose batch size is fixed: make it in train_dataloader() "
                "of the module or of a LightningDataModule"
            )
        if parallel_of(trainer) == "fsdp":  # its strategy shards the module before the search begins
            self._build = _empty(pl_module)

    def scale_batch_size(self, trainer: Any, pl_module: Any) -> None:
        if trainer.state.fn != "fit" or trainer.fast_dev_run:
            super().scale_batch_size(trainer, pl_module)
            return
        from autofit_workers.workload.live.batches import random_numbers_kept
        from autofit_workers.workload.live.steps import from_rank_0

        parsing = importlib.import_module(f"{_lightning.__name__}.utilities.parsing")
        with random_numbers_kept():
            trainer.fit_loop.setup_data()

        def found_here() -> FoundBatch | str:
            try:
                workload, limits = self._workload(trainer, pl_module)
                return find_batch(workload, max_trials=self._max_trials, **{**limits, **self._options})
            except (UnreadableTrainerError, WorkloadFailedError) as error:
                return error.message

        found = from_rank_0(found_here)
        if isinstance(found, str):
            self._search_by_lightning(trainer, pl_module, found)
            return
        self.found = found
        _log.info("autofit: %s", found.in_words())
        self.optimal_batch_size = self._rounded(found.batch_size)
        parsing.lightning_setattr(pl_module, self._batch_arg_name, self.optimal_batch_size)
        self._let_loaders_be_made_anew(trainer)
        if self._early_exit:
            exceptions = importlib.import_module(f"{_lightning.__name__}.utilities.exceptions")
            raise exceptions._TunerExitException  # noqa: SLF001 - ends `Trainer.fit` before it trains

    def _search_by_lightning(self, trainer: Any, pl_module: Any, why: str) -> None:
        if trainer.world_size > 1:
            raise UsageError(f"the batch size of several ranks can only be predicted, but {why}")
        _log.warning("autofit: Lightning's own search tries sizes on the module itself, as %s", why)
        super().scale_batch_size(trainer, pl_module)

    @staticmethod
    def _let_loaders_be_made_anew(trainer: Any) -> None:
        """Leaves it to the fit loop to make the loaders, which draws random numbers at its usual time."""
        loop = trainer.fit_loop
        loop._combined_loader = loop.epoch_loop.val_loop._combined_loader = None  # noqa: SLF001 - as its search

    def _rounded(self, batch_size: int) -> int:
        if self._mode != "power" or batch_size < self._init_val:
            return batch_size
        return int(self._init_val << ((batch_size // self._init_val).bit_length() - 1))

    def _workload(self, trainer: Any, pl_module: Any) -> tuple[Workload, dict[str, Any]]:
        """Workload like the module's training, and the options of `tune` that its trainer sets."""
        from autofit_workers.workload.live.batches import LikeBatches
        from autofit_workers.workload.live.steps import LikeOptimizer, loss_of_training_step

        limits = _limits(trainer)
        loaders = trainer.fit_loop._combined_loader.flattened  # noqa: SLF001 - no public name
        if len(loaders) != 1 or not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
            raise UnreadableTrainerError(
                "only a module with one data loader, one optimizer and automatic optimization is predicted"
            )
        with reading_trainer():
            workload = Workload(
                build_model=self._build or _empty(pl_module),
                make_batch=LikeBatches(loaders[0].dataset, loaders[0].collate_fn),
                loss=loss_of_training_step,
                optimizer=LikeOptimizer.alike(trainer.optimizers[0], pl_module),
                name=type(pl_module).__name__,
            )
        most = max(1, len(loaders[0].dataset) // trainer.world_size)
        if "gpu" in self._options:  # another device than that of this trainer
            limits.pop("device", None)
        return workload, {"max_batch": min(self._max_val, most), **limits}


def scale_batch_size(trainer: Any, model: Any, *, datamodule: Any = None, **options: Any) -> int | None:
    """Sets the largest batch size that fits, in the place of Lightning's `Tuner(trainer).scale_batch_size`.

    Args:
        trainer: Trainer that will train the module.
        model: LightningModule.
        datamodule: its LightningDataModule, if it has one.
        options: arguments of `AutofitBatchSizeFinder`.

    Returns:
        The size that was set.

    Raises:
        UsageError: there is no attribute for the size, no card is known, or no batch fits.
    """
    finder = AutofitBatchSizeFinder(**options)
    finder._early_exit = True  # noqa: SLF001 - as Lightning's Tuner does
    trainer.callbacks = [finder, *trainer.callbacks]
    try:
        trainer.fit(model, datamodule=datamodule)
    finally:
        trainer.callbacks = [callback for callback in trainer.callbacks if callback is not finder]
    size: int | None = finder.optimal_batch_size
    return size


def parallel_of(trainer: Any) -> str:
    """Kind of parallelism of a trainer's strategy, `ddp` or `fsdp`; empty for one device.

    Raises:
        UsageError: the strategy is another.
    """
    name = type(trainer.strategy).__name__
    if name not in _PARALLEL:
        raise UsageError(
            f"the strategy {name} is not followed: use one device, DDP or FSDP, or ask `autofit tune "
            "--script` for the script as it is started"
        )
    return _PARALLEL[name]


def _empty(pl_module: Any) -> EmptyModel:
    from autofit_workers.workload.live.models import EmptyModel
    from autofit_workers.workload.live.steps import TrainingStep

    if getattr(pl_module, "_compiler_ctx", None) is not None:
        raise UsageError("the module is compiled already: find its batch size before torch.compile")
    with reading_trainer():
        return EmptyModel(pl_module, left_out=(_lightning.Trainer,), prepare=TrainingStep)


def _limits(trainer: Any) -> dict[str, Any]:
    """Options of `tune` for a trainer's precision, clipping, ranks and device."""
    if trainer.precision not in _PRECISIONS:
        raise UnreadableTrainerError(f"the precision {trainer.precision} is not predicted")
    limits: dict[str, Any] = {"precision": _PRECISIONS[trainer.precision]}
    if trainer.gradient_clip_val and trainer.gradient_clip_algorithm in (None, "norm"):
        limits["clip_grad_norm"] = float(trainer.gradient_clip_val)
    if (kind := parallel_of(trainer)) and trainer.world_size > 1:
        limits["parallel"] = f"{kind}:{trainer.world_size}"
    if trainer.strategy.root_device.type == "cpu":
        limits["device"] = "cpu"
    return limits
