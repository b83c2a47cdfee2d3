"""vidur_llm_ops_fp16.csv.gz: how long the operators of language models take to infer, in float16.

Source: microsoft/vidur, `data/profiling/compute`, made by `vidur/profiling/mlp`: the kernels' own durations
as PyTorch's profiler records them, summed over an operator, of a block under tensor parallelism without its
collectives; medians of 20 runs. `attn_pre_proj` is the product with queries, keys and values at once,
`mlp_up_proj` makes gate and up together. `input_layernorm`, `attn_rope` and a gated `mlp_act` are vLLM's own
kernels (RMSNorm, rotary embedding and SiLU of half of the columns by the other half).
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autofit_workers.spec.work import Operand, Work

FILE = "time/vidur_llm_ops_fp16.csv.gz"
_LAYER_NORM_MODELS = ("microsoft/phi-2",)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """One operator at one number of tokens.

    Attributes:
        operator: as the table names it.
        card: `a100` (80 GB), `h100` or `a40`.
        num_tokens: of the batch.
        num_workers: over which tensors are split.
        works: what is run.
        seconds: that its kernels take.
    """

    operator: str
    card: str
    model: str
    num_tokens: int
    num_workers: int
    works: tuple[Work, ...]
    seconds: float


def read(folder: Path) -> list[OperatorRow]:
    """All operators of all rows; runs that are repeated stand for themselves."""
    with gzip.open(folder / FILE, "rt", encoding="utf-8", newline="") as file:
        return [row for line in csv.DictReader(file) for row in _rows(line)]


def _rows(line: dict[str, str]) -> Iterator[OperatorRow]:
    for operator, works in _works(line).items():
        milliseconds = line[f"time_stats.{operator}.median"]
        if milliseconds:
            yield OperatorRow(
                operator=operator,
                card=line["gpu"],
                model=line["model"],
                num_tokens=int(line["num_tokens"]),
                num_workers=int(line["num_tensor_parallel_workers"]),
                works=works,
                seconds=float(milliseconds) * 1e-3,
            )


def _works(line: dict[str, str]) -> dict[str, tuple[Work, ...]]:
    tokens, workers = int(line["num_tokens"]), int(line["num_tensor_parallel_workers"])
    width, wide = int(line["n_embd"]), int(line["n_expanded_embd"])
    heads, kv_heads = int(line["n_head"]), int(line["n_kv_head"])
    gated = line["use_gated_mlp"] == "True"
    head = width // heads
    queries, keys = heads // workers * head, kv_heads // workers * head
    made = (2 if gated else 1) * wide // workers
    hidden, middle = _operand(tokens, width), _operand(tokens, wide // workers)
    has_layer_norm = line["model"] in _LAYER_NORM_MODELS
    if has_layer_norm:
        statistic = _operand(tokens, 1)
        norm = Work(
            "aten.native_layer_norm",
            (hidden, _operand(width), _operand(width)),
            (hidden, statistic, statistic),
        )
    else:
        norm = Work("_C.rms_norm", (hidden, _operand(width)), (hidden,))
    places = Operand((tokens,), "int64")
    table = _operand(int(line["vocab_size"]) // workers, width)
    both = (_operand(tokens, queries), _operand(tokens, keys))
    add = Work("aten.add", (hidden, hidden), (hidden,))
    return {
        "emb": (Work("aten.embedding", (table, places), (hidden,)),),
        "input_layernorm": (norm,),
        "post_attention_layernorm": (norm,),
        "attn_pre_proj": (_product(tokens, width, queries + 2 * keys),),
        "attn_rope": (Work("_C.rotary_embedding", both, both),),
        "attn_post_proj": (_product(tokens, queries, width),),
        "mlp_up_proj": (_product(tokens, width, made),),
        "mlp_act": (Work("_C.silu_and_mul" if gated else "aten.gelu", (_operand(tokens, made),), (middle,)),),
        "mlp_down_proj": (_product(tokens, wide // workers, width),),
        "add": (add, add) if has_layer_norm else (add,),  # attention and MLP beside each other
    }


def _product(rows: int, inner: int, columns: int) -> Work:
    return Work("aten.mm", (_operand(rows, inner), _operand(inner, columns)), (_operand(rows, columns),))


def _operand(*shape: int) -> Operand:
    return Operand(shape, "float16")
