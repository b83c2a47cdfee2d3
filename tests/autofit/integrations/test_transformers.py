"""transformers' Trainer: its batch size before training, and its peaks while it trains."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autofit.errors import UsageError
from autofit.integrations.finding import FoundBatch
from autofit.questions.real_runs.observed_run import observed_run_in
from autofit_workers.spec.protocol import Evidence
from tests.autofit.integrations.training import Texts, Trainer, arguments, padded, small_gpt2

from autofit.integrations.transformers import AutofitCallback, dividing, fit  # isort: skip - see tests' training.py


def trained(args: Any, model: Any, *callbacks: AutofitCallback, **more: Any) -> Any:
    """Losses of a training, step by step, and all that it logged."""
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Texts(),
        data_collator=padded,
        callbacks=[*callbacks],
        **more,
    )
    for callback in callbacks:
        callback.log_to(trainer)
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row], trainer.state.log_history


def random_states() -> tuple[Any, ...]:
    return random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()


def test_a_training_that_is_observed_has_the_same_losses_and_writes_its_peaks(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    evaluated = {"eval_strategy": "steps", "eval_steps": 2}
    alone, _ = trained(arguments(tmp_path, **evaluated), small_gpt2(dropout=0.1), eval_dataset=Texts(4))
    callback = AutofitCallback(file, workload="train.py:workload")
    observed, history = trained(
        arguments(tmp_path, **evaluated),
        small_gpt2(dropout=0.1),
        callback,
        eval_dataset=Texts(4),
    )
    assert observed == alone
    assert len(alone) == 4
    run = observed_run_in(file)
    assert run is not None
    assert (run.num_steps, run.batch_size, run.workload) == (4, 4, "train.py:workload")
    assert run.knobs == {"clip_grad_norm": 1.0}
    assert run.evaluation is not None
    peak = run.peaks.resident_bytes
    logged = [row["autofit/resident_gib"] for row in history if "autofit/resident_gib" in row]
    assert logged == ([] if peak is None else [pytest.approx(peak / 2**30, rel=0.1)])


@pytest.mark.process
def test_fit_keeps_the_samples_of_a_step_the_losses_and_all_random_numbers(
    tmp_path: Path, state_dir: Path
) -> None:
    args, model = arguments(tmp_path), small_gpt2()
    before = random_states()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fitted = fit(args, model, Texts(), data_collator=padded, device="cpu", gpu_mem="3G")
    assert random_states() == before
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert (fitted.per_device_train_batch_size, fitted.gradient_accumulation_steps) == (16, 1)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (16, 1)
    assert args.per_device_eval_batch_size == 16
    assert args.learning_rate == 1e-2
    assert fitted.found is not None
    assert fitted.found.evidence is Evidence.MEASURED_CPU
    assert fitted.found.num_trials in (1, 2)
    assert "the largest of 64 of 64 samples was taken for all" in fitted.notes
    losses, _ = trained(args, model)
    alone, _ = trained(arguments(tmp_path), small_gpt2())
    assert losses == pytest.approx(alone, rel=1e-3)


@pytest.mark.process
def test_for_a_card_that_is_not_here_the_size_is_predicted(tmp_path: Path, state_dir: Path) -> None:
    args = arguments(tmp_path, per_device_eval_batch_size=2, bf16=True)
    fitted = fit(args, small_gpt2(), Texts(), data_collator=padded, gpu="rtx-3090")
    assert fitted.found is not None
    assert fitted.found.evidence is Evidence.PREDICTED
    assert fitted.found.num_trials == 0
    assert fitted.found.peak_bytes is not None
    assert (args.per_device_train_batch_size, args.per_device_eval_batch_size) == (16, 2)


@pytest.mark.process
def test_where_a_step_does_not_fit_at_once_its_samples_are_accumulated(
    tmp_path: Path, state_dir: Path
) -> None:
    args = arguments(
        tmp_path,
        per_device_train_batch_size=2048,
        gradient_accumulation_steps=2,
        per_device_eval_batch_size=8192,
    )
    fitted = fit(args, small_gpt2(n_embd=256), Texts(), data_collator=padded, gpu_mem="1G")
    size, times = args.per_device_train_batch_size, args.gradient_accumulation_steps
    assert size * times == 4096
    assert times > 1
    assert args.per_device_eval_batch_size == size
    assert fitted.found is not None
    assert fitted.found.grad_accumulation == times


def test_a_size_that_does_not_divide_a_step_gives_way_to_one_that_does() -> None:
    found = FoundBatch(
        batch_size=10, grad_accumulation=1, evidence=Evidence.MEASURED, peak_bytes=None, num_trials=2
    )
    smaller = dividing(found, 48)
    assert (smaller.batch_size, smaller.grad_accumulation) == (8, 6)
    assert smaller.evidence is Evidence.PREDICTED  # it was not tried itself
    assert "batch 10 fits; 8 is the largest below it that divides the 48 samples" in smaller.notes[0]
    assert dividing(found, 50).evidence is Evidence.MEASURED
    assert dividing(found, 50).grad_accumulation == 5


class Stream(torch.utils.data.IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Any:
        return iter(map(Texts().__getitem__, range(64)))


def test_data_that_can_only_be_read_in_order_leave_all_as_it_is_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    args = arguments(tmp_path)
    fitted = fit(args, small_gpt2(), Stream(), data_collator=padded, gpu="rtx-3090")
    assert fitted.found is None
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (4, 4)
    assert "Stream gives its samples in one order only" in fitted.notes[0]
    assert fitted.notes[0] in caplog.text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (torch.compile, "the model is compiled already"),
        (torch.nn.DataParallel, r"spread over ranks already \(DataParallel\)"),
        (lambda _: 3, "int is no model"),
    ],
)
def test_a_model_that_cannot_be_sent_is_one_sentence(tmp_path: Path, change: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        fit(arguments(tmp_path), change(small_gpt2()), Texts(), data_collator=padded, gpu="rtx-3090")
    assert "\n" not in str(raised.value)


def test_arguments_that_shard_or_compile_are_refused(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    args.torch_compile = True
    with pytest.raises(UsageError, match=r"switch on torch.compile, which fit\(\) does not follow"):
        fit(args, small_gpt2(), Texts(), data_collator=padded, gpu="rtx-3090")
