"""fms_acceleration.csv: the same fine-tuning on two A100, sharded by FullyShardedDataParallel.

Source: as of `fms_acceleration`; how ranks share the work is in `scripts/benchmarks/accelerate.yaml`, what
accelerate 1.0.1 (0.34.2 of PowerLM, 0.33.0 of the padded rows) and Trainer make of it in their sources:
- FULL_SHARD; each block is a unit (`_no_split_modules`), and with an adapter each layer without parts whose
  weight is trained (`Trainer._fsdp_qlora_plugin_updates` takes peft's `fsdp_auto_wrap_policy`).
- BACKWARD_PRE prefetches in backward, nothing does in forward; all-gathers are limited (the default);
  `use_orig_params` (the default of its launcher); nothing is offloaded. Weights are loaded on the CPU of the
  first rank and synced (`sync_module_states`) before the step that is counted.
- With bf16 or fp16 the policy casts parameters, sums of gradients and buffers to it, beside autocast; without
  it is none, and weights, sums and the optimizer's states are of the type of the checkpoint.
- Rows of padded texts accumulate two batches, the first without reducing gradients (`no_sync`).
- Blocks are checkpointed by transformers, outside of their units: a unit is gathered and freed in the forward
  pass that runs again.
- Weights of 4 bits are stored as bfloat16, so that they are flattened with the rest; neither TRL nor the
  plugin turns norms into float32 then, and both kinds of rows measured the same.

The peak is rank 0's. Packed rows have the batch of a rank; rows of padded texts, whose longest batch is not
known, are traced for full fine-tuning alone, as those of one GPU.
"""

from __future__ import annotations

import csv
import functools
import itertools
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autofit.hardware.budget import budget_of
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import Parallel
from autofit_workers.workload.workload import Workload
from tests.bench.language import fms_acceleration as fms
from tests.bench.language.runs import Run, Table


def read(folder: Path) -> list[Run]:
    """The rows of several GPUs, without kernels of the plugins."""
    with (folder / fms.FILE).open(encoding="utf-8", newline="") as file:
        rows = [(row, fms.more_of(row)) for row in csv.DictReader(file)]
    return [_run(row, more) for row, more in rows if _is_traced(row, more)]


def _is_traced(row: dict[str, str], more: dict[str, str]) -> bool:
    if not row["parallel"].startswith("fsdp1") or more.get("framework_config") not in fms.FRAMEWORKS:
        return False
    if fms.name_of(row) not in fms.MODELS or row["peak_kind"] != "max_allocated" or row["fit"] != "yes":
        return False
    return not (row["source"].endswith(fms.PADDED) and row["method"] != "full")


def _run(row: dict[str, str], more: dict[str, str]) -> Run:
    name = fms.name_of(row)
    model = fms.MODELS[name]
    base, _, autocast = row["precision"].partition(" + ")
    half = {"bfloat16": "bf16", "float16": "fp16"}[base]
    is_quantized = row["method"].startswith("qlora")
    adapter = None if row["method"] == "full" else f"lora:r=16,alpha=16,dropout=0.1,targets={model.targets}"
    is_padded = row["source"].endswith(fms.PADDED)
    length = int(row["seq_len"]) if is_padded else model.length
    return Run(
        table=TABLE.name,
        name=f"{row['source'].rpartition('/')[2]} {more['row']} {name} {row['method']} "
        f"{more['framework_config']} {row['parallel']}",
        group=row["method"],
        make=functools.partial(
            _workload,
            model,
            length,
            has_adapter=adapter is not None,
            casts_to=half if autocast else None,
            num_passes=_ACCUMULATED if is_padded else 1,
        ),
        batch_size=int(row["batch_size"]),
        architecture=fms.CARD.architecture,
        knobs=Knobs(
            grad_accumulation=_ACCUMULATED if is_padded else 1,
            adapter=adapter,
            base="nf4-dq" if is_quantized else half,
            precision=f"amp-{half}" if autocast else "fp32",
            attention="fa2",
            clip_grad_norm=fms.MOST_NORM,
        ),
        parallel=Parallel.parse(row["parallel"]),
        measured={"allocated peak": int(row["peak_bytes"])},
        usable_bytes=budget_of(fms.CARD, margin=0).usable_bytes,
    )


_ACCUMULATED = 2
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def _workload(
    model: fms.Model, length: int, *, has_adapter: bool, casts_to: str | None, num_passes: int
) -> Workload:
    return Workload(
        build_model=functools.partial(_build, model, has_adapter=has_adapter, casts_to=casts_to),
        make_batch=functools.partial(fms.packed, length=length),
        loss=_Loss(model, has_autocast=casts_to is not None, num_passes=num_passes),
        optimizer=torch.optim.AdamW,
        name=model.config,
    )


def _build(model: fms.Model, *, has_adapter: bool, casts_to: str | None) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecision

    made: Any = fms.build(model, has_adapter=has_adapter)
    made.fsdp_options = {"sync_module_states": True}
    if casts_to is not None:
        dtype = _DTYPES[casts_to]
        casts = MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype)
        made.fsdp_options["mixed_precision"] = casts
    module: nn.Module = made
    return module


class _Loss(fms.Loss):
    """Trainer's forward pass of a model that is wrapped."""

    def __init__(self, model: fms.Model, *, has_autocast: bool, num_passes: int) -> None:
        super().__init__(norms_in=torch.bfloat16, has_autocast=has_autocast, cached=model.cached)
        self._passes = itertools.cycle(range(1, num_passes + 1))
        self._num_passes = num_passes

    def __call__(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        is_last = next(self._passes) == self._num_passes
        for unit in model.fsdp_modules(model):  # what `no_sync` does until it is left
            unit._sync_gradients = is_last
        # What FullyShardedDataParallel casts is no reason for autofit to use autocast too; Trainer does.
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self._has_autocast):
            return super().__call__(model, batch)

    def prepare(self, model: nn.Module) -> None:
        """Lets blocks be checkpointed outside of their units, as the releases that ran did."""
        self.keep_cached(model)
        lists = [each for each in model.modules() if isinstance(each, nn.ModuleList)]
        for blocks in lists:
            for index, unit in enumerate(blocks):
                block = getattr(unit, "_fsdp_wrapped_module", None)
                if getattr(block, "gradient_checkpointing", False):
                    block.gradient_checkpointing = False
                    blocks[index] = _Checkpointed(unit)


class _Checkpointed(nn.Module):
    def __init__(self, unit: nn.Module) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(functools.partial(self.unit, **kwargs), *args, use_reentrant=True)


TABLE = Table(name="fms_fsdp", read=read, asked={"allocated peak": (0.04, 0.12)})
