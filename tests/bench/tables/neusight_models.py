"""NeuSight's language models as values, as its labels were timed with.

Values: `scripts/asplos/data/DLmodel_configs` of sitar-lab/NeuSight; what is not listed has the default of its
configuration class. They are made by `get_model` of its `neusight/Tracing/trace.py`: `from_config` with eager
attention; the step is `steps.ForwardBackward`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from autofit_workers.workload.libraries.importing import imported
from tests.bench.tables.setting import Setting

RELEASE = "transformers==4.38.1"  # of its setup.py

_CONFIGS: dict[str, dict[str, Any]] = {
    "bert_large": {
        "model_type": "bert",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "vocab_size": 30522,
    },
    "gpt2_large": {
        "model_type": "gpt2",
        "n_embd": 1280,
        "n_head": 20,
        "n_layer": 36,
        "n_positions": 1024,
        "vocab_size": 50257,
    },
    "opt_13": {
        "model_type": "opt",
        "attention_dropout": 0.0,
        "dropout": 0.1,
        "ffn_dim": 8192,
        "hidden_size": 2048,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 24,
        "vocab_size": 50272,
        "word_embed_proj_dim": 2048,
    },
}


class NeusightTask:
    """A model of `_CONFIGS`, which the setting names as MODEL-LENGTH."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        name, _, length = setting.model.rpartition("-")
        self._values, self._length = dict(_CONFIGS[name]), int(length)

    def build(self) -> torch.nn.Module:
        """BERT has its pretraining heads in training, and two classes in inference."""
        transformers: Any = imported("transformers", self._setting.model)
        kind = self._values.pop("model_type")
        config = transformers.AutoConfig.for_model(kind, **self._values)
        training = self._setting.mode == "train"
        auto = transformers.AutoModelForCausalLM
        if kind == "bert":
            auto = (
                transformers.AutoModelForPreTraining
                if training
                else transformers.AutoModelForSequenceClassification
            )
        model: torch.nn.Module = auto.from_config(config, attn_implementation="eager")
        return model.train(training)

    def batch(self, batch_size: int, device: torch.device) -> torch.Tensor:
        return torch.ones(batch_size, self._length, dtype=torch.int64, device=device)

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        """The logits in inference; in training the loss of the same ids."""
        result: Any = model(batch)
        logits: torch.Tensor = (
            result["prediction_logits"] if "prediction_logits" in result else result["logits"]
        )
        if self._setting.mode == "infer":
            return logits
        del result
        return functional.cross_entropy(logits.view(-1, logits.size(-1)), batch.view(-1))
