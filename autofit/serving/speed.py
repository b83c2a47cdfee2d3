"""Seconds of a server: how soon a request has its first token, and how fast tokens follow.

`autofit_workers.replay.time.serving` predicts them from the model's own shapes. They are stated for what
measured loads are behind: cards of the generations that constants were fitted for, several if NVLink joins
them in a node, requests of as many tokens, and engines whose errors are small enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autofit.explain.timing import StepSeconds
from autofit.hardware.chips import device_properties
from autofit.hardware.gpus import Gpu
from autofit.serving.architecture import Architecture
from autofit.serving.decoders import Ranks, UntimedModelError, decoder_of
from autofit.serving.weights import stored_bits
from autofit_workers.replay.time.collectives import network_of
from autofit_workers.replay.time.constants import constants
from autofit_workers.replay.time.costs import Costs
from autofit_workers.replay.time.interval import time_residuals
from autofit_workers.replay.time.serving import (
    FLOAT4,
    EngineConstants,
    ServingCosts,
    ServingSpread,
    engine_constants,
    serving_spread,
)
from autofit_workers.replay.time.speeds import speeds_of
from autofit_workers.spec.model_parts import Parameter

# Most tokens of a request, and most requests at once, of the measured loads.
MOST_TOKENS, MOST_REQUESTS = 16_384, 512
_SINCE = {"vllm": (0, 11), "sglang": (0, 5)}  # releases like those of the measured servers
_LINKS = ("nvlink4", "nvlink5")  # of the measured servers
_CONTEXTS = (1024, 8192)
_BATCHES = (1, 4, 16, 64, 256)
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
# Types of products with quantized weights, by the checkpoint's name of the method.
_ARITHMETIC = {"fp8": "float8_e4m3fn", "fbgemm_fp8": "float8_e4m3fn", "mxfp4": FLOAT4}


class UntimedServerError(ValueError):
    """Seconds of a server are not stated; the message says why, as the end of a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLoad:
    """Predicted seconds of a server at one load.

    Attributes:
        num_requests: requests that are answered at once.
        context: tokens of each of them so far, and of the prompt of one that comes.
        first_token_seconds: seconds from the arrival of one more request to its first token, as the last of
            `num_requests`; None where the error of such a time is too large to state it.
        token_seconds: seconds of a pass that makes one token of each request.
        tokens_per_second: likely tokens a second of all requests, while no prompt comes.
    """

    num_requests: int
    context: int
    first_token_seconds: StepSeconds | None
    token_seconds: StepSeconds
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Server whose seconds are asked for.

    Attributes:
        engine, release: the engine's name, and its release by whose rules the memory is sized.
        num_ranks: ranks of tensor parallelism.
        dtype: data type of weights that are not quantized: `bf16`, `fp16` or `fp32`.
        kv_element_bytes: bytes of an element of the KV cache.
        max_loras: adapters on the card at once.
        length: tokens of a request that the seconds are wanted for as well; None for none.
        max_num_seqs: most requests that the engine answers at once; None for no limit.
    """

    gpu: Gpu
    engine: str
    release: str
    num_ranks: int
    dtype: str
    kv_element_bytes: int
    max_loras: int = 0
    length: int | None = None
    max_num_seqs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpeed:
    """Predicted seconds of a server at several loads.

    Attributes:
        loads: the loads; empty if no seconds are stated.
        note: sentence on what the seconds are based on, or why there are none.
    """

    loads: tuple[ServedLoad, ...]
    note: str


def server_speed(architecture: Architecture, server: Server, room: Callable[[int], int]) -> ServerSpeed:
    """Predicted seconds of a server at loads that its KV cache has room for.

    Args:
        architecture: the model.
        room: returns how many requests of a number of tokens fit at once.
    """
    try:
        spread, costs = _timed(architecture, server)
    except UntimedServerError as error:
        return ServerSpeed(loads=(), note=f"no seconds are stated, as {error}")
    loads = tuple(_loads(costs, spread, server, room))
    if not loads:
        return ServerSpeed(
            loads=(), note=f"no seconds are stated, as no request of {_CONTEXTS[0]:,} tokens fits"
        )
    within = f"{100 * spread.token_sigma:.0f}%"
    said = f"seconds: a token of {server.engine} is usually within {within} of a measured one"
    if spread.first_sigma <= time_residuals().most_sigma:
        said += f", the first one within {100 * spread.first_sigma:.0f}%"
    else:
        said += "; how soon the first one comes varies too much to state it"
    if server.length is not None and server.length > MOST_TOKENS:
        said += f"; of more than {MOST_TOKENS:,} tokens no request was measured"
    return ServerSpeed(loads=loads, note=said)


def _timed(architecture: Architecture, server: Server) -> tuple[ServingSpread, ServingCosts]:
    """Spread of the errors of a server's seconds, and what predicts them.

    Raises:
        UntimedServerError: they are not stated.
    """
    spread = serving_spread(server.engine)
    is_sure = spread is not None and spread.token_sigma <= time_residuals().most_sigma
    if spread is None or not is_sure or server.engine not in _SINCE:
        raise UntimedServerError(f"there are no measured times of {server.engine} to check them against")
    if tuple(map(int, server.release.split("."))) < _SINCE[server.engine]:
        raise UntimedServerError(
            f"there are no measured times of {server.engine} {server.release} to check them against"
        )
    costs, engine = _of_card(server)
    if server.max_loras:
        raise UntimedServerError("adapters are not timed")
    if server.dtype not in _DTYPES:
        raise UntimedServerError(f"there are no measured times of servers in {server.dtype}")
    method = str((architecture.parts.config.get("quantization_config") or {}).get("quant_method", ""))
    if method and method not in _ARITHMETIC:
        raise UntimedServerError(f"there are no measured times of weights in {method}")
    bits, dtype = stored_bits(architecture), _DTYPES[server.dtype]

    def stored(parameter: Parameter) -> tuple[float, str]:
        found = bits(parameter)
        return (16.0, dtype) if found is None else (found, _ARITHMETIC[method])

    try:
        decoder = decoder_of(
            architecture, Ranks(num_ranks=server.num_ranks), stored, kv_bytes=server.kv_element_bytes
        )
    except UntimedModelError as error:
        raise UntimedServerError(str(error)) from error
    return spread, ServingCosts(costs, decoder, engine)


def _of_card(server: Server) -> tuple[Costs, EngineConstants]:
    """Seconds of kernels on a server's cards, and the engine's constants there."""
    gpu = server.gpu
    if gpu.is_mig_slice:
        raise UntimedServerError("slices of a card are not timed")
    speeds = speeds_of(device_properties(gpu))
    engine = engine_constants(server.engine, speeds.generation)
    if engine is None:
        raise UntimedServerError(
            f"there are no measured servers on cards like {gpu.key} to check them against"
        )
    network = network_of(speeds.name, speeds.architecture)
    if server.num_ranks > 1:
        if network is None or network.name not in _LINKS:
            raise UntimedServerError(
                f"there are no measured servers on several {gpu.key}, which NVLink does not join"
            )
        if server.num_ranks > network.num_cards:
            raise UntimedServerError(
                f"a node has {network.num_cards} cards, and servers on several are not timed"
            )
    return Costs(speeds, constants(), network=network), engine


def _loads(
    costs: ServingCosts, spread: ServingSpread, server: Server, room: Callable[[int], int]
) -> Iterator[ServedLoad]:
    wanted = {*_CONTEXTS, *([server.length] if server.length else [])}
    for context in sorted(each for each in wanted if each <= MOST_TOKENS):
        most = min(room(context), server.max_num_seqs or MOST_REQUESTS, MOST_REQUESTS)
        batches = [each for each in _BATCHES if each < most] + ([most] if most else [])
        for batch in batches:
            yield _load(costs, spread, batch, context)


def _load(costs: ServingCosts, spread: ServingSpread, batch: int, context: int) -> ServedLoad:
    token = costs.token_seconds(batch, context)
    others = costs.token_seconds(batch - 1, context) if batch > 1 else 0.0
    first = None
    if spread.first_sigma <= time_residuals().most_sigma:
        first = _with_interval(costs.first_seconds(context, others), spread, spread.first_sigma)
    return ServedLoad(
        num_requests=batch,
        context=context,
        first_token_seconds=first,
        token_seconds=_with_interval(token, spread, spread.token_sigma),
        tokens_per_second=batch / token,
    )


def _with_interval(seconds: float, spread: ServingSpread, sigma: float) -> StepSeconds:
    wide, narrow = spread.factor(sigma, 0.95), spread.factor(sigma, 0.80)
    return StepSeconds(
        low=seconds / wide,
        likely=seconds,
        high=seconds * wide,
        low_80=seconds / narrow,
        high_80=seconds * narrow,
    )
