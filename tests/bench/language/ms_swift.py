"""ms_swift.csv: fine-tuning by ms-swift on one A100, over texts of unlike lengths: LoRA, QLoRA, full.

Source: modelscope/ms-swift, `docs/source_en/LLM/Benchmark.md` at cdb169b7, Apache-2.0;
`scripts/benchmark/test_memory_time/run_single.py` at 97e4d198, and `scripts/benchmark/config/tuner.json` at
c23b853c for the table of tuners. PyTorch 2.1.1, transformers 4.36, FlashAttention 2.3.4; the peak is
`max_memory_reserved()` at the end. Means kept their input then (see `old_pytorch`).

What ran, by the source of those releases:
- Trainer in bfloat16: weights in bfloat16, the model under autocast, its outputs handed out in float32 by
  accelerate, of which the accuracy is taken; AdamW; gradients clipped to 0.5; reentrant checkpoints.
- ms-swift's own LoRA takes the type of the weights beside it. Of weights that bitsandbytes quantizes, which
  are not of a floating type, adapters stay float32; and transformers 4.36 loads what is not quantized in
  float16 where no type is asked for, as of Qwen. So autocast makes a copy of the head's weights. The sums of
  a block stayed in 16 bits, as that release of peft added to them in place.
- flash-attn builds attention alone; its rotary angles are a kernel of Triton, which needs nothing built, and
  its norms are missing, so that the model's own are run.
- Texts with more tokens than `max_length` were left out, not truncated: that is the release's default, which
  the script does not change. The documentation names another option; but a month before, with that, the
  same page had half as many texts a second.

The models' own code runs (`--library`, a folder with the packages `qwen` and `chatglm3`: `modeling_qwen.py`
and `modeling_chatglm.py` with what they import, as of December 2023; and einops).

How long texts are is published, not their order: see `unlike_lengths`.
"""

from __future__ import annotations

import csv
import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from autofit.hardware.budget import budget_of
from autofit.hardware.gpus import find_gpu
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.tracing.kernels.stand_ins import asking
from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.workload import Workload
from tests.bench.language.old_pytorch import keep_inputs_of_means
from tests.bench.language.runs import Run, Table, UnlikeLengths
from tests.bench.language.unlike_lengths import TRACED_LENGTHS, Texts

