"""silicon_sample.csv of aiconfigurator-core 0.12.0: loads of servers with their times, on six systems.

Source: NVIDIA's wheel (see `tests/bench/time/wheel.py`), 5,221 rows: SemiAnalysis' InferenceMAX, and runs of
NVIDIA's own. A row names model, engine, system, precision, tokens of prompt and answer, requests at once, and
the mean time to the first token and of a token after it. Models' configurations are of the same wheel;
transformers lists their parameters. Nothing of it is copied here.

What is left out, by rules that know nothing of our error:

    disaggregated     prompts and answers on different cards, most rows without the number of workers
    beyond a node     12 to 72 cards that share each layer, which no model's heads divide into
    unclear layout    NVIDIA's runs whose ranks of experts are not those of the rest, or whose batch is not
                      the number of requests
    untimed model     the product predicts no seconds of its parts (GLM-5 chooses keys token by token)

InferenceMAX counts the cards of a server as its tensor parallelism, and experts are spread over the same
cards; the table takes both for factors of the number of cards where both are named.
"""

from __future__ import annotations

import csv
import functools
import json
import math
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autofit.serving.architecture import Architecture
from autofit.serving.decoders import Ranks, Stored, UntimedModelError, decoder_of
from autofit.settings.workloads import refer
from autofit_workers.replay.time.collectives import network_of
from autofit_workers.replay.time.constants import constants
from autofit_workers.replay.time.costs import Costs
from autofit_workers.replay.time.serving import FLOAT4, Decoder, Load
from autofit_workers.spec.model_parts import Parameter
from autofit_workers.trials.door import list_parts
from tests.bench.time import cards

