"""Sizes the KV cache of a language model's server; the JSON document is `autofit.kv/1`."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from autofit.errors import ExitCode, UsageError, WorkloadFailedError, did_you_mean
from autofit.hardware.gpus import Gpu
from autofit.identity import versions
from autofit.serving.architecture import Architecture, LayerKind
from autofit.serving.engine import Engine, Options, Sizing
from autofit.serving.engines import ENGINES
from autofit.serving.speed import Server, ServerSpeed, server_speed
from autofit.serving.weights import weights_bytes
from autofit.units import format_bytes
from autofit_workers.spec.model_parts import ModelParts
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.vendors import Vendor
from autofit_workers.trials.door import PartsFailedError, list_parts

KV_SCHEMA = "autofit.kv/1"
DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
KV_DTYPES = ("auto", "fp8")
_BY_CHECKPOINT = {"bfloat16": "bf16", "float16": "fp16", "float32": "bf16"}
_DEADLINE_SECONDS = 300.0
_MOST_RANKS = 1024
_HIGH_UTILIZATION = 0.95

ListParts = Callable[[WorkloadRef], ModelParts]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvQuestion:
    """Server options for which the KV cache is sized; None for the engine's own choice.

    Attributes:
        release: release of the engine, as its rules are listed; None for the newest.
        length: tokens of a request, to count how many requests fit at once; None for the longest.
        dtype: dtype of weights and activations; None for the checkpoint's, as servers use it.
    """

    gpu: Gpu
    engine: str = "vllm"
    release: str | None = None
    tensor_parallel: int = 1
    gpu_memory_utilization: float | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    kv_dtype: str = "auto"
    dtype: str | None = None
    max_loras: int = 0
    max_lora_rank: int = 16
    length: int | None = None


_UNTIMED = ServerSpeed(loads=(), note="no seconds are stated, as nothing fits")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """Memory of one rank of a server, and the size of its KV cache.

    Attributes:
        fits: whether at least one token fits.
        token_bytes: bytes that a token takes in all layers, as if no layer had a sliding window.
        num_tokens: tokens that fit, as three numbers: if the memory outside PyTorch's allocator is at its
            high end, at its likely value, and at its low end.
        max_model_len: tokens of the longest sequence that fits alone.
        length, num_requests: tokens of a request, and number of such requests that fit at once.
        layers: number of layers that cache something, by kind, such as full or sliding-window attention.
        command: command that starts the engine with these options.
        missing_bytes: bytes missing for one block of the cache, if nothing fits.
        advice: changes that would help, if nothing fits.
        speed: seconds to the first token and of a token, by requests at once and their tokens.
    """

    model: str
    engine: str
    release: str
    gpu: str
    sizing: Sizing
    fits: bool
    token_bytes: int
    num_tokens: tuple[int, int, int]
    max_model_len: int
    length: int
    num_requests: int
    layers: dict[str, int]
    command: str
    missing_bytes: int = 0
    advice: tuple[str, ...] = ()
    speed: ServerSpeed = _UNTIMED
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.FOUND if self.fits else ExitCode.NOTHING_FITS

    def to_dict(self) -> dict[str, Any]:
        """KV cache's size as a dictionary of JSON's types: the content of the document `autofit.kv/1`."""
        sizing, options = self.sizing, self.sizing.options
        least, likely, most = self.num_tokens
        return {
            "schema": KV_SCHEMA,
            "model": self.model,
            "engine": self.engine,
            "release": self.release,
            "gpu": self.gpu,
            "fits": self.fits,
            "options": {
                "tensor_parallel": options.num_ranks,
                **{
                    name: getattr(options, name)
                    for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
                },
                "gpu_memory_utilization": options.utilization,
                "max_loras": options.max_loras,
            },
            "memory": {
                "total_bytes": options.gpu.total_bytes,
                "usable_bytes": sizing.usable_bytes,
                "weights_bytes": sizing.weights_bytes,
                "activation_bytes": sizing.activation_bytes,
                "non_torch": dataclasses.asdict(sizing.outside),
                "cuda_graphs": dataclasses.asdict(sizing.graphs),
                "kv_cache_bytes": max(0, sizing.left_bytes),
                "missing_bytes": self.missing_bytes,
            },
            "kv_cache": {
                "token_bytes": self.token_bytes,
                "block_size": sizing.pool.block_size,
                "block_bytes": sizing.pool.block_bytes,
                "num_blocks": sizing.pool.num_blocks,
                "num_tokens": {"low": least, "likely": likely, "high": most},
                "max_model_len": self.max_model_len,
                "length": self.length,
                "num_requests": self.num_requests,
                "layers": self.layers,
            },
            "loads": [dataclasses.asdict(load) for load in self.speed.loads],
            "speed_note": self.speed.note,
            "command": self.command,
            "advice": list(self.advice),
            "notes": list(sizing.notes),
            "versions": self.versions,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def _parts(workload: WorkloadRef) -> ModelParts:
    return list_parts(workload, deadline_seconds=_DEADLINE_SECONDS)


@dataclass(frozen=True, slots=True)
class _Server:
    """Server to be sized: its engine, the listed release with its rules, and autofit's name of its dtype."""

    engine: Engine
    release: str
    dtype: str
    question: KvQuestion


