"""llm_foundry_fits.csv: MPT models that were trained by FullyShardedDataParallel, and so did fit.

Source: mosaicml/llm-foundry at 8c8dd48f, Apache-2.0: `scripts/train/benchmarking/README.md` and
`submit_benchmarks.py`, `scripts/train/yamls/pretrain/mpt-*.yaml`, `llmfoundry/models/mpt/`; what Composer
makes of `fsdp_config` is in its `distributed/dist_strategy.py`:
- each block is a unit; BACKWARD_POST prefetches in backward; gathers are limited (`limit_all_gathers`);
- DEFAULT casts parameters to bfloat16 and sums gradients in float32, PURE does both in bfloat16, beside
  autocast; of a step of several batches each is summed over the ranks;
- blocks are checkpointed without re-entering; gradients are clipped by norm.

The model is written here as plain PyTorch, for llm-foundry wants Composer: blocks of two norms in low
precision, attention of one product for query, key and value, and a GELU network of four times the width, all
with biases; learned positions; a head that is the embedding. The parameters are as many as the table says.
The loss is flash-attn's, which keeps the logits as they are. Composer's optimizer is taken as AdamW, one
parameter after the other.

No run says how much it took: what is asked is that none is said not to fit. Of each model, card, number of
GPUs and way to keep memory low the row with the most tokens is taken. Not traced: rows in 8 bits, whose
layers are Transformer Engine's, and those that offload activations.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from autofit.hardware.budget import budget_of
from autofit.hardware.gpus import find_gpu
from autofit.hardware.nccl import communicator_interval
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import Parallel
from autofit_workers.workload.workload import Workload
from tests.bench.language.runs import Run, Table

FILE = "llm/llm_foundry_fits.csv"
_CARDS = {"a100_40gb": "a100-40g", "a100_80gb": "a100-80g", "h100_80gb": "h100-80g"}
_KINDS = {"fsdp1-FULL_SHARD": "fsdp1", "fsdp1-SHARD_GRAD_OP": "fsdp1+grad-op"}
_REDUCED_IN = {"DEFAULT": torch.float32, "PURE": torch.bfloat16}
_VOCABULARY = 50368
_EXPANSION = 4


class Shape(NamedTuple):
    """Of `mpt-*.yaml`."""

    width: int
    num_heads: int
    num_layers: int


MODELS = {
    "MPT 125m": Shape(768, 12, 12),
    "MPT 350m": Shape(1024, 16, 24),
    "MPT 760m": Shape(1536, 12, 24),
    "MPT 1b": Shape(2048, 16, 24),
    "MPT 3b": Shape(2560, 20, 32),
    "MPT 7b": Shape(4096, 32, 32),
    "MPT 13b": Shape(5120, 40, 40),
    "MPT 30b": Shape(7168, 56, 48),
    "MPT 70b": Shape(8192, 64, 80),
}


def read(folder: Path) -> list[Run]:
    """The rows with the most tokens."""
    most: dict[tuple[str, ...], dict[str, str]] = {}
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if "fp8" in row["precision"] or "act_cpu_offload=True" in row["other"]:
                continue
            key = tuple(row[name] for name in ("model", "gpu", "parallel", "checkpointing", "precision"))
            if key not in most or _num_tokens(row) > _num_tokens(most[key]):
                most[key] = row
    return [_run(row) for row in most.values()]


def _num_tokens(row: dict[str, str]) -> tuple[int, int]:
    return int(row["batch_size"]) * int(row["seq_len"]), int(row["seq_len"])


def _run(row: dict[str, str]) -> Run:
    kind, _, num_ranks = row["parallel"].partition(":")
    card = find_gpu(_CARDS[row["gpu"]])
    of_nccl = communicator_interval(int(num_ranks), card.architecture).likely_bytes
    more = dict(pair.split("=", 1) for pair in row["other"].split("; "))
    checkpointing = "blocks" if row["checkpointing"] == "True" else "none"
    return Run(
        table=TABLE.name,
        name=f"{row['model']} {row['gpu']} {row['parallel']} batch {row['batch_size']} of {row['seq_len']} "
        f"tokens, checkpointing {checkpointing}, {row['precision']}",
        group=row["model"],
        make=functools.partial(
            _workload,
            MODELS[row["model"]],
            int(row["seq_len"]),
            reduced_in=_REDUCED_IN[row["precision"].split()[-1]],
            num_parameters=int(more["params"]),
        ),
        batch_size=int(row["batch_size"]),
        architecture=card.architecture,
        knobs=Knobs(
            checkpointing=checkpointing,
            grad_accumulation=int(more["grad_accum"]),
            clip_grad_norm=1.0,
        ),
        parallel=Parallel.parse(f"{_KINDS[kind]}:{num_ranks}"),
        usable_bytes=budget_of(card, margin=0).usable_bytes - of_nccl,
    )


def _workload(shape: Shape, length: int, *, reduced_in: torch.dtype, num_parameters: int) -> Workload:
    return Workload(
        build_model=functools.partial(_build, shape, length, reduced_in, num_parameters),
        make_batch=functools.partial(_tokens, length=length),
        loss=_loss,
        optimizer=functools.partial(torch.optim.AdamW, foreach=False),
        name=f"MPT, {shape}",
    )


def _build(shape: Shape, length: int, reduced_in: torch.dtype, num_parameters: int) -> nn.Module:
    from torch.distributed.fsdp import BackwardPrefetch, MixedPrecision

    model: Any = Mpt(shape, length)
    found = sum(each.numel() for each in model.parameters())
    assert found == num_parameters, f"{found} parameters, and the table says {num_parameters}"
    model.fsdp_options = {
        "mixed_precision": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=reduced_in),
        "backward_prefetch": BackwardPrefetch.BACKWARD_POST,
        "limit_all_gathers": True,
    }
    made: nn.Module = model
    return made


def _tokens(batch_size: int, device: torch.device, *, length: int) -> Tensor:
    return torch.zeros(batch_size, length, dtype=torch.int64).to(device)


def _loss(model: nn.Module, tokens: Tensor) -> Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(tokens)
    targets = tokens.roll(-1)
    losses: Tensor = CrossEntropy.apply(logits.view(-1, _VOCABULARY), targets.view(-1))
    return losses.sum() / targets.numel()


class Norm(nn.LayerNorm):
    """A norm in the type of autocast."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Of what comes, its weight and its bias, all in that type."""
        given = (each.to(torch.bfloat16) for each in (hidden, self.weight, self.bias))
        with torch.autocast("cuda", enabled=False):
            hidden, weight, bias = given
            return functional.layer_norm(hidden, self.normalized_shape, weight, bias, self.eps)


