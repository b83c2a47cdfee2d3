"""fsdp_qlora_stages.csv: what lives after a model's making, its forward pass and its backward pass.

Source: AnswerDotAI/fsdp_qlora, `nbs/00-profile_lora_qlora.ipynb` and `…_hqq.ipynb` at 05ed9f2a, Apache-2.0.
What they print is `memory_allocated()`, in 1e9 bytes to the third digit.

For each length they make a Llama of 1.1 billion parameters, put it on the GPU in bfloat16 (printed), run
it with one text (printed) and run backward from the mean of the logits (printed), with no optimizer; then
they let go of all and empty the cache. While they print, the outputs live, with logits and the cache of keys
and values, and so does the graph. Adapters go to the layers that are peft's default, and to bfloat16
with the rest. Checkpointing is transformers' own, not reentrant, asked for once the adapter is there: nothing
wants the gradients of the inputs. All linear layers but the head are quantized, with scales in float32. The
first notebook ran in January of 2024, the second in March: with transformers 4.36 and 4.38.0, by what
their models keep (see `old_transformers`), with PyTorch 2.1 and 2.2, by what their means keep (see
`old_pytorch`), and bitsandbytes before 0.43, whose `MatMul4Bit` keeps its input for as long as the graph
lives, though backward does not want it.

Not traced: rows of HQQ's quantization (`qlora-training` of the second notebook).

Known to be off:
- The first length of a kind found one workspace of products (8.5 MB) less than later ones in the notebook.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Any

import torch

from autofit_workers.spec.knobs import Knobs
from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.workload import Workload
from tests.bench.language.old_pytorch import keep_inputs_of_means
from tests.bench.language.old_transformers import Of438, Until437
from tests.bench.language.runs import Run, Table

FILE = "llm/fsdp_qlora_stages.csv"
_ARCHITECTURE = "sm_86"  # of 16 GB, with bfloat16
_NAME = "Llama of 1.1 billion parameters"
_CONFIG = {
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
_LORA = "lora:r=8,alpha=32,dropout=0.1"
_KNOBS = {
    "base": Knobs(precision="bf16"),
    "lora": Knobs(precision="bf16", adapter=_LORA),
    "qlora": Knobs(precision="bf16", adapter=_LORA, base="nf4"),
}
_QUANTITIES = {
    "after model creation": "allocated after the model",
    "after forward": "allocated after forward",
    "after backward": "allocated after backward",
}
_RELEASES = {"00-profile_lora_qlora": Until437, "00-profile_lora_qlora_hqq": Of438}
_WITH_PYTORCH_2_1 = ("00-profile_lora_qlora",)
_NOT_TRACED = ("00-profile_lora_qlora_hqq", "qlora-training")


def read(folder: Path) -> list[Run]:
    """The runs of both notebooks, each with its two or three stages."""
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    measured: dict[tuple[str, str, str], dict[str, int]] = {}
    for row in rows:
        run = row["source"].rpartition(" ")[2], row["method"], row["seq_len"]
        if run[:2] != _NOT_TRACED:
            stage = row["other"].partition("; ")[0].partition("=")[2]
            measured.setdefault(run, {})[_QUANTITIES[stage]] = int(row["peak_bytes"])
    return [_run(*run, stages) for run, stages in measured.items()]


def _run(notebook: str, method: str, length: str, measured: dict[str, int]) -> Run:
    kind, _, rest = method.partition("-")
    return Run(
        table=TABLE.name,
        name=f"{notebook} {method} {length}",
        group=method,
        make=functools.partial(_workload, notebook, int(length), rest),
        batch_size=1,
        architecture=_ARCHITECTURE,
        knobs=_KNOBS[kind],
        measured=measured,
    )


def _workload(notebook: str, length: int, kind: str) -> Workload:
    profiled = _Profiled(
        _RELEASES[notebook](),
        length,
        checkpointed=kind == "gc-training",
        keeps_inputs_of_means=notebook in _WITH_PYTORCH_2_1,
    )
    return Workload(
        build_model=profiled.build_model,
        make_batch=profiled.make_batch,
        loss=profiled.loss,
        mode="infer" if kind == "inference" else "train",
        name=_NAME,
    )


class _Profiled:
    """The notebook's step: outputs and gradients live until the next model is made.

    The same model stands for the next one, as it is when new. So the first step leaves what an earlier
    length leaves: the workspaces of products.
    """

    def __init__(
        self, release: Until437 | Of438, length: int, *, checkpointed: bool, keeps_inputs_of_means: bool
    ) -> None:
        self._release = release
        self._length = length
        self._checkpointed = checkpointed
        self._keeps_inputs_of_means = keeps_inputs_of_means
        self._llama: Any = None
        self._output: Any = None
        self._is_prepared = False

    def build_model(self) -> torch.nn.Module:
        transformers: Any = imported("transformers", _NAME)
        self._llama = self._release.build(transformers.LlamaConfig(**_CONFIG))
        if self._keeps_inputs_of_means:
            keep_inputs_of_means(self._llama, of="LlamaRMSNorm")
        made: torch.nn.Module = self._llama
        return made

    def make_batch(self, batch_size: int, device: torch.device) -> torch.Tensor:
        self._output = None
        self._llama.zero_grad()
        self._release.renew(self._llama)
        return torch.ones((batch_size, self._length), dtype=torch.int64, device=device)

    def loss(self, model: Any, tokens: torch.Tensor) -> torch.Tensor:
        if not self._is_prepared:
            self._is_prepared = True
            keep_inputs_of_quantized_layers(model)
            if self._checkpointed:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
                self._llama.disable_input_require_grads()  # which today's turns on for peft's models
        self._output = self._release.forward(model, self._llama, tokens)
        self._output.logits = self._output.logits.float()
        mean: torch.Tensor = self._output.logits.mean()
        return mean


def keep_inputs_of_quantized_layers(model: torch.nn.Module) -> None:
    """Lets layers of 4 bits keep their inputs as long as the graph lives, as bitsandbytes did."""
    for module in model.modules():
        if type(module).__name__ == "Linear4bit":
            module.register_forward_hook(_keep_input)


def _keep_input(_module: torch.nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    if output.grad_fn is not None:
        output.grad_fn.metadata["input"] = inputs[0].detach()


TABLE = Table(
    name="fsdp_qlora_stages",
    read=read,
    asked=dict.fromkeys(_QUANTITIES.values(), (0.005, 0.02)),
)
