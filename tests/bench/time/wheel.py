"""aiconfigurator-core 0.12.0: times of kernels of language models' servers, on ten cards.

Source: NVIDIA's wheel on the Python registry (Apache-2.0, 82 MB), parquet under `systems/data`: vLLM's,
SGLang's and TensorRT-LLM's kernels in milliseconds, which hot caches and short gaps suggest were repeated on
the same tensors in CUDA graphs; collectives of NCCL, whose sizes are in elements. Nothing of it is copied
here: `unpacked` downloads it, reading it wants pyarrow.
"""

from __future__ import annotations

import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit import paths
from autofit_workers.replay.time.collectives import Exchange
from autofit_workers.spec.work import Group, Operand, Work
from tests.bench.time.cards import speeds

NAME, RELEASE = "aiconfigurator-core", "0.12.0"
DATA = "aiconfigurator_core/systems/data"
FITTED = ("a100_sxm", "h100_sxm", "b200_sxm", "rtx_pro_6000_server")
SCORED = ("h200_sxm", "gb200", "b300_sxm", "gb300", "l40s", "b60")
_DTYPES = {"bfloat16": "bfloat16", "fp8": "float8_e4m3fn"}
# Attention by the kernels of one engine, vLLM's: FlashAttention 2, on Hopper 3, on Blackwell TensorRT-
# LLM's. What PyTorch has like them is its operator of FlashAttention 2, and cuDNN's of the others.
_ATTENTION = {
    "a100_sxm": "vllm_flash_attn",
    "h100_sxm": "vllm_flash_attn_fa3",
    "h200_sxm": "vllm_flash_attn_fa3",
    "l40s": "vllm_flash_attn_fa2",
    "rtx_pro_6000_server": "vllm_flash_attn_fa2",
    "b60": "vllm_flash_attn",
}
_BLACKWELL_ATTENTION = "vllm_flashinfer_trtllm"
_OLDER_ATTENTION = ("a100_sxm", "l40s", "rtx_pro_6000_server", "b60")
# What engines do beside a product in fp8: they bring its left matrix into fp8. Seconds whatever its size,
# seconds for each row of it, and its traffic of three bytes an element at the memory's bandwidth, so many
# times. Fitted with the constants of the products in fp8, on the fitted cards.
_BESIDE_FP8 = {
    "sglang": (3.5e-6, 3.8e-10, 2.2),
    "trtllm": (9.9e-6, 2.3e-10, 1.9),
    "vllm": (2.8e-6, 5.6e-9, 3.0),
}
_EXCHANGES = {
    "all_reduce": Exchange.ALL_REDUCE,
    "all_gather": Exchange.ALL_GATHER,
    "reduce_scatter": Exchange.REDUCE_SCATTER,
    "alltoall": Exchange.ALL_TO_ALL,
}
_ELEMENT_BYTES = {"half": 2, "int8": 1, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """One kernel that was timed.

    Attributes:
        system: the card, as the wheel names it.
        kind: `product`, `context` or `generation` of attention, or `collective`.
        group: rows that are scored together: data type, or operation.
        source: whose kernel it is.
        shape: what tells it apart from others of its kind.
        work: as PyTorch would call it; None for collectives.
        exchange, num_ranks, num_bytes: of collectives.
    """

    system: str
    kind: str
    group: str
    source: str
    shape: tuple[int, ...]
    seconds: float
    work: Work | None = None
    exchange: Exchange | None = None
    num_ranks: int = 1
    num_bytes: int = 0

    @property
    def ranks(self) -> Group:
        return Group(self.num_ranks)


def unpacked(folder: Path | None = None) -> Path:
    """Folder of the wheel's tables by card; downloaded and unpacked where no folder is given.

    Raises:
        subprocess.CalledProcessError: pip cannot download it.
    """
    if folder is not None:
        return folder / DATA if (folder / DATA).is_dir() else folder
    kept = paths.state_dir() / "bench-wheels" / f"{NAME}-{RELEASE}"
    if not (kept / DATA).is_dir():
        kept.mkdir(parents=True, exist_ok=True)
        wanted = ("download", "--no-deps", "--only-binary", ":all:", "--python-version", "3.12")
        platform = ("--platform", "manylinux_2_28_x86_64", "--dest", str(kept), f"{NAME}=={RELEASE}")
        subprocess.run([sys.executable, "-m", "pip", *wanted, *platform], check=True, stdout=sys.stderr)
        with zipfile.ZipFile(next(kept.glob("*.whl"))) as wheel:
            wheel.extractall(kept)
    return kept / DATA


def sampled(rows: Sequence[Any], most: int) -> list[Any]:
    """At most so many rows, the same ones each time."""
    return list(rows) if len(rows) <= most else random.Random(0).sample(list(rows), most)


def _tables(folder: Path, system: str, name: str) -> Iterator[tuple[str, Any]]:
    """Engine and table of each file of that name."""
    from pyarrow import parquet  # which no other bench wants

    for path in sorted((folder / system).glob(f"*/*/*/{name}.parquet")):
        yield path.parts[-3], parquet.read_table(path)


def _lines(tables: Iterator[tuple[str, Any]], column: str, value: str, most: int) -> list[tuple[str, Any]]:
    """Engine and line of at most so many lines whose column begins with a value."""
    found = [
        (engine, table, number)
        for engine, table in tables
        for number, each in enumerate(table.column(column).to_pylist())
        if each.startswith(value)
    ]
    return [(engine, table.slice(number, 1).to_pylist()[0]) for engine, table, number in sampled(found, most)]


def products(folder: Path, system: str, most: int) -> list[KernelRow]:
    """Products of matrices in bfloat16 and fp8, at most so many of each data type."""
    tables = list(_tables(folder, system, "gemm_perf"))
    rows = []
    for dtype in _DTYPES:
        lines = _lines(iter(tables), "gemm_dtype", dtype, 2 * most)
        exact = [(engine, line) for engine, line in lines if line["gemm_dtype"] == dtype]
        rows += [_product(system, engine, line) for engine, line in exact[:most]]
    return rows


def beside_seconds(row: KernelRow) -> float:
    """Seconds of what an engine does beside the kernel itself; 0 for what is not in fp8."""
    if row.kind != "product" or row.group != "fp8":
        return 0.0
    m, _, k = row.shape
    start, of_row, times = _BESIDE_FP8[row.source]
    return start + max(m * of_row, 3 * times * m * k / speeds(row.system).bandwidth)


def _product(system: str, engine: str, line: Mapping[str, Any]) -> KernelRow:
    m, n, k = int(line["m"]), int(line["n"]), int(line["k"])
    dtype = _DTYPES[line["gemm_dtype"]]
    inputs = (Operand((m, k), dtype), Operand((k, n), dtype))
    is_fp8 = dtype.startswith("float8")
    operator = "aten._scaled_mm" if is_fp8 else "aten.mm"
    return KernelRow(
        system=system,
        kind="product",
        group=line["gemm_dtype"],
        source=engine,
        shape=(m, n, k),
        seconds=float(line["latency"]) * 1e-3,
        work=Work(operator, inputs, (Operand((m, n), "bfloat16" if is_fp8 else dtype),)),
    )


def attention(folder: Path, system: str, most: int) -> list[KernelRow]:
    """Attention in bfloat16 by vLLM's kernels, at most so many of prompts and of generation."""
    wanted = _ATTENTION.get(system, _BLACKWELL_ATTENTION)
    rows: list[KernelRow] = []
    for kind in ("context", "generation"):
        lines = _lines(_tables(folder, system, f"{kind}_attention_perf"), "kernel_source", wanted, 3 * most)
        found = [
            (engine, line)
            for engine, line in lines
            if line["attn_dtype"] == line["kv_cache_dtype"] == "bfloat16"
        ]
        rows += [_attention(system, kind, engine, line) for engine, line in found[:most]]
    return rows


def _attention(system: str, kind: str, engine: str, line: Mapping[str, Any]) -> KernelRow:
    batch, heads, width = int(line["batch_size"]), int(line["num_heads"]), int(line["head_dim"])
    kv_heads = int(line["num_key_value_heads"]) or heads
    queries, past = int(line["isl"]), int(line["step"])
    keys = queries if kind == "context" else queries + past
    window = int(line.get("window_size") or 0)
    query = Operand((batch, heads, queries, width), "bfloat16")
    key = Operand((batch, kv_heads, keys, width), "bfloat16")
    flags = ("causal",) if kind == "context" else ()
    if window:
        flags = (*flags, f"window={window}")
    library = "flash" if system in _OLDER_ATTENTION else "cudnn"
    operator = f"aten._scaled_dot_product_{library}_attention"
    return KernelRow(
        system=system,
        kind=kind,
        group=f"{kind}{' windows' if window else ''}",
        source=engine,
        shape=(batch, queries, keys, heads, kv_heads, width, window),
        seconds=float(line["latency"]) * 1e-3,
        work=Work(operator, (query, key, key), (query,), flags=flags),
    )


def collectives(folder: Path, system: str, most: int) -> list[KernelRow]:
    """NCCL's collectives, of Intel's card oneCCL's."""
    rows = []
    for name in ("nccl_perf", "oneccl_perf"):
        for engine, lines in _tables(folder, system, name):
            for line in lines.to_pylist():
                operation = line["op_name"]
                # Of oneCCL's tables some lines are empty.
                if operation not in _EXCHANGES or line["message_size"] is None:
                    continue
                num_bytes = int(line["message_size"]) * _ELEMENT_BYTES[line["nccl_dtype"]]
                rows.append(
                    KernelRow(
                        system=system,
                        kind="collective",
                        group=operation,
                        source=engine,
                        shape=(int(line["num_gpus"]), num_bytes),
                        seconds=float(line["latency"]) * 1e-3,
                        exchange=_EXCHANGES[operation],
                        num_ranks=int(line["num_gpus"]),
                        num_bytes=num_bytes,
                    )
                )
    return sampled(rows, most)