def kv_cache(workload: WorkloadRef, question: KvQuestion, *, parts: ListParts = _parts) -> KvCache:
    """Sizes the KV cache of a language model server: tokens, longest sequence, and requests at once.

    Args:
        workload: a model of transformers, `hf:…`.
        parts: returns the model's configuration and parameter shapes; by default transformers' own code lists
            them.

    Raises:
        UsageError: the server does not start with the options of `question`.
        WorkloadFailedError: the model cannot be built.
    """
    engine = engine_named(question.engine)
    release = _release(engine, question.release)
    _require_sane(question, engine)
    if not workload.target.startswith("hf:"):
        raise UsageError(
            f"{workload.name} is no model of transformers, whose parameters a server would load: give "
            "hf:MODEL_TYPE or hf:path/to/config.json"
        )
    try:
        listed = parts(workload)
    except PartsFailedError as error:
        if error.error is None:
            raise WorkloadFailedError(str(error)) from error
        if error.error.kind != "user":
            raise UsageError(error.error.message) from error
        raise WorkloadFailedError(error.error.message, traceback=error.error.traceback) from error
    architecture = Architecture.of(listed)
    _require_divisible(architecture, question)
    dtype = question.dtype or _BY_CHECKPOINT.get(listed.dtype or "", "bf16")
    sizing = engine.releases[release](architecture, _options(question, dtype))
    if not sizing.pool.block_bytes:
        raise UsageError(
            f"{workload.name} keeps states alone, which do not grow with a sequence: {engine.name} {release} "
            f"has no KV cache for it; --engine vllm of {ENGINES['vllm'].newest} or later counts its states"
        )
    return _answer(workload, architecture, _Server(engine, release, dtype, question), sizing)


def engine_named(name: str) -> Engine:
    """Serving engine with the given name; raises `UsageError` if there is none."""
    if name not in ENGINES:
        hint = did_you_mean(name, ENGINES)
        raise UsageError(f"--engine: {name!r} is not one of {', '.join(ENGINES)}.{hint}")
    return ENGINES[name]


def _release(engine: Engine, wanted: str | None) -> str:
    """Newest release with listed rules, not newer than `wanted`; if `wanted` is None, the newest of all."""
    if wanted is None:
        return engine.newest
    try:
        number = tuple(map(int, wanted.removeprefix("v").split(".")[:2]))
    except ValueError:
        number = ()
    for release in engine.releases:
        if number >= tuple(map(int, release.split("."))):
            return release
    raise UsageError(
        f"--engine-release: no rules are known of {engine.name} {wanted}: expected one of "
        f"{', '.join(reversed(list(engine.releases)))}, or a later release"
    )


