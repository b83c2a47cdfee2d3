"""fms_acceleration.csv: fine-tuning by Trainer on one A100, packed to 4096 tokens: full, LoRA and QLoRA.

Source: foundation-model-stack/fms-acceleration, `scripts/benchmarks/` at 876e2ed6, Apache-2.0: 100 steps of
TRL's SFTTrainer (through fms-hf-tuning) with FlashAttention 2, reentrant checkpointing of each block and
AdamW; the peak is the largest of the stages of Trainer's memory metrics, `max_memory_allocated()` each.
PyTorch 2.4.1; transformers 4.48.1, of PowerLM 4.45.2, of the padded rows 4.44.2.

What held memory in those releases that today's does not hold, or not so:
- The loss shifts a contiguous copy of the logits: in float32, of gpt_bigcode in the type of the model; of
  Granite the logits are float32 before they come to the loss.
- gpt_bigcode caches keys and values though it checkpoints: views of what a block's first product puts out.
- With mixed precision accelerate hands out the outputs in float32.
- Adapters are float32. For QLoRA without the plugin (`baseline-peft-bnb`) TRL lets peft turn norms,
  embeddings and head into float32, and the last two back into bfloat16; so norms, and with them
  all that follows in a block, are float32. With the plugin (`accelerated-peft-bnb`) nothing is turned.

Rows of one GPU alone, and of no other kernels. Not traced: mixtures of experts, and QLoRA of padded texts,
whose longest batch is not known. Full fine-tuning of padded texts is: its peak is in the optimizer, whatever
the length.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autofit.hardware.budget import budget_of
from autofit.hardware.gpus import find_gpu
from autofit_workers.spec.knobs import Knobs
from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.workload import Workload
from tests.bench.language.runs import Run, Table

FILE = "llm/fms_acceleration.csv"
CARD = find_gpu("a100-80g")
MOST_NORM = 1.0  # Trainer's default
FRAMEWORKS = ("none", "baseline-peft-bnb", "accelerated-peft-bnb")
PADDED = "a100_80gb_pf.csv"
_KEPT_IN_BFLOAT16 = ("lm_head", "embed_tokens", "wte", "wpe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of the table.

    Attributes:
        config: the name of its class in transformers.
        options: what is not that class's default.
        length: tokens of a text, where they are packed.
        targets: of its adapter.
        loss_in: the type of the logits in the loss; None for that of the model.
        casts_head: whether the logits have that type before they come to the loss.
        cached: a layer of each block whose output lives as long as those of the model.
    """

    config: str
    options: dict[str, Any]
    length: int = 4096
    targets: str = "q_proj,k_proj,v_proj,o_proj"
    loss_in: torch.dtype | None = torch.float32
    casts_head: bool = False
    cached: str | None = None


MODELS = {
    "Mistral-7B-v0.1": Model(
        config="MistralConfig",
        options={
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
        },
    ),
    "Llama-2-70b-hf": Model(
        config="LlamaConfig",
        options={
            "vocab_size": 32000,
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "max_position_embeddings": 4096,
        },
    ),
    # Y. Shen et al., 2024: "Power Scheduler", table 4; the vocabulary is that of StarCoder, tied.
    "PowerLM-3b": Model(
        config="GraniteConfig",
        options={
            "vocab_size": 49152,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 40,
            "num_attention_heads": 36,
            "num_key_value_heads": 36,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
            "embedding_multiplier": 12.0,
            "logits_scaling": 9.0,
            "residual_multiplier": 0.22,
        },
        casts_head=True,
    ),
    "gpt_bigcode-santacoder": Model(
        config="GPTBigCodeConfig",
        options={
            "vocab_size": 49280,
            "n_positions": 2048,
            "n_embd": 2048,
            "n_layer": 24,
            "n_head": 16,
            "n_inner": 8192,
            "multi_query": True,
        },
        length=2048,
        targets="c_attn",
        loss_in=None,
        cached="c_attn",
    ),
}


def read(folder: Path) -> list[Run]:
    """The rows of one GPU, without kernels of the plugins."""
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        rows = [(row, more_of(row)) for row in csv.DictReader(file)]
    return [_run(row, more) for row, more in rows if _is_traced(row, more)]


def name_of(row: dict[str, str]) -> str:
    """The name of a row's model, as in `MODELS`."""
    return row["model"].rpartition("/")[2]


def more_of(row: dict[str, str]) -> dict[str, str]:
    """What a row says beside its columns."""
    return dict(pair.split("=", 1) for pair in row["other"].split("; ") if "=" in pair)


def _is_traced(row: dict[str, str], more: dict[str, str]) -> bool:
    if row["parallel"] != "none" or more.get("framework_config") not in FRAMEWORKS:
        return False
    if name_of(row) not in MODELS or row["fit"] not in ("yes", "oom"):
        return False
    if row["fit"] == "yes" and row["peak_kind"] != "max_allocated":
        return False
    return not (row["source"].endswith(PADDED) and row["method"] != "full")


