"""Callback for the Trainer of transformers, and `fit`, which sets its batch size before training."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit.errors import UsageError, WorkloadFailedError
from autofit.integrations.finding import FoundBatch, UnreadableTrainerError, find_batch, reading_trainer
from autofit.integrations.frameworks import framework
from autofit.questions.real_runs.observed_run import RunPeaks
from autofit.training.observed import RunObserver
from autofit_workers.spec.protocol import Evidence
from autofit_workers.workload.workload import Workload

_transformers = framework("transformers", install="transformers")
_LAST_ENTRY = "train_runtime"

_log = logging.getLogger(__name__)


class AutofitCallback(_transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    """Callback that observes the peaks of a training of transformers' Trainer, for `autofit observe FILE`.

        >>> callback = AutofitCallback("run.json", workload="train.py:workload")
        >>> trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[callback])
        >>> callback.log_to(trainer)

    It reads peak statistics and resets none, so that the training is the same as without it.

    Args:
        file: file to write at the end, of schema `autofit.observed-run/1`; None for none.
        workload: workload that is trained, as `--model` takes it.

    Attributes:
        observer: observer of the latest training; None before any.
    """

    def __init__(self, file: str | Path | None = "autofit-run.json", *, workload: str | None = None) -> None:
        self.observer: RunObserver | None = None
        self._file = file
        self._workload = workload
        self._trainer: Any = None

    def log_to(self, trainer: Any) -> None:
        """Logs the peaks by a trainer too, at its end and after each evaluation.

        They go where the trainer logs (W&B, MLflow, TensorBoard, …), as `autofit/reserved_gib` and the like.
        """
        self._trainer = trainer

    def on_train_begin(self, args: Any, _state: Any, _control: Any, **kwargs: Any) -> None:
        self.observer = RunObserver(
            kwargs["model"],
            kwargs.get("optimizer"),
            workload=self._workload,
            batch_size=args.per_device_train_batch_size,
            knobs=_knobs(args),
        )

    def on_step_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        if self.observer is not None:
            self.observer.note()

    def on_log(self, _args: Any, _state: Any, _control: Any, **kwargs: Any) -> None:
        # The Trainer's last entry. After a step, an entry of ours would take the place of that of its loss.
        if self.observer is not None and _LAST_ENTRY in kwargs.get("logs", {}):
            self._show("", self.observer.run.peaks)

    def on_evaluate(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        if self.observer is None:
            return
        self.observer.note(of_evaluation=True)
        peaks = self.observer.run.evaluation
        if peaks is not None:
            self._show("evaluation_", peaks)

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        if self.observer is None:
            return
        self.observer.close()
        if self._file is not None:
            self.observer.write(self._file)

    def _show(self, start: str, peaks: RunPeaks) -> None:
        if self._trainer is None:
            return
        found = {
            f"autofit/{start}{name}_gib": num_bytes / 2**30
            for name in ("allocated", "reserved", "device", "resident")
            if (num_bytes := getattr(peaks, f"{name}_bytes")) is not None
        }
        if found:
            self._trainer.log(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Batch sizes that `fit` has set, with what was found.

    Attributes:
        per_device_train_batch_size, gradient_accumulation_steps, per_device_eval_batch_size: values of the
            arguments now.
        found: what was found; None if nothing could be found, and all is as before.
        notes: sentences for the user.
    """

    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    per_device_eval_batch_size: int
    found: FoundBatch | None
    notes: tuple[str, ...]


def fit(
    args: Any,
    model: Any,
    train_dataset: Any,
    *,
    data_collator: Callable[[list[Any]], Any] | None = None,
    processing_class: Any = None,
    loss: Callable[[Any, Any], Any] | None = None,
    **options: Any,
) -> Fitted:
    """Sets the largest batch size that fits in training arguments, before their Trainer is made.

    `per_device_train_batch_size` is set together with `gradient_accumulation_steps`, so that the samples of
    an optimizer step stay the same. An evaluation's batches are made no larger than those that were tried
    beside the optimizer's states. The size is predicted, and tried by real steps in processes of their own
    where the device is in this machine, at most twice. The model, the learning rate, the scheduler and all
    random numbers stay as they are.

        >>> fit(args, model, train_dataset, data_collator=collator)
        >>> Trainer(model=model, args=args, train_dataset=train_dataset, data_collator=collator).train()

    If the data can only be read in order, or a step cannot be predicted, nothing is set; a warning and
    `notes` say why, and how transformers can search while it trains.

    Args:
        args: `TrainingArguments`, which are changed.
        model: model that is trained; it is only read.
        train_dataset: data set with `__getitem__`; the largest of 256 of its samples decides.
        data_collator: the Trainer's; None for the one that the Trainer takes.
        processing_class: the Trainer's, for that collator.
        loss: `loss(model, batch)`, for a Trainer that computes its own; None for the model's.
        options: options of `autofit.tune`: `gpu="rtx-3090"` or `gpu_mem="16G"`, else this machine's card;
            `device="cpu"` with `gpu_mem` for training on the CPU; `margin`, `risk`, ….

    Returns:
        The values that are set, and what was found. Every rank gets those of rank 0.

    Raises:
        UsageError: the model is compiled or sharded already, an option is wrong, or no batch fits.
    """
    from autofit_workers.workload.live.models import require_whole
    from autofit_workers.workload.live.steps import from_rank_0

    _require_followed(args)
    with reading_trainer():
        require_whole(model)
    per_rank = args.per_device_train_batch_size * args.gradient_accumulation_steps

    def found_here() -> tuple[FoundBatch | None, tuple[str, ...]]:
        said = {**_knobs(args), **_samples(per_rank, args.world_size), **options}
        try:
            collate = _collator(args, model, data_collator, processing_class)
            workload, notes = _workload(args, model, train_dataset, collate, loss)
            found = dividing(find_batch(workload, **said), per_rank)
        except (UnreadableTrainerError, WorkloadFailedError) as error:
            return None, (
                f"the batch size stays {args.per_device_train_batch_size}, as nothing could be predicted: "
                f"{error.message}. TrainingArguments(auto_find_batch_size=True) lets transformers try "
                "smaller sizes while it trains, without keeping the samples of a step",
            )
        return found, (*notes, *found.notes)

    found, notes = from_rank_0(found_here)
    if found is None:
        _log.warning("autofit: %s", notes[0])
    else:
        args.per_device_train_batch_size = found.batch_size
        args.gradient_accumulation_steps = per_rank // found.batch_size
        args.per_device_eval_batch_size = min(args.per_device_eval_batch_size, found.batch_size)
        _log.info("autofit: %s", found.in_words())
    return Fitted(
        per_device_train_batch_size=args.per_device_train_batch_size,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        per_device_eval_batch_size=args.per_device_eval_batch_size,
        found=found,
        notes=notes,
    )