FILE = "llm/ms_swift.csv"
_CARD = find_gpu("a100-80g")
_QUANTITY = "reserved peak over texts"
_MOST_NORM = 0.5
_ALL_TEXTS, _SOME_TEXTS = 4959, 1000  # `run_single.py` takes fewer where texts may be long
_LONG = 2048
_LORA = "r={rank},alpha=32,dropout=0.05,targets={targets}"
# Its own defaults: ranks of 12, of which 8 are left; more steps than are traced.
_ADALORA = "init_r=12,target_r=8,lora_alpha=32,lora_dropout=0.05,total_step=1000,targets={targets}"
# What peft calls a method, and is told; other learning rates (LoRA+) are no other memory.
_METHODS = {
    "lora": f"lora:{_LORA}",
    "qlora": f"lora:{_LORA}",
    "lora+": f"lora:{_LORA}",
    "rslora": f"rslora:{_LORA}",
    "dora": f"dora:{_LORA}",
    "adalora": f"adalora:{_ADALORA}",
}
_BASES = {"int4 (bnb)": "nf4-dq", "int8 (bnb)": "int8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """A model of the table.

    Attributes:
        code: module and class of its own code.
        config: module and class of its configuration.
        options: what the configuration is told.
        told_later: what later releases of transformers do not take from such a configuration.
        target: the layer of a block that an adapter is put on by default.
        linears: all linear layers of a block.
        head: the layer that makes the logits.
        loads_in: its type beside layers that are quantized.
    """

    code: tuple[str, str]
    config: tuple[str, str]
    options: Mapping[str, Any]
    target: str
    linears: str
    head: str
    loads_in: torch.dtype
    told_later: Mapping[str, Any] = field(default_factory=dict)


def _qwen(
    hidden: int, inner: int, num_layers: int, *, length: int = 8192, vocabulary: int = 151936
) -> _Model:
    return _Model(
        code=("qwen.modeling_qwen", "QWenLMHeadModel"),
        config=("qwen.configuration_qwen", "QWenConfig"),
        options={
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": num_layers,
            "num_attention_heads": hidden // 128,
            "vocab_size": vocabulary,
            "seq_length": length,
            "bf16": True,
        },
        target="c_attn",
        linears="c_attn,c_proj,w1,w2",
        head="lm_head",
        loads_in=torch.float16,
        told_later={"use_cache": False},
    )


def _chatglm(length: int) -> _Model:
    return _Model(
        code=("chatglm3.modeling_chatglm", "ChatGLMForConditionalGeneration"),
        config=("chatglm3.configuration_chatglm", "ChatGLMConfig"),
        options={
            "add_qkv_bias": True,
            "apply_query_key_layer_scaling": True,
            "attention_softmax_in_fp32": True,
            "bias_dropout_fusion": True,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "ffn_hidden_size": 13696,
            "hidden_size": 4096,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "num_attention_heads": 32,
            "num_layers": 28,
            "original_rope": True,
            "padded_vocab_size": 65024,
            "post_layer_norm": True,
            "rmsnorm": True,
            "seq_length": length,
            "torch_dtype": torch.bfloat16,
        },
        target="query_key_value",
        linears="query_key_value,dense,dense_h_to_4h,dense_4h_to_h",
        head="transformer.output_layer",
        loads_in=torch.bfloat16,
        told_later={"use_cache": False, "max_length": 20},
    )


_MODELS = {
    "qwen-1_8b-chat": _qwen(2048, 11008, 24),
    "qwen-7b-chat": _qwen(4096, 22016, 32),
    "qwen-14b-chat": _qwen(5120, 27392, 40, length=2048, vocabulary=152064),
    "qwen-72b-chat": _qwen(8192, 49152, 80, length=32768, vocabulary=152064),
    "chatglm2-6b": _chatglm(32768),
    "chatglm3-6b": _chatglm(8192),
}
# By the numbers that ms-swift publishes of each data set, as Qwen's tokenizer counts.
_NEWS = functools.partial(Texts, mean=3234.4, deviation=2547.5, shortest=91, longest=19548)
_AGENT = functools.partial(Texts, num_texts=30000, mean=647.7, deviation=217.1, shortest=199, longest=2722)
_BENCH = functools.partial(Texts, num_texts=60000, mean=347.3, deviation=444.1, shortest=22, longest=30960)


def read(folder: Path) -> list[Run]:
    """The rows of one GPU; those of a model whose code is not known fail by name."""
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    single = [each for each in enumerate(rows) if each[1]["parallel"] == "none" and each[1]["fit"] == "yes"]
    return [_run(*each) if each[1]["model"] in _MODELS else _unknown(*each) for each in single]


def _unknown(number: int, row: dict[str, str]) -> Run:
    """A run of a model that is not known here."""
    return Run(
        table=TABLE.name,
        name=f"{number} {row['model']} {row['method']} {row['batch_size']}x{row['seq_len']}",
        group=row["method"],
        make=functools.partial(_refuse, row["model"]),
        batch_size=int(row["batch_size"]),
        architecture=_CARD.architecture,
        measured={_QUANTITY: int(row["peak_bytes"])},
    )


def _refuse(model: str) -> Workload:
    raise ValueError(f"the code of {model} is not known here")


def _run(number: int, row: dict[str, str]) -> Run:
    more = dict(pair.split("=", 1) for pair in row["other"].split("; "))
    model = _MODELS[row["model"]]
    method, _, quantized = row["method"].partition(" ")
    adapter = _adapter(method, more, model)
    longest = int(row["seq_len"]) if row["seq_len"].isdigit() else _LONG
    accumulated = int(more["grad_accum"])
    make = functools.partial(
        _workload,
        row["model"],
        attends_by_flash=row["attention"].startswith("flash_attn"),
        checkpointed=row["checkpointing"] == "True",
        method=row["method"],
    )
    # All is bfloat16 that has no other type of its own; autocast is the loss's.
    knobs = Knobs(
        adapter=adapter,
        base=_BASES.get(quantized, "bf16"),
        precision="bf16",
        clip_grad_norm=_MOST_NORM,
        grad_accumulation=accumulated,
    )
    return Run(
        table=TABLE.name,
        name=f"{number} {row['source'].rpartition(' / ')[2]} {row['model']} {row['method']} "
        f"{row['batch_size']}x{row['seq_len']}",
        group=method,
        make=functools.partial(make, TRACED_LENGTHS[0]),
        batch_size=int(row["batch_size"]),
        architecture=_CARD.architecture,
        knobs=knobs,
        measured={_QUANTITY: int(row["peak_bytes"])},
        usable_bytes=budget_of(_CARD, margin=0).usable_bytes,
        lengths=UnlikeLengths(
            make=make,
            data=_data(more, longest, mixed=not method.endswith("+no_mix")),
            accumulated=accumulated,
        ),
    )


def _adapter(method: str, more: Mapping[str, str], model: _Model) -> str | None:
    """What peft is told, where it has the method."""
    named = _without_mixture(method)
    if named not in _METHODS:
        return None
    tuned = dict(pair.split("=", 1) for pair in more.get("tuner_params", "").split("/") if "=" in pair)
    target = tuned.get("target", more.get("lora_target", ""))
    return _METHODS[named].format(
        rank=tuned.get("rank", more.get("lora_rank")),
        targets=model.linears if target.startswith("ALL") else model.target,
    )


def _without_mixture(method: str) -> str:
    """A method's name without what changes its data or adds noise to its inputs (NEFTune) alone."""
    return method.removesuffix("+no_mix").removesuffix("+neftune")


def _data(more: Mapping[str, str], longest: int, *, mixed: bool) -> tuple[Texts, ...]:
    if more["dataset"].startswith("ms-agent"):
        agent = _AGENT(longest_taken=longest)
        return (agent, _BENCH(longest_taken=longest)) if mixed else (agent,)
    return (_NEWS(num_texts=_ALL_TEXTS if longest <= _LONG else _SOME_TEXTS, longest_taken=longest),)


def _workload(name: str, length: int, *, attends_by_flash: bool, checkpointed: bool, method: str) -> Workload:
    return Workload(
        build_model=functools.partial(
            _build, name, attends_by_flash=attends_by_flash, checkpointed=checkpointed, method=method
        ),
        make_batch=functools.partial(_batch, length=length),
        loss=_loss,
        optimizer=torch.optim.AdamW,
        name=name,
    )


def _build(name: str, *, attends_by_flash: bool, checkpointed: bool, method: str) -> nn.Module:
    if not _is_followed(method):
        raise UnsupportedError(f"{method} of ms-swift is not traced")
    model = _MODELS[name]
    imported("transformers", name)
    if attends_by_flash:
        asking.offer("flash_attention_2")
    config = _of(model.config)(**model.options, **_attention(model, attends_by_flash=attends_by_flash))
    for key, value in model.told_later.items():
        setattr(config, key, value)
    made: Any = _of(model.code)(config)
    for module in made.modules():
        if type(module).__name__ == "QWenModel":
            module.get_head_mask = _no_head_mask
    keep_inputs_of_means(made, of="RMSNorm")
    made.enable_input_require_grads()
    if checkpointed:
        made.gradient_checkpointing_enable()
    if method.startswith("qlora"):
        _keep_types(made, model)
    module_made: nn.Module = made
    return module_made


def _is_followed(method: str) -> bool:
    named, _, quantized = method.partition(" ")
    named = _without_mixture(named)
    return named in (*_METHODS, "full") and (named == "qlora") == (quantized in _BASES)


def _of(where: tuple[str, str]) -> Any:
    module, name = where
    # What TorchScript compiles is not followed; uncompiled it is the same operators.
    with patch.object(torch.jit, "script", lambda function: function):
        return getattr(importlib.import_module(module), name)


def _attention(model: _Model, *, attends_by_flash: bool) -> dict[str, bool]:
    return {"use_flash_attn": attends_by_flash} if model.target == "c_attn" else {}


def _no_head_mask(_mask: None, num_layers: int) -> list[None]:
    """As transformers had it, for no mask; later releases have not got it."""
    return [None] * num_layers


def _keep_types(made: Any, model: _Model) -> None:
    """Gives weights the types that they are loaded in, and keeps whoever quantizes from others."""
    made.to(torch.bfloat16)
    made.get_submodule(model.head).to(model.loads_in)
    made.to = lambda *_args, **_more: made


def _batch(batch_size: int, device: torch.device, *, length: int) -> dict[str, torch.Tensor]:
    tokens, mask = (torch.ones((batch_size, length), dtype=torch.int64) for _ in range(2))
    mask[1:, -1] = 0  # of a batch all texts but the longest are padded
    given = {"input_ids": tokens, "attention_mask": mask, "labels": tokens.clone()}
    return {name: tensor.to(device) for name, tensor in given.items()}


def _loss(model: Callable[..., Any], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Trainer's forward pass, and the accuracy that ms-swift takes of it; outputs live until it returns."""
    with torch.autocast("cuda", torch.bfloat16):
        outputs = model(**batch)
    outputs.logits = outputs.logits.float()
    outputs.logits.argmax(dim=2)
    loss: torch.Tensor = outputs.loss
    return loss


TABLE = Table(name="ms_swift", read=read, asked={_QUANTITY: (0.04, 0.10)})
