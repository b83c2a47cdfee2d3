"""Callback for the Trainer of Composer (mosaicml), which sets the size of its microbatches."""

from __future__ import annotations

import logging
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
    from autofit_workers.workload.live.batches import LikeBatches

_composer = framework("composer", install="mosaicml")

_PRECISIONS = {"fp32": "fp32", "amp_fp16": "amp-fp16", "amp_bf16": "amp-bf16"}

_log = logging.getLogger(__name__)


class AutofitMicrobatches(_composer.Callback):  # type: ignore[misc, name-defined]
    """Callback that sets `device_train_microbatch_size` to the largest size that fits, before training.

    Composer splits each batch of the data loader into microbatches of this size and accumulates their
    gradients, so that the samples of an optimizer step stay the same. The size is predicted from the model,
    its data loader and its optimizer, and tried by real steps in processes of their own where the device is
    in this machine. The model that trains runs no step for it. The whole batch of the data loader, which
    Composer keeps on the device meanwhile, is counted. Under DDP every rank gets the answer of rank 0.

        >>> Trainer(model=model, train_dataloader=loader, optimizers=optimizer, max_duration="1ep",
        ...         callbacks=[AutofitMicrobatches()]).fit()

    If a step cannot be predicted, a warning says why, and the size stays as it is. With
    `device_train_microbatch_size="auto"` Composer still halves the size where memory runs out.

    Args:
        max_trials: most sizes that are tried.
        options: options of `autofit.tune`: `gpu` or `gpu_mem`, else this machine's card; on the CPU
            `gpu_mem` is the memory that the training may use; `margin`, `risk`, ….

    Attributes:
        found: what was found, with its evidence; None before, and where nothing could be predicted.
    """

    def __init__(self, max_trials: int = MAX_TRIALS, **options: Any) -> None:
        self.found: FoundBatch | None = None
        self._max_trials = max_trials
        self._options = options

    def fit_start(self, state: Any, _logger: Any) -> None:
        """Sets the size; Composer calls it at the beginning of `Trainer.fit`."""
        from autofit_workers.workload.live.steps import from_rank_0

        _require_followed(state)

        def found_here() -> FoundBatch | str:
            try:
                workload, limits = _workload(state)
                return find_batch(workload, max_trials=self._max_trials, **_joined(limits, self._options))
            except (UnreadableTrainerError, WorkloadFailedError) as error:
                return error.message

        found = from_rank_0(found_here)
        if isinstance(found, str):
            _log.warning(
                "autofit: the microbatch stays %s, as nothing could be predicted: %s",
                state.device_train_microbatch_size, found,
            )  # fmt: skip
            return
        self.found = found
        state.device_train_microbatch_size = found.batch_size
        _log.info("autofit: %s", found.in_words())


def _require_followed(state: Any) -> None:
    if state.fsdp_enabled:
        raise UsageError(
            "the Trainer shards the model by FSDP, which AutofitMicrobatches does not follow: ask `autofit "
            "tune --script` for the script as it is started"
        )
    size = getattr(state.train_dataloader, "batch_size", None)
    if not isinstance(size, int):
        raise UsageError(
            f"the data loader ({type(state.train_dataloader).__name__}) does not say its batch size: give a "
            "DataLoader of PyTorch with batch_size"
        )


def _workload(state: Any) -> tuple[Workload, dict[str, Any]]:
    """Workload like the Trainer's, and the options of `tune` that the Trainer sets."""
    from autofit_workers.workload.live.batches import LikeBatches
    from autofit_workers.workload.live.models import EmptyModel
    from autofit_workers.workload.live.steps import LikeOptimizer, loss_of_composer

    if len(state.optimizers) != 1:
        raise UnreadableTrainerError("only a training with one optimizer is predicted")
    loader = state.train_dataloader
    num_ranks = _composer.utils.dist.get_world_size()
    model = state.model.module if num_ranks > 1 else state.model  # DDP has wrapped it already
    with reading_trainer():
        batches = LikeBatches(loader.dataset, loader.collate_fn)
        workload = Workload(
            build_model=EmptyModel(model, left_out=(_composer.Logger, _composer.State, _composer.Trainer)),
            make_batch=batches,
            loss=loss_of_composer,
            optimizer=LikeOptimizer.alike(state.optimizers[0], model),
            name=type(model).__name__,
        )
    return workload, _limits(state, batches, num_ranks)


def _limits(state: Any, batches: LikeBatches, num_ranks: int) -> dict[str, Any]:
    """Options of `tune` for precision, clipping, ranks and device, and for the batch that Composer keeps."""
    precision = str(getattr(state.precision, "value", state.precision))
    if precision not in _PRECISIONS:
        raise UnreadableTrainerError(f"the precision {precision} is not predicted")
    per_rank = state.train_dataloader.batch_size
    limits: dict[str, Any] = {"precision": _PRECISIONS[precision], "reserve": batches.num_bytes(per_rank)}
    for each in state.algorithms:
        if type(each).__name__ == "GradientClipping" and each.clipping_type == "norm":
            limits["clip_grad_norm"] = float(each.clipping_threshold)
    if num_ranks > 1:  # a global batch is one of a single process
        limits |= {"parallel": f"ddp:{num_ranks}", "max_batch": per_rank}
    else:
        limits["global_batch"] = per_rank
    if state.device.name == "cpu":
        limits["device"] = "cpu"
    return limits


def _joined(limits: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Options of the trainer and the user's own, which count where both say something."""
    if "gpu" in options:  # another device than that of this trainer
        limits = {name: value for name, value in limits.items() if name != "device"}
    return {**limits, **options}