def _samples(per_rank: int, num_ranks: int) -> dict[str, Any]:
    """Options of `tune` for the samples that each rank takes for an optimizer step."""
    if num_ranks > 1:  # a global batch is one of a single process
        return {"parallel": f"ddp:{num_ranks}", "max_batch": per_rank}
    return {"global_batch": per_rank}


def dividing(found: FoundBatch, num_samples: int) -> FoundBatch:
    """Found batch, made smaller where the samples of a step cannot be divided into such batches."""
    size = max(each for each in range(1, found.batch_size + 1) if num_samples % each == 0)
    if size == found.batch_size:
        return dataclasses.replace(found, grad_accumulation=num_samples // size)
    note = (
        f"batch {found.batch_size} fits; {size} is the largest below it that divides the {num_samples} "
        "samples of a step"
    )
    return dataclasses.replace(
        found,
        batch_size=size,
        grad_accumulation=num_samples // size,
        evidence=Evidence.PREDICTED,
        notes=(note, *found.notes),
    )


def _require_followed(args: Any) -> None:
    for name, what in (("deepspeed", "DeepSpeed"), ("fsdp", "FSDP"), ("torch_compile", "torch.compile")):
        if getattr(args, name, None):
            raise UsageError(
                f"the arguments switch on {what}, which fit() does not follow: ask `autofit tune --script` "
                "for the script as it is started"
            )
    if args.n_gpu > 1:
        raise UsageError(
            f"the Trainer would spread each batch over {args.n_gpu} GPUs by DataParallel: start a process "
            "for each with torchrun, or name one with CUDA_VISIBLE_DEVICES"
        )


def _workload(
    args: Any, model: Any, dataset: Any, collate: Any, loss: Any
) -> tuple[Workload, tuple[str, ...]]:
    """Workload like a Trainer's, and a note on the samples that were looked at."""
    from autofit_workers.workload.live.batches import LikeBatches
    from autofit_workers.workload.live.models import EmptyModel
    from autofit_workers.workload.live.steps import Checkpointed, LikeOptimizer, loss_of_transformers

    prepare = Checkpointed(args.gradient_checkpointing_kwargs) if args.gradient_checkpointing else None
    make, arguments = _transformers.Trainer.get_optimizer_cls_and_kwargs(args, model)
    with reading_trainer():
        batches = LikeBatches(dataset, collate)
        workload = Workload(
            build_model=EmptyModel(model, prepare=prepare),
            make_batch=batches,
            loss=loss or loss_of_transformers,
            optimizer=LikeOptimizer(make, (((), {}),), arguments),
            name=type(model).__name__,
        )
    return workload, (f"the largest of {batches.num_seen} of {len(dataset)} samples was taken for all",)


def _collator(args: Any, model: Any, collator: Any, processing_class: Any) -> Any:
    """Collator as the Trainer calls it: by default its own, without columns that the model does not take."""
    from transformers.trainer_utils import RemoveColumnsCollator

    if collator is None:
        collator = (
            _transformers.default_data_collator
            if processing_class is None
            else _transformers.DataCollatorWithPadding(processing_class)
        )
    if not args.remove_unused_columns:
        return collator
    taken = [*inspect.signature(model.forward).parameters, "label", "label_ids", *(args.label_names or ())]
    return RemoveColumnsCollator(collator, taken)


def _knobs(args: Any) -> dict[str, Any]:
    """Knobs that training arguments set, by name."""
    knobs: dict[str, Any] = {}
    if args.bf16 or args.fp16:
        knobs["precision"] = "amp-bf16" if args.bf16 else "amp-fp16"
    if args.max_grad_norm:
        knobs["clip_grad_norm"] = args.max_grad_norm
    return knobs