FITTED = ("h100_sxm", "b200_sxm")
NEVER_FITTED = ("h200_sxm", "gb200", "b300_sxm", "gb300")
ENGINES = ("vllm", "sglang", "trtllm")
# Models without a part in any fit, on whatever system.
HELD_MODELS = ("Qwen/Qwen3.5-397B-A17B", "moonshotai/Kimi-K2.5")
_CONFIGS = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-R1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-ai/DeepSeek-V3",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
}
# Bits of a weight with its scales, and the type of products with it.
_STORED = {
    "fp8": (8.0, "float8_e4m3fn"),
    "fp8_block": (8.0, "float8_e4m3fn"),
    "nvfp4": (4.5, FLOAT4),
    "int4_wo": (4.5, "bfloat16"),
    "": (16.0, "bfloat16"),
}
_MXFP4 = (4.25, FLOAT4)
# Bytes of a card's memory, by its data sheet, and what of it is not left to weights and cache.
_MEMORY = {"h100_sxm": 80e9, "h200_sxm": 141e9, "b200_sxm": 180e9, "gb200": 186e9}
_MEMORY |= dict.fromkeys(("b300_sxm", "gb300"), 275e9)
_TAKEN_BYTES, _UTILIZATION = 4e9, 0.9
_MEAN_AGE = 0.75  # of an answer, of the requests that the cache holds
_NODE = (1, 2, 4, 8)
# Share of the prompts that arrive at once, which is how the loads were made: requests start together, and an
# engine that takes prompts first keeps them so. Fitted with the constants of the engines, on the same rows.
TOGETHER = {
    ("trtllm", False): 0.051, ("trtllm", True): 0.15, ("vllm", False): 0.12, ("vllm", True): 0.12,
    ("sglang", False): 0.42, ("sglang", True): 0.53,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRow:
    """One load of a server that was timed.

    Attributes:
        name: the row's name in the table.
        of_nvidia: whether NVIDIA ran it, rather than InferenceMAX.
        ranks: how its ranks share the model.
        load: its requests, with those that the memory has room for.
        may_guess: whether the engine may have guessed several tokens at once, which the table does not say.
    """

    name: str
    model: str
    system: str
    engine: str
    precision: str
    of_nvidia: bool
    ranks: Ranks
    decoder: Decoder
    load: Load
    first_seconds: float
    token_seconds: float
    may_guess: bool

    @property
    def has_room(self) -> bool:
        """Whether the memory has room for all requests at once."""
        return self.load.room is None or self.load.requests <= self.load.room * self.decoder.num_groups

    @property
    def is_fitted(self) -> bool:
        return self.system in FITTED and self.model not in HELD_MODELS


class Loads:
    """Rows of the table with their models.

    Args:
        folder: the wheel's tables by card, as `wheel.unpacked` returns it.

    Attributes:
        rows: rows that are scored.
        left_out: number of rows that are not, by reason.
    """

    def __init__(self, folder: Path) -> None:
        self._configs = folder.parents[1] / "model_configs"
        self._architectures: dict[str, Architecture] = {}
        self._decoders: dict[tuple[str, str, str, Ranks, int], Decoder] = {}
        self.rows: list[LoadRow] = []
        self.left_out: Counter[str] = Counter()
        with (folder.parent / "silicon_sample.csv").open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                row = self._row(line)
                if isinstance(row, str):
                    self.left_out[row] += 1
                else:
                    self.rows.append(row)

    def _row(self, line: Mapping[str, str]) -> LoadRow | str:
        """The row of a line of the table, or why it is left out."""
        if line["mode"] != "agg":
            return "disaggregated"
        of_nvidia = "gap-analysis" in line["silicon_data_source"]
        requests = _requests(line)
        ranks = _of_nvidia(line, requests) if of_nvidia else _of_inferencemax(line)
        if requests is None or ranks is None:
            return "unclear layout" if of_nvidia else "beyond a node"
        try:
            decoder = self._decoder(line, ranks, _kv_bytes(line, of_nvidia=of_nvidia))
        except UntimedModelError:
            return "untimed model"
        prompt, answer = int(line["isl"]), int(line["osl"])
        load = Load(
            requests=requests,
            prompt=prompt,
            answer=answer,
            together=TOGETHER[line["backend"], of_nvidia],
            room=_room(line["system"], decoder, prompt + _MEAN_AGE * answer),
        )
        return LoadRow(
            name=line["id"],
            model=line["model_path"],
            system=line["system"],
            engine=line["backend"],
            precision=line["gemm_quant_mode"] or "bf16",
            of_nvidia=of_nvidia,
            ranks=ranks,
            decoder=decoder,
            load=load,
            first_seconds=float(line["silicon_ttft_ms"]) / 1e3,
            token_seconds=float(line["silicon_tpot_ms"]) / 1e3,
            may_guess="DeepSeek" in line["model_path"] and line["backend"] == "trtllm",
        )

    def _decoder(self, line: Mapping[str, str], ranks: Ranks, kv_bytes: int) -> Decoder:
        model, products, experts = line["model_path"], line["gemm_quant_mode"], line["moe_quant_mode"]
        key = model, products, experts, ranks, kv_bytes
        if key not in self._decoders:
            architecture = self._architecture(model)
            stored = _stored(model, products, experts, "kv_lora_rank" in architecture.parts.config)
            self._decoders[key] = decoder_of(architecture, ranks, stored, kv_bytes=kv_bytes)
        return self._decoders[key]

    def _architecture(self, model: str) -> Architecture:
        """Layers of a model; its configuration without the quantization, of which the rows have their own."""
        name = _CONFIGS.get(model, model)
        if name not in self._architectures:
            path = self._configs / f"{name.replace('/', '--')}_config.json"
            config = json.loads(path.read_text(encoding="utf-8"))
            for part in (config, config.get("text_config", {})):
                part.pop("quantization_config", None)
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / "config.json"
                copy.write_text(json.dumps(config), encoding="utf-8")
                parts = list_parts(refer(f"hf:{copy}"), deadline_seconds=300.0)
            self._architectures[name] = Architecture.of(parts)
        return self._architectures[name]


@functools.cache
def costs(system: str) -> Costs:
    """Seconds of kernels on a system's cards, with their links."""
    speeds = cards.speeds(system)
    return Costs(speeds, constants(), network=network_of(speeds.name, speeds.architecture))


def _requests(line: Mapping[str, str]) -> int | None:
    found = re.search(r"silicon_concurrency=(\d+)", line["silicon_data_source"])
    return int(found[1]) if found else None


def _number(text: str) -> int:
    return int(text) if text else 0


def _of_nvidia(line: Mapping[str, str], requests: int | None) -> Ranks | None:
    num_ranks = _number(line["tp_size"])
    split, spread = _number(line["moe_tp_size"]), _number(line["moe_ep_size"])
    has_experts = split * spread == num_ranks
    is_dense = "Llama" in line["model_path"] or "Qwen3-32B" in line["model_path"]
    if _number(line["attention_dp_size"]) > 1 or requests != _number(line["batch_size"]):
        return None
    if not has_experts and not is_dense:
        return None
    return Ranks(num_ranks=num_ranks, spread_experts=spread if has_experts else 1)


def _of_inferencemax(line: Mapping[str, str]) -> Ranks | None:
    num_ranks, own = _number(line["tp_size"]), _number(line["attention_dp_size"])
    split, spread = _number(line["moe_tp_size"]), _number(line["moe_ep_size"])
    if split > 1 and spread > 1:
        cards_of_server = split
    elif split == 1 and own > 1 and num_ranks > 1:
        cards_of_server = num_ranks
    else:
        cards_of_server = split * spread
    if cards_of_server not in _NODE:
        return None
    return Ranks(
        num_ranks=cards_of_server,
        spread_experts=cards_of_server if spread > 1 else 1,
        has_own_requests=own > 1,
    )


def _kv_bytes(line: Mapping[str, str], *, of_nvidia: bool) -> int:
    """Bytes of an element of the cache: fp8 where InferenceMAX' commands say so (TensorRT-LLM, Llama)."""
    is_narrow = line["gemm_quant_mode"] in ("fp8", "nvfp4") and not of_nvidia
    return 1 if is_narrow and (line["backend"] == "trtllm" or "Llama" in line["model_path"]) else 2


def _stored(model: str, products: str, experts: str, is_latent: bool) -> Stored:
    """How the checkpoint that a row names stores a parameter: routers, head and embedding in bfloat16."""

    def of(parameter: Parameter) -> tuple[float, str]:
        name = parameter.name
        is_of_expert = ".experts." in name
        if ".layers." not in name or "gate.weight" in name or "router" in name:
            return _STORED[""]
        if model.startswith("openai/"):  # MXFP4 of experts alone, whatever the row says
            return _MXFP4 if is_of_expert else _STORED[""]
        if products == "int4_wo" and not is_of_expert:
            return _STORED[""]
        if products == "nvfp4" and is_latent and "attn" in name:  # as in NVIDIA's checkpoints
            return _STORED[""]
        return _STORED[experts if is_of_expert else products]

    return of


def _room(system: str, decoder: Decoder, length: float) -> int:
    """Requests of a length that fit on each group of ranks."""
    left = _UTILIZATION * _MEMORY[system] - decoder.weights_bytes - _TAKEN_BYTES
    return max(1, math.floor(left / decoder.cache_bytes(length)))