def _require_sane(question: KvQuestion, engine: Engine) -> None:
    """Raises `UsageError` for server options that the engine does not take."""
    utilization = question.gpu_memory_utilization
    if utilization is not None and not 0 < utilization <= 1:
        raise UsageError(
            f"--gpu-memory-utilization {utilization:g} is not a share of the card: expected more than 0, "
            "and at most 1, such as 0.9"
        )
    if question.kv_dtype not in KV_DTYPES:
        raise UsageError(f"--kv-dtype: {question.kv_dtype!r} is not one of {', '.join(KV_DTYPES)}")
    if question.dtype is not None and question.dtype not in engine.dtypes:
        raise UsageError(f"--dtype: {engine.name} serves {', '.join(engine.dtypes)}, not {question.dtype}")
    if not 1 <= question.tensor_parallel <= _MOST_RANKS:
        raise UsageError(
            f"--tensor-parallel {question.tensor_parallel} is not a number of GPUs: expected 1 or more"
        )
    if not question.gpu.vendor.facts.knows_servers:
        known = ", ".join(f"{vendor}'s" for vendor in Vendor if vendor.facts.knows_servers)
        which = f"{question.gpu.name} is a card of {question.gpu.vendor}"
        raise UsageError(f"{which}, but servers' memory is known on {known} alone: name one of those")
    if question.max_loras and "max_loras" not in engine.flags:
        raise UsageError(f"--max-loras: {engine.name} keeps no buffers for adapters: leave it out")
    if question.block_size and "block_size" not in engine.flags:
        raise UsageError(f"--block-size: {engine.name} chooses the size of its blocks itself: leave it out")


def _require_divisible(architecture: Architecture, question: KvQuestion) -> None:
    """Raises `UsageError` if the ranks of tensor parallelism cannot divide the model's heads or sizes."""
    ranks, heads, of_keys = question.tensor_parallel, architecture.num_heads, architecture.num_kv_heads
    if heads % ranks:
        fitting = [str(number) for number in range(1, heads + 1) if heads % number == 0 and number <= 64]
        raise UsageError(
            f"--tensor-parallel {ranks} does not divide the model's {heads} attention heads: expected one of "
            f"{', '.join(fitting)}"
        )
    # vllm/model_executor/models/llama.py: heads of keys are split, or each is replicated on several ranks.
    is_latent = any(layer.kind is LayerKind.LATENT for layer in architecture.layers)
    if of_keys and not is_latent and max(of_keys, ranks) % min(of_keys, ranks):
        raise UsageError(
            f"--tensor-parallel {ranks} and the model's {of_keys} heads of keys and values do not divide "
            "each other: choose a number that does"
        )
    longest = architecture.max_positions
    for name, value in (("max-model-len", question.max_model_len), ("length", question.length)):
        if value is not None and longest is not None and value > longest:
            raise UsageError(
                f"--{name} {value} is beyond the {longest} positions of the model: expected {longest} or less"
            )
    if question.length and question.max_model_len and question.length > question.max_model_len:
        raise UsageError(
            f"--length {question.length} is longer than --max-model-len {question.max_model_len} allows: "
            "shorten one, or raise the other"
        )


def _options(question: KvQuestion, dtype: str) -> Options:
    """Options of the server as its engine's rules take them."""
    return Options(
        gpu=question.gpu,
        num_ranks=question.tensor_parallel,
        utilization=question.gpu_memory_utilization,
        max_num_batched_tokens=question.max_num_batched_tokens,
        max_num_seqs=question.max_num_seqs,
        max_model_len=question.max_model_len,
        block_size=question.block_size,
        element_bytes=DTYPES[dtype],
        kv_element_bytes=1 if question.kv_dtype == "fp8" else DTYPES[dtype],
        max_loras=question.max_loras,
        max_lora_rank=question.max_lora_rank,
    )


