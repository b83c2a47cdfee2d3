"""peft.csv: one language model, fine-tuned by every method of the library peft, on one card.

Source: huggingface/peft, `method_comparison/MetaMathQA/run.py` and `results/`, Apache-2.0. What each
experiment told its method stands in `peft_experiments.json`: the options of its `adapter_config.json` that
are not peft's defaults.

The loop: batches of 4 of texts of unlike length, right-padded; base weights in bfloat16, adapters in
float32, no autocast, AdamW, gradients clipped; the outputs of a step, with its logits and its cache of keys
and values, live until the next one. `reserved_p99` is the 99th percentile of what was reserved after a step,
with the cache emptied every tenth: the longest batches of a bucket come first, so it is what a long step
leaves that finds the cache empty, with a shorter one after it. `allocated_after_step_avg` is linear in the
length, so it belongs to the mean one.

The texts themselves are not had here. So two lengths stand for all rows: `LONG` and `MEAN` tokens.
"""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from autofit_workers.spec.knobs import Knobs
from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.workload import Workload
from tests.bench.language.runs import Run, Table, by_rules

FILE = "llm/peft.csv"
_BATCH_SIZE = 4
_TORCH = "2.13"  # rows of other releases are not traced
_ARCHITECTURE = "sm_89"  # of the L40S
_AT_THE_START_BYTES = 2 * 2**20  # reserved before the model is there, which the table leaves out

# Tokens of a batch; fitted to the medians of all rows together.
LONG, MEAN = 541, 220
_NEXT = 0.85  # how long the batch after the longest one of a bucket of 20 is
_MODEL = "meta-llama/Llama-3.2-3B"
_CONFIG: dict[str, Any] = {
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
}


def read(folder: Path) -> list[Run]:
    """The rows of PyTorch 2.13 and that model, each twice: for what it reserved, and for what it kept."""
    experiments = json.loads(Path(__file__).with_name("peft_experiments.json").read_text(encoding="utf-8"))
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if _is_traced(row)]
    return [run for row in rows for run in _runs(row, experiments)]


def _is_traced(row: dict[str, str]) -> bool:
    return row["model"] == _MODEL and row["torch_version"].startswith(_TORCH)


def _runs(row: dict[str, str], experiments: dict[str, Any]) -> Iterator[Run]:
    more = dict(pair.split("=", 1) for pair in row["other"].split("; "))
    adapter = experiments[more["experiment"]].get("adapter")
    told = json.dumps(adapter) if isinstance(adapter, dict) else adapter
    name = f"{more['experiment']} {more['blob']}"
    for quantity, lengths, measured_bytes in (
        (
            "reserved after long steps",
            (MEAN, LONG, int(LONG * _NEXT)),
            int(float(more["reserved_p99"])) + _AT_THE_START_BYTES,
        ),
        ("allocated after a step", (MEAN,) * 3, int(float(more["allocated_after_step_avg"]))),
    ):
        yield Run(
            table="peft",
            name=name,
            group=row["method"],
            make=functools.partial(
                _workload, lengths, checkpointed=row["checkpointing"] == "True", method=row["method"]
            ),
            batch_size=_BATCH_SIZE,
            architecture=_ARCHITECTURE,
            # All in bfloat16 where the adapter is not cast to float32.
            knobs=Knobs(
                adapter=told,
                base="bf16",
                precision="fp32" if more["autocast_adapter_dtype"] == "True" else "bf16",
            ),
            measured={quantity: measured_bytes},
            others=by_rules(
                num_weights=int(more["total"]),
                num_trained=int(more["trainable"]),
                weight_bytes=2,
                tokens=_BATCH_SIZE * max(lengths),
                hidden=_CONFIG["hidden_size"],
                num_layers=_CONFIG["num_hidden_layers"],
            ),
        )


def _workload(lengths: tuple[int, ...], *, checkpointed: bool, method: str) -> Workload:
    return Workload(
        build_model=functools.partial(_model, checkpointed=checkpointed),
        make_batch=_padded_batches(lengths),
        loss=_no_loss,
        optimizer=torch.optim.AdamW,
        step=_Step(allocates_ranks=method == "adalora"),
        name=_MODEL,
    )


def _model(*, checkpointed: bool) -> torch.nn.Module:
    transformers: Any = imported("transformers", _MODEL)
    model: Any = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**_CONFIG))
    if checkpointed:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
    made: torch.nn.Module = model
    return made


def _padded_batches(lengths: tuple[int, ...]) -> Callable[[int, torch.device], dict[str, torch.Tensor]]:
    """Batches of these lengths, one for each step, of which all texts but one have padding at their end."""
    left = iter(lengths)

    def make_batch(batch_size: int, device: torch.device) -> dict[str, torch.Tensor]:
        shape = (batch_size, next(left))
        tokens, mask = torch.ones(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.int64)
        mask[1:, -1] = 0
        return {
            "input_ids": tokens.to(device),
            "attention_mask": mask.to(device),
            "labels": tokens.to(device).clone(),
        }

    return make_batch


def _no_loss(_model: torch.nn.Module, _batch: Any) -> torch.Tensor:
    raise NotImplementedError("the step makes its own")


class _Step:
    """The loop's step: outputs and loss live until the next one.

    Args:
        allocates_ranks: whether the method chooses anew after each step where its ranks go.
    """

    def __init__(self, *, allocates_ranks: bool) -> None:
        self._allocates_ranks = allocates_ranks
        self._num_steps = 0
        self._outputs: Any = None
        self._loss: torch.Tensor | None = None

    def __call__(self, model: Any, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> None:
        self._num_steps += 1
        optimizer.zero_grad()
        self._outputs = model(**batch, num_items_in_batch=batch["input_ids"].numel())
        self._loss = self._outputs.loss
        self._loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if self._allocates_ranks:
            model.base_model.update_and_allocate(self._num_steps)


TABLE = Table(
    name="peft",
    read=read,
    asked={"reserved after long steps": (0.02, 0.05), "allocated after a step": (0.005, 0.015)},
)
