"""The tables of measured times, as they are read, and what is printed of them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.bench.step_times import Timed, summary
from tests.bench.time import neusight_e2e, neusight_kernels, vidur

_KERNELS = "split,op,gpu,latency_ms,B,M,N,K,H\n"


def kernels(folder: Path, *lines: str) -> list[neusight_kernels.KernelRow]:
    path = folder / neusight_kernels.FILE
    path.parent.mkdir()
    path.write_bytes(gzip.compress((_KERNELS + "\n".join(lines)).encode()))
    return list(neusight_kernels.read(folder))


def test_a_linear_row_is_a_product_of_all_its_tokens(tmp_path: Path) -> None:
    (row,) = kernels(tmp_path, "test,linear,Tesla T4,2.5,4,512,1024,4096,")
    bias, left, right = row.work.inputs
    assert (bias.shape, left.shape, right.shape) == ((4096,), (2048, 1024), (1024, 4096))
    assert row.work.outputs[0].shape == (2048, 4096)
    assert row.seconds == pytest.approx(2.5e-3)


def test_convolutions_are_left_to_others(tmp_path: Path) -> None:
    assert not kernels(tmp_path, "train,conv,Tesla T4,2.5,4,,,,")


def test_rows_that_the_host_decides_are_left_out(tmp_path: Path) -> None:
    short = [f"train,add,Tesla T4,0.03,{rows},,,,64" for rows in range(1, 101)]
    long = "test,add,Tesla T4,3.0,65536,,,,4096"
    kept = neusight_kernels.of_device(kernels(tmp_path, *short, long))
    assert [row.split for row in kept] == ["test"]


_VIDUR = (
    "gpu,model,n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,"
    "num_tensor_parallel_workers,"
    + ",".join(
        f"time_stats.{name}.median"
        for name in (
            "emb", "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj",
            "post_attention_layernorm", "mlp_up_proj", "mlp_act", "mlp_down_proj", "add",
        )
    )
)  # fmt: skip


def test_operators_are_those_of_one_worker(tmp_path: Path) -> None:
    path = tmp_path / vidur.FILE
    path.parent.mkdir()
    line = "a100,meta-llama/Meta-Llama-3-8B,32,8,4096,14336,128256,True,100,2,1,1,1,1,1,,1,1,1,1"
    path.write_bytes(gzip.compress(f"{_VIDUR}\n{line}".encode()))
    rows = {row.operator: row for row in vidur.read(tmp_path)}
    shapes = {
        name: [each.shape for each in rows[name].works[0].inputs]
        for name in ("attn_pre_proj", "mlp_up_proj", "attn_post_proj", "mlp_down_proj")
    }
    assert shapes == {
        "attn_pre_proj": [(100, 4096), (4096, 3072)],
        "mlp_up_proj": [(100, 4096), (4096, 14336)],
        "attn_post_proj": [(100, 2048), (2048, 4096)],
        "mlp_down_proj": [(100, 7168), (7168, 4096)],
    }
    assert "post_attention_layernorm" not in rows


def test_runs_of_several_cards_or_fused_ones_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / neusight_e2e.FILE
    path.parent.mkdir()
    head = "model,mode,gpu,batch_size,seq_len,option,forward_seconds,backward_seconds\n"
    lines = ("opt_13,inf,Tesla_T4,2,2048,,3.5,0.0", "opt_13,inf,Tesla_T4,2,2048,fusion,3.0,0.0")
    path.write_text(head + "\n".join(lines), encoding="utf-8")
    (row,) = neusight_e2e.read(tmp_path)
    assert (row.setting.model, row.setting.mode, row.seconds) == ("opt_13-2048", "infer", 3.5)


def test_the_summary_says_how_many_lie_in_their_intervals() -> None:
    timed = [
        Timed(group="step", card="T4", name="", predicted_seconds=1.1, seconds=1.0, sigma=sigma)
        for sigma in (0.07, 0.08)
    ]
    assert all(line.endswith(" 50%") for line in list(summary(timed))[1:])


def test_the_summary_has_a_line_for_each_group_and_card() -> None:
    timed = [
        Timed(group="add", card=card, name="", predicted_seconds=1.1, seconds=1.0) for card in ("T4", "L4")
    ]
    lines = list(summary(timed))
    assert len(lines) == 1 + 2 * 3
    assert all("10.0%" in line and "+10.0%" in line for line in lines[1:])