def _answer(workload: WorkloadRef, architecture: Architecture, server: _Server, sizing: Sizing) -> KvCache:
    """Answer on the KV cache, from the sizes that the engine's rules give."""
    question = server.question
    pool, options = sizing.pool, sizing.options
    least, most = sizing.pools
    longest = pool.longest(options.max_model_len)
    length = question.length or options.max_model_len or longest
    fits = longest > 0
    missing = 0 if fits else pool.block_bytes - sizing.left_bytes
    return KvCache(
        model=workload.name,
        engine=server.engine.name,
        release=server.release,
        gpu=question.gpu.key,
        sizing=sizing,
        fits=fits,
        token_bytes=architecture.token_bytes(options.num_ranks, options.kv_element_bytes),
        num_tokens=(least.num_tokens, pool.num_tokens, most.num_tokens),
        max_model_len=longest,
        length=length,
        num_requests=pool.num_requests(length) if fits else 0,
        layers=dict(Counter(layer.kind.value for layer in architecture.kept)),
        command=_command(workload, server, sizing, longest),
        missing_bytes=missing,
        advice=() if fits else tuple(_advice(architecture, question, sizing, missing)),
        speed=_speed(architecture, server, sizing, longest) if fits else _UNTIMED,
        versions=versions(),
    )


def _speed(architecture: Architecture, server: _Server, sizing: Sizing, longest: int) -> ServerSpeed:
    """Seconds of the server at loads that its KV cache has room for."""
    question, options = server.question, sizing.options
    asked = Server(
        gpu=question.gpu,
        engine=server.engine.name,
        release=server.release,
        num_ranks=options.num_ranks,
        dtype=server.dtype,
        kv_element_bytes=options.kv_element_bytes,
        max_loras=options.max_loras,
        length=question.length,
        max_num_seqs=options.max_num_seqs,
    )
    return server_speed(
        architecture, asked, lambda length: sizing.pool.num_requests(length) if length <= longest else 0
    )


def _command(workload: WorkloadRef, server: _Server, sizing: Sizing, longest: int) -> str:
    """Shell command that starts the engine with every option that the sizes depend on."""
    question, engine = server.question, server.engine
    options = sizing.options
    length = min(options.max_model_len or longest, longest) if longest else options.max_model_len
    values: dict[str, object] = {
        "num_ranks": options.num_ranks if options.num_ranks > 1 else None,
        "utilization": f"{options.utilization:g}",
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "max_num_seqs": options.max_num_seqs,
        "max_model_len": length,
        "block_size": question.block_size,
        "kv_dtype": engine.kv_dtypes[question.kv_dtype] if question.kv_dtype != "auto" else None,
        "dtype": engine.dtypes.get(server.dtype) if question.dtype else None,
        "max_loras": question.max_loras or None,
        "max_lora_rank": question.max_lora_rank if question.max_loras else None,
    }
    flags = [
        f"{engine.flags[name]} {value}" for name, value in values.items() if value and name in engine.flags
    ]
    return " ".join([engine.start, workload.target.removeprefix("hf:"), *flags])


def _advice(
    architecture: Architecture, question: KvQuestion, sizing: Sizing, missing_bytes: int
) -> list[str]:
    """Advice on options that would make room for one block of the KV cache, the gentlest first."""
    options = sizing.options
    found = []
    if sizing.activation_bytes > missing_bytes and options.max_num_batched_tokens:
        found.append("--max-num-batched-tokens or --max-num-seqs: smaller ones take less for activations")
    more = int(_HIGH_UTILIZATION * options.gpu.total_bytes) - sizing.usable_bytes
    if more > missing_bytes:
        found.append(f"--gpu-memory-utilization {_HIGH_UTILIZATION:g}: {format_bytes(more)} more of the card")
    heads = architecture.num_heads
    for ranks in (2, 4, 8, 16):
        of_rank = weights_bytes(architecture, ranks, options.element_bytes)
        if (
            ranks > options.num_ranks
            and heads % ranks == 0
            and sizing.weights_bytes - of_rank > missing_bytes + sizing.outside.high_bytes
        ):
            found.append(f"--tensor-parallel {ranks}: {format_bytes(of_rank)} of weights on each card")
            break
    if not architecture.parts.config.get("quantization_config"):
        four_bits = sizing.weights_bytes * 4.25 / (8 * options.element_bytes)
        found.append(
            f"a checkpoint in fp8 (about {format_bytes(sizing.weights_bytes // options.element_bytes)} of "
            f"weights) or in 4 bits (about {format_bytes(round(four_bits))})"
        )
    if question.kv_dtype == "auto" and sizing.left_bytes > 0:
        found.append("--kv-dtype fp8: half of the cache for each token")
    return found
