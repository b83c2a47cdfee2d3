"""The table of ms-swift's runs: its reader, on lines in the table's form, and texts of unlike lengths."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autofit_workers.replay.allocator.pools import AllocatorOutOfMemory
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Allocation, Category, Mark, Trace
from tests.bench import language_models
from tests.bench.language import ms_swift, unlike_lengths
from tests.bench.language.unlike_lengths import TRACED_LENGTHS, PassesOfLengths, Texts, batches

HEADER = "source,model,method,parallel,batch_size,seq_len,checkpointing,attention,other,peak_bytes,fit\n"
LORA = "lora_rank=8; lora_target=DEFAULT; grad_accum=16; dataset=cls-fudan-news-zh (lengths 91..19548)"
TUNED = "lora_rank=8; lora_target=DEFAULT; grad_accum=16; tuner_params=rank=8/target=ALL; dataset=ms-agent"
NEWS = Texts(num_texts=2000, mean=3000, deviation=2500, shortest=90, longest=20000, longest_taken=2048)
MIB = 2**20


def read(folder: Path, *lines: str):
    file = folder / ms_swift.FILE
    file.parent.mkdir()
    file.write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return ms_swift.read(folder)


def row(model: str = "qwen-7b-chat", method: str = "lora", more: str = LORA, parallel: str = "none") -> str:
    return f"Benchmark.md / LoRA,{model},{method},{parallel},2,4096,True,flash_attn 2.3.4,{more},20000,yes"


def test_a_row_is_a_run_over_texts_of_at_most_its_length(tmp_path: Path) -> None:
    run, unknown = read(tmp_path, row(), row(parallel="device_map:2"), row(model="mistral-7b-chat"))
    with pytest.raises(ValueError, match="the code of mistral-7b-chat is not known here"):
        unknown.make()
    assert run.measured == {"reserved peak over texts": 20000}
    assert run.knobs.adapter == "lora:r=8,alpha=32,dropout=0.05,targets=c_attn"
    assert (run.knobs.base, run.knobs.grad_accumulation, run.knobs.clip_grad_norm) == ("bf16", 16, 0.5)
    assert run.lengths is not None
    assert [(texts.num_texts, texts.longest_taken) for texts in run.lengths.data] == [(1000, 4096)]
    batch = run.lengths.make(8).make_batch(2, torch.device("cpu"))
    assert batch["input_ids"].shape == (2, 8)
    assert batch["attention_mask"].sum(dim=1).tolist() == [8, 7]


def test_quantized_weights_are_a_base_and_tuners_take_all_layers_of_two_data_sets(tmp_path: Path) -> None:
    quantized, tuned, full = read(
        tmp_path, row(method="qlora int4 (bnb)"), row(method="dora", more=TUNED), row(method="full")
    )
    assert quantized.knobs.base == "nf4-dq"
    assert tuned.knobs.adapter == "dora:r=8,alpha=32,dropout=0.05,targets=c_attn,c_proj,w1,w2"
    assert tuned.lengths is not None
    assert [texts.num_texts for texts in tuned.lengths.data] == [30000, 60000]
    assert (full.knobs.adapter, full.group) == (None, "full")


def test_a_method_that_is_not_followed_fails_by_name(tmp_path: Path) -> None:
    (run,) = read(tmp_path, row(method="qlora int4 (gptq)"))
    with pytest.raises(UnsupportedError, match="gptq"):
        run.make().build_model()


def test_lengths_keep_within_what_is_taken_and_have_the_mean_that_is_published() -> None:
    lengths = batches((NEWS,), 1, seed=1)
    assert len(lengths) == unlike_lengths.MOST_TEXTS
    assert 90 <= min(lengths) < max(lengths) <= 2048
    assert lengths == batches((NEWS,), 1, seed=1) != batches((NEWS,), 1, seed=2)
    drawn = batches(
        (Texts(num_texts=160, mean=300, deviation=1, shortest=1, longest=999, longest_taken=999),), 1, seed=0
    )
    assert sum(drawn) / len(drawn) == pytest.approx(300, abs=1)


def test_a_batch_is_as_long_as_its_longest_text() -> None:
    single, pairs = batches((NEWS,), 1, seed=3), batches((NEWS,), 2, seed=3)
    assert pairs[0] == max(single[:2])


def trace(length: int) -> tuple[Trace, list[int]]:
    """Three steps of a model of 100 MiB: each pass makes two tensors of a tenth of a MiB a token."""
    events, marks, sizes = [0], [Mark(position=0, name="model")], [100 * MIB]
    for step in (1, 2, 3):
        for _ in range(2):
            marks.append(Mark(position=len(events), name=f"step {step} input"))
            first = len(sizes)
            sizes += [length * MIB // 10] * 2
            events += [first, first + 1, ~first, ~(first + 1)]
        marks.append(Mark(position=len(events), name=f"step {step} optimizer"))
    allocations = tuple(Allocation(num_bytes=size, category=Category.OTHER) for size in sizes)
    made = Trace(
        workload="w",
        batch_size=1,
        mode="train",
        optimizer="sgd",
        knobs=Knobs(),
        allocations=allocations,
        events=tuple(events),
        marks=tuple(marks),
    )
    return made, sizes


def test_each_text_longer_than_all_before_takes_new_blocks() -> None:
    passes = PassesOfLengths([trace(length) for length in TRACED_LENGTHS])

    def reserved_mib(*tokens: int, limit_mib: int | None = None) -> float:
        limit_bytes = None if limit_mib is None else limit_mib * MIB
        return passes.reserved(tokens, accumulated=3, limit_bytes=limit_bytes) / MIB

    assert reserved_mib(1000) == reserved_mib(1000, 1000, 1000, 1000) == 100 + 200
    assert reserved_mib(1000, 500, 700) == 100 + 200
    assert reserved_mib(500, 700, 1000) == 100 + 2 * (50 + 70 + 100)
    assert reserved_mib(500, 700, 1000, limit_mib=300) == 300
    with pytest.raises(AllocatorOutOfMemory):
        reserved_mib(1000, limit_mib=299)


def test_high_ends_are_unsafe_below_what_ran_less_the_margin() -> None:
    line = language_models.safety_line([-0.02, -0.04, 0.10, 0.10])
    assert "unsafe 25.0%" in line
    assert "given away 5.0%" in line
