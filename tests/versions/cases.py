"""Configurations that releases of PyTorch are compared with: models, precisions, modes and parallelism."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialSpec
from autofit_workers.spec.setup import Parallel, Setup
from autofit_workers.spec.workloads.builtins import BUILTINS
from autofit_workers.spec.workloads.references import parse_reference

BATCH_SIZE = 4
PRECISIONS = ("fp32", "amp-bf16", "bf16")
TIMM = (
    "resnet18",
    "vit_tiny_patch16_224",
    "convnext_atto",
    "efficientnet_b0",
    "mixer_s32_224",
    "regnetx_002",
)
# Small configurations of transformers, by the name of their class.
TRANSFORMERS: dict[str, dict[str, object]] = {
    "GPT2LMHeadModel": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1000},
    "LlamaForCausalLM": {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
    },
    "Qwen3ForCausalLM": {
        "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000,
    },
    "BertForSequenceClassification": {
        "model_type": "bert", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 1000,
    },
    "T5ForConditionalGeneration": {
        "model_type": "t5", "d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16,
        "vocab_size": 1000,
    },
    "ViTForImageClassification": {
        "model_type": "vit", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "image_size": 64, "patch_size": 16,
    },
}  # fmt: skip
# Modules and calls whose memory is known to differ between releases; see autofit_workers/spec/releases.py.
DIFFERING_NAME = "differing"
DIFFERING = """
import torch
from torch import nn

from autofit import Workload


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.norm, self.head = nn.Linear(32, 64), nn.RMSNorm(64), nn.Linear(64, 10)
        self.plain = nn.RMSNorm(64, elementwise_affine=False)

    def forward(self, x):
        x = self.plain(self.norm(self.before(x)))
        alike = x.flatten(0, 1)
        x = x + nn.functional.scaled_dot_product_attention(x, x, x)
        return self.head(x[:, 0] + x[:, -1, :] + x[:, [1, 2]].sum(1) + x[:][..., 0:1].mean(1)) + alike.sum()


def make_batch(batch_size, device):
    x = torch.randn(batch_size, 16, 32, device=device)
    return x, torch.zeros(batch_size, dtype=torch.long, device=device)


def loss(model, batch):
    x, labels = batch
    return nn.functional.cross_entropy(model(x), labels)


workload = Workload(build_model=Net, make_batch=make_batch, loss=loss, optimizer="adam")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Configuration that is traced with each release.

    Attributes:
        name: name of the model and of what is set.
        workload: reference of the workload, as `--model` takes it.
        knobs: fields of `Knobs`.
        mode: `train` or `infer`.
        parallel: kind of parallelism, such as `fsdp:2`; empty for a single process.
    """

    name: str
    workload: str
    knobs: dict[str, object] = field(default_factory=dict)
    mode: str = "train"
    parallel: str = ""

    def spec(self, release: str | None = None) -> TrialSpec:
        """Description of the prediction.

        Args:
            release: release of PyTorch that is followed; None for the one that traces.
        """
        return TrialSpec(
            workload=parse_reference(self.workload),
            batch_size=BATCH_SIZE,
            probe=Probe.PREDICT,
            architecture="sm_80",
            setup=Setup(parallel=Parallel.named(self.parallel), mode=self.mode, torch=release),
            knobs=Knobs(**self.knobs),
        )


def all_cases(folder: Path) -> list[Case]:
    """All cases; configurations of transformers are written into `folder`."""
    cases = [
        Case(name=f"{name} {precision} {mode}", workload=name, knobs={"precision": precision}, mode=mode)
        for name in BUILTINS
        for precision in PRECISIONS
        for mode in ("train", "infer")
    ]
    cases += [
        Case(name=f"timm:{name} {mode}", workload=f"timm:{name}", mode=mode)
        for name in TIMM
        for mode in ("train", "infer")
    ]
    for name, values in TRANSFORMERS.items():
        config = folder / f"{name}.json"
        config.write_text(json.dumps({"architectures": [name], **values}), encoding="utf-8")
        cases += [
            Case(name=f"hf:{name} {precision}", workload=f"hf:{config}", knobs={"precision": precision})
            for precision in ("fp32", "amp-bf16")
        ]
    differing = folder / "differing.py"
    differing.write_text(DIFFERING, encoding="utf-8")
    cases += [
        Case(
            name=f"{DIFFERING_NAME} {precision}",
            workload=f"{differing}:workload",
            knobs={"precision": precision},
        )
        for precision in PRECISIONS
    ]
    llama = f"hf:{folder / 'LlamaForCausalLM.json'}"
    cases += [
        Case(name="lora", workload=llama, knobs={"adapter": "lora", "precision": "bf16"}),
        Case(name="adamw fused", workload=llama, knobs={"optimizer": "adamw", "optimizer_impl": "fused"}),
        Case(name="adamw foreach", workload=llama, knobs={"optimizer": "adamw", "optimizer_impl": "foreach"}),
        Case(name="checkpointing", workload=llama, knobs={"checkpointing": "blocks"}),
        Case(name="fsdp2", workload=llama, knobs={"optimizer": "adamw"}, parallel="fsdp:2"),
        Case(
            name="tp",
            workload=llama,
            knobs={"optimizer": "adamw", "optimizer_impl": "loop"},
            parallel="tp:2",
        ),
        Case(name="ddp", workload=llama, knobs={"optimizer": "adamw"}, parallel="ddp:2"),
    ]
    return cases