def _run(row: dict[str, str], more: dict[str, str]) -> Run:
    name = name_of(row)
    model = MODELS[name]
    base, _, autocast = row["precision"].partition(" + ")
    half = {"bfloat16": "bf16", "float16": "fp16"}[base]
    is_quantized = row["method"].startswith("qlora")
    adapter = None if row["method"] == "full" else f"lora:r=16,alpha=16,dropout=0.1,targets={model.targets}"
    return Run(
        table=TABLE.name,
        name=f"{row['source'].rpartition('/')[2]} {more['row']} {name} {row['method']} "
        f"{more['framework_config']}",
        group=row["method"],
        make=functools.partial(
            _workload,
            model,
            int(row["seq_len"]) if row["source"].endswith(PADDED) else model.length,
            norms_in=torch.float32 if more["framework_config"].startswith("baseline") else torch.bfloat16,
            has_adapter=adapter is not None,
            has_autocast=bool(autocast),
        ),
        batch_size=int(row["batch_size"]),
        architecture=CARD.architecture,
        knobs=Knobs(
            adapter=adapter,
            base="nf4-dq" if is_quantized else half,
            precision=f"amp-{half}" if autocast else "fp32",
            attention="fa2",
            clip_grad_norm=MOST_NORM,
        ),
        measured={"allocated peak": int(row["peak_bytes"])} if row["fit"] == "yes" else {},
        usable_bytes=budget_of(CARD, margin=0).usable_bytes,
        fits=row["fit"] == "yes",
    )


def _workload(
    model: Model, length: int, *, norms_in: torch.dtype, has_adapter: bool, has_autocast: bool
) -> Workload:
    return Workload(
        build_model=functools.partial(build, model, has_adapter=has_adapter),
        make_batch=functools.partial(packed, length=length),
        loss=Loss(norms_in=norms_in, has_autocast=has_autocast, cached=model.cached),
        optimizer=torch.optim.AdamW,
        name=model.config,
    )


def build(model: Model, *, has_adapter: bool) -> nn.Module:
    """The model, with checkpointing."""
    transformers: Any = imported("transformers", model.config)
    config = getattr(transformers, model.config)(**model.options)
    made: Any = transformers.AutoModelForCausalLM.from_config(config)
    made.loss_function = _shifted_loss(model.loss_in)
    if model.casts_head:
        made.lm_head.register_forward_hook(lambda _module, _inputs, logits: logits.float())
    if has_adapter:
        made.enable_input_require_grads()
    made.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    module: nn.Module = made
    return module


def packed(batch_size: int, device: torch.device, *, length: int) -> dict[str, torch.Tensor]:
    """A batch of texts that fill all positions."""
    tokens = torch.ones((batch_size, length), dtype=torch.int64)
    return {name: tokens.clone().to(device) for name in ("input_ids", "labels", "attention_mask")}


def _shifted_loss(dtype: torch.dtype | None) -> Callable[..., torch.Tensor]:
    def loss(logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **_more: Any) -> torch.Tensor:
        logits = logits if dtype is None else logits.to(dtype)
        shifted = logits[..., :-1, :].contiguous()
        targets = labels[..., 1:].contiguous()
        return nn.functional.cross_entropy(shifted.view(-1, vocab_size), targets.view(-1))

    return loss


class Loss:
    """Trainer's forward pass; outputs live until it returns.

    Args:
        norms_in: the type of the norms of a quantized model. peft has made all that is not quantized
            float32 when this comes to run.
        cached: see `Model`.
    """

    def __init__(self, *, norms_in: torch.dtype, has_autocast: bool, cached: str | None) -> None:
        self._norms_in = norms_in
        self._has_autocast = has_autocast
        self._cached = cached
        self._cache: list[torch.Tensor] = []
        self._is_prepared = False

    def __call__(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if not self._is_prepared:
            self._is_prepared = True
            self.prepare(model)
        # Of a mask without padding FlashAttention is told nothing.
        outputs = model(input_ids=batch["input_ids"], labels=batch["labels"])
        if self._has_autocast:
            outputs.logits = outputs.logits.float()
        self._cache.clear()
        loss: torch.Tensor = outputs.loss
        return loss

    def prepare(self, model: nn.Module) -> None:
        """Does what is to be done before the first step."""
        if self._has_autocast:
            _cast(model, self._norms_in)
        self.keep_cached(model)

    def keep_cached(self, model: nn.Module) -> None:
        """Keeps what the model of that release caches."""
        for path, module in model.named_modules():
            if path.rpartition(".")[2] == self._cached:
                module.register_forward_hook(self._keep)

    def _keep(self, _module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        if not torch.is_grad_enabled():  # in the forward pass of a block that will run again
            self._cache.append(output)


def _cast(model: nn.Module, norms_in: torch.dtype) -> None:
    for path, module in model.named_modules():
        name = path.rpartition(".")[2]
        if "norm" in name or isinstance(module, nn.LayerNorm):
            module.to(norms_in)
        elif name in _KEPT_IN_BFLOAT16:
            module.to(torch.bfloat16)


TABLE = Table(name="fms_acceleration", read=read, asked={"allocated peak": (0.015, 0.06)})