class Block(nn.Module):
    """Attention and a network behind it, each added to what it is given."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.num_heads = shape.num_heads
        self.norm_1, self.norm_2 = Norm(width), Norm(width)
        self.products, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, _EXPANSION * width), nn.Linear(_EXPANSION * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Of a batch's tokens."""
        batch, length, width = hidden.shape
        query, key, value = (
            each.view(batch, length, self.num_heads, -1).transpose(1, 2)
            for each in self.products(self.norm_1(hidden)).chunk(3, dim=2)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        output: Tensor = hidden + self.down(functional.gelu(self.up(self.norm_2(hidden))))
        return output


class Mpt(nn.Module):
    """The model, whose head is its embedding."""

    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_VOCABULARY, shape.width)
        self.positions = nn.Embedding(length, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = Norm(shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of a batch's tokens."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            hidden = block(hidden)
        return functional.linear(self.norm(hidden), self.tokens.weight)


class CrossEntropy(torch.autograd.Function):
    """What flash-attn's kernel keeps and makes, see its `losses/cross_entropy.py`; values are none."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        """A loss for each row."""
        sums = torch.empty(logits.shape[0], device=logits.device)
        ctx.save_for_backward(logits, sums, targets)
        return torch.empty_like(sums)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None]:
        """Gradients of the logits, in their type."""
        del gradients
        return torch.empty_like(ctx.saved_tensors[0]), None


TABLE = Table(name="llm_foundry", read=read, asked={})
