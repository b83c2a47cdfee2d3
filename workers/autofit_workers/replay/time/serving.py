"""Seconds of a language model's server: of a prompt's pass, of one more token, and of many requests at once.

    pass        the layers, one after another: products of the tokens with the weights, attention, the
                exchange among the ranks of tensor parallelism, and small kernels beside them
    prompt      all tokens of a prompt in one pass
    token       one token of each sequence: weights are read once, keys and values of every sequence
    load        requests that follow each other, so many at once: a pass for a prompt keeps the others waiting

All are of one rank, whose part of the model is given. Engines replay passes for single tokens as CUDA graphs,
so the host takes time for a pass rather than for each kernel. Experts are as if tokens chose at random.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from autofit_workers.replay.time.attention import attention_bytes
from autofit_workers.replay.time.collectives import Exchange
from autofit_workers.replay.time.costs import Costs
from autofit_workers.replay.time.kernels import Attention, Kernel, KernelClass, Product
from autofit_workers.replay.time.tables import text_of
from autofit_workers.spec.pythons import read_toml
from autofit_workers.spec.work import ELEMENT_BYTES, Group

SCHEMA = "autofit.serving/1"
FLOAT4 = "float4_e2m1fn_x2"
_FLOAT8, _USUAL = "float8_e4m3fn", "bfloat16"
_ACTIVATION_BYTES = 2
_EXCHANGES = 2  # of a layer: after attention, and after the products that follow
_TOKENS_OF_STATE = 64  # of a prompt that a state is computed for at once
# Share of the bandwidth between two cards that the engines' own all-reduces reach: of the wheel's tables
# (custom_allreduce_perf) 0.39 with 2 MB and 0.47 with 8 MB of eight H100s, 0.26 and 0.39 of eight B200s.
_OWN_SHARE = 0.37
# Cards whose tensor cores multiply in fp4, at twice the rate of fp8 (NVIDIA's Blackwell architecture papers).
_WITH_FLOAT4 = ("sm_100", "sm_120")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """One rank's part of a weight that tokens are multiplied with, or of experts that share the tokens.

    Attributes:
        rows, columns: numbers of outputs and inputs.
        bits: bits of an element with its scales.
        dtype: data type of the product.
        experts: number of matrices like it on the rank; 1 for a weight that all tokens are multiplied with.
        taken: matrices that a token is multiplied with, of those on all ranks.
        spread: number of ranks that the experts are spread over.
    """

    rows: int
    columns: int
    bits: float = 16.0
    dtype: str = "bfloat16"
    experts: int = 1
    taken: int = 1
    spread: int = 1

    @property
    def num_bytes(self) -> float:
        return self.rows * self.columns * self.experts * self.bits / 8

    def used(self, tokens: int) -> tuple[float, float]:
        """Matrices that some token needs, if tokens choose at random, and the tokens of each of those."""
        if self.experts == 1:
            return 1.0, float(tokens)
        every = self.experts * self.spread
        used = self.experts * (1 - (1 - min(1.0, self.taken / every)) ** tokens)
        return used, max(1.0, tokens * self.taken / self.spread / used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """One rank's heads of attention in a layer.

    Attributes:
        heads, kv_heads: heads of queries, and of keys.
        width: elements of a head.
        window: keys that a query attends to at most; 0 for all.
        kept_heads, kept_width: the same of what the cache keeps of a token, if it is something else than
            keys and values: latent attention keeps one vector, which counts as keys and values of half of it.
    """

    heads: int
    kv_heads: int
    width: int
    window: int = 0
    kept_heads: int = 0
    kept_width: int = 0

    def kept_elements(self, length: float) -> float:
        """Elements that the cache keeps of so many tokens."""
        tokens = min(length, self.window) if self.window and not self.kept_heads else length
        return 2 * tokens * (self.kept_heads or self.kv_heads) * (self.kept_width or self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Layers that are alike, on one rank.

    Attributes:
        times: number of such layers.
        matrices: their weights.
        heads: their attention; None for layers with a state in place of a cache.
        state_bytes: bytes of that state of a sequence, which every token reads and writes.
    """

    times: int
    matrices: tuple[Matrix, ...]
    heads: Heads | None = None
    state_bytes: int = 0

    @property
    def has_experts(self) -> bool:
        return any(matrix.experts > 1 for matrix in self.matrices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """One rank's part of a language model, as far as the time of a pass depends on it.

    Attributes:
        blocks: its layers.
        head: the weight from hidden units to the vocabulary.
        hidden_size: elements of a token between layers.
        num_ranks: ranks that share each layer.
        num_groups: groups of ranks that have sequences of their own and experts in common; 1 if all ranks
            work on the same sequences.
        kv_bytes: bytes of an element of the cache.
    """

    blocks: tuple[Block, ...]
    head: Matrix
    hidden_size: int
    num_ranks: int = 1
    num_groups: int = 1
    kv_bytes: int = 2

    @property
    def num_layers(self) -> int:
        return sum(block.times for block in self.blocks)

    @property
    def weights_bytes(self) -> float:
        """Bytes of the weights of the layers, the head, and an embedding as large."""
        of_layers = sum(block.times * sum(each.num_bytes for each in block.matrices) for block in self.blocks)
        return of_layers + 2 * self.head.num_bytes

    def cache_bytes(self, length: float) -> float:
        """Bytes that a sequence of so many tokens keeps: keys and values, and states."""
        whole = 0.0
        for block in self.blocks:
            whole += block.times * block.state_bytes
            if block.heads is not None:
                whole += block.times * block.heads.kept_elements(length) * self.kv_bytes
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConstants:
    """Seconds that a server takes beside the kernels whose shapes are known, from serving.toml.

    Attributes:
        layer: seconds of the small kernels of a layer, such as norms and rotations.
        quantized: seconds to bring the tokens into the type of a product, for each that is not in bfloat16.
        traffic: how often small kernels read or write the hidden units of a token in a layer.
        experts: seconds of a layer with experts for their choice.
        sorted: how often the inputs and outputs of experts are read or written to sort them.
        unpacked: time of products with weights in a type that the card cannot multiply in, over that of
            products in bfloat16 with as many bytes.
        step: seconds of a pass on the host, whatever is in it.
        sequence: seconds for each sequence of a pass: sampling, and the text of its token.
        exchange: seconds of the engine's own all-reduce whatever its bytes.
        late: seconds by which ranks wait for each other before an exchange.
        slower: time of a pass for tokens over the sum of all that.
        prompt: seconds of a request beside its pass: tokens of its text, and the way to the server and back.
        prompt_slower: time of a pass for prompts over the sum of the above.
        waited: passes for tokens that a prompt waits for, while other requests are answered.
        held: share of the passes for other prompts by which the tokens of a request come later.
    """

    layer: float
    quantized: float
    traffic: float
    experts: float
    sorted: float
    unpacked: float
    step: float
    sequence: float
    exchange: float
    late: float
    slower: float
    prompt: float
    prompt_slower: float
    waited: float
    held: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSpread:
    """Spread of the errors of a server's seconds on cards that had no part in the constants.

    Attributes:
        token_sigma, first_sigma: standard deviations of log(measured / predicted), of the time of a token and
            of the time to the first token.
        num_rows: measured loads behind them.
    """

    token_sigma: float
    first_sigma: float
    num_rows: int

    def factor(self, sigma: float, level: float) -> float:
        """Factor between the likely value and an end of the interval that holds the real one with `level`."""
        return math.exp(NormalDist().inv_cdf((1 + level) / 2) * sigma)


@functools.cache
def engine_constants(engine: str, generation: str | None) -> EngineConstants | None:
    """Constants of an engine on cards of a generation; None if none were fitted.

    Args:
        engine: `vllm`, `sglang` or `trtllm`.
        generation: as `Speeds.generation`.
    """
    table = _table()
    if generation is None or engine not in table["engines"] or generation not in table["generations"]:
        return None
    return EngineConstants(**table["passes"], **table["generations"][generation], **table["engines"][engine])


def serving_spread(engine: str) -> ServingSpread | None:
    """Spread of the errors of an engine's seconds; None for an engine without measured loads."""
    found = _table()["spreads"].get(engine)
    return None if found is None else ServingSpread(**found)


@functools.cache
def _table() -> dict[str, Any]:
    data = read_toml(text_of("serving.toml"))
    if data.get("schema") != SCHEMA:
        raise ValueError(f"expected constants of schema {SCHEMA}, got {data.get('schema')!r}")
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Seconds of a pass by what takes them.

    Attributes:
        products: products with weights that all tokens are multiplied with.
        experts: products with experts.
        attention: attention, and states in place of a cache.
        exchange: exchange among the ranks.
        beside: everything else, by the engine's constants.
    """

    products: float
    experts: float
    attention: float
    exchange: float
    beside: float

    @property
    def seconds(self) -> float:
        return self.products + self.experts + self.attention + self.exchange + self.beside


Attend = Callable[[Heads], float]


class ServingCosts:
    """Seconds of the passes of a language model's server.

    Args:
        costs: seconds of kernels on the card, with the links to the other ranks' cards.
        decoder: a rank's part of the model.
        engine: constants of the engine on such cards.
    """

    def __init__(self, costs: Costs, decoder: Decoder, engine: EngineConstants) -> None:
        self.decoder = decoder
        self.engine = engine
        self._costs = costs
        self._speeds = costs.speeds

    def token_seconds(self, batch: int, context: float) -> float:
        """Seconds of a pass that makes one token more of each sequence.

        Args:
            batch: sequences on each group of ranks.
            context: tokens of a sequence so far.
        """
        return self.engine.slower * self.token_parts(batch, context).seconds

    def first_seconds(self, length: int, others: float = 0.0) -> float:
        """Seconds from the arrival of a prompt to its first token.

        Args:
            length: tokens of the prompt.
            others: seconds of a pass for the tokens of other requests that are answered meanwhile.
        """
        engine = self.engine
        alone = engine.prompt_slower * self.prompt_parts(length).seconds
        return engine.prompt + alone + engine.waited * others

    def token_parts(self, batch: int, context: float) -> Parts:
        """Seconds of a pass for one token more by what takes them, without `EngineConstants.slower`."""
        return self._parts(batch, batch, functools.partial(self._one_more, batch=batch, keys=round(context)))

    def prompt_parts(self, length: int, batch: int = 1) -> Parts:
        """Seconds of a pass for prompts by what takes them, without `EngineConstants.prompt_slower`."""
        attend = functools.partial(self._of_prompts, batch=batch, length=length)
        return self._parts(batch * length, batch, attend)

    def _parts(self, tokens: int, sequences: int, attend: Attend) -> Parts:
        decoder, engine, bandwidth = self.decoder, self.engine, self._speeds.bandwidth
        products = self._product(decoder.head, sequences)
        experts = attention = exchange = beside = 0.0
        every = tokens * decoder.num_groups
        of_tokens = self._exchange(every)
        for block in decoder.blocks:
            small = engine.layer + (engine.experts if block.has_experts else 0.0)
            small += engine.traffic * tokens * decoder.hidden_size * _ACTIVATION_BYTES / bandwidth
            for matrix in block.matrices:
                small += engine.quantized if self._is_quantized(matrix) else 0.0
                if matrix.experts > 1:
                    experts += block.times * self._product(matrix, every)
                    sides = (matrix.rows + matrix.columns) * _ACTIVATION_BYTES
                    small += engine.sorted * every * matrix.taken / matrix.spread * sides / bandwidth
                else:
                    products += block.times * self._product(matrix, tokens)
            if block.heads is not None:
                attention += block.times * attend(block.heads)
            # A state is read and written with every token, and once for each 64 tokens of a prompt.
            times = max(sequences, tokens / _TOKENS_OF_STATE)
            attention += block.times * 2 * block.state_bytes * times / bandwidth
            exchange += block.times * _EXCHANGES * of_tokens
            beside += block.times * small
        beside += engine.step + engine.sequence * sequences * decoder.num_groups
        return Parts(
            products=products, experts=experts, attention=attention, exchange=exchange, beside=beside
        )

    def _product(self, matrix: Matrix, tokens: int) -> float:
        number, each = matrix.used(tokens)
        columns, dtype = self._arithmetic(matrix)
        sides = matrix.columns * ELEMENT_BYTES[dtype] + matrix.rows * _ACTIVATION_BYTES
        moved = number * (matrix.rows * matrix.columns * matrix.bits / 8 + each * sides)
        product = Product(math.ceil(each), matrix.rows, columns, max(1, round(number)))
        seconds = self._costs.seconds(Kernel(KernelClass.MATMUL, round(moved), dtype, product))
        return seconds * (self.engine.unpacked if self._is_unpacked(matrix) else 1.0)

    def _arithmetic(self, matrix: Matrix) -> tuple[int, str]:
        """Terms of the sums of a product, and the type that tensor cores compute them in.

        A product in fp4 counts as one in fp8 of half as many terms, which takes as many cycles.
        """
        speeds = self._speeds
        if matrix.dtype == FLOAT4 and speeds.architecture in _WITH_FLOAT4:
            return max(1, matrix.columns // 2), _FLOAT8
        return matrix.columns, matrix.dtype if matrix.dtype in speeds.flops else _USUAL

    def _is_unpacked(self, matrix: Matrix) -> bool:
        """Whether the weights are in fewer bits than the product is computed in."""
        dtype = self._arithmetic(matrix)[1]
        return dtype == _USUAL and matrix.bits < 8 * ELEMENT_BYTES[dtype]

    def _is_quantized(self, matrix: Matrix) -> bool:
        return self._arithmetic(matrix)[1] == _FLOAT8

    def _one_more(self, heads: Heads, *, batch: int, keys: int) -> float:
        attention = Attention(
            batch=batch,
            queries=1,
            keys=max(1, keys),
            heads=heads.heads,
            kv_heads=heads.kept_heads or heads.kv_heads,
            width=heads.kept_width or heads.width,
            window=heads.window,
            is_older=False,
        )
        return self._attention(attention, _FLOAT8 if self.decoder.kv_bytes == 1 else _USUAL, "decode")

    def _of_prompts(self, heads: Heads, *, batch: int, length: int) -> float:
        attention = Attention(
            batch=batch,
            queries=length,
            keys=length,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            width=heads.width,
            is_causal=True,
            window=heads.window,
            is_older=False,
        )
        return self._attention(attention, _USUAL, "forward")

    def _attention(self, attention: Attention, dtype: str, variant: str) -> float:
        share = 0.5 if attention.is_causal else 1.0
        product = Product(
            attention.queries,
            attention.keys,
            max(1, int(2 * share * attention.width)),
            attention.batch * attention.heads,
        )
        moved = attention_bytes(attention, ELEMENT_BYTES[dtype])
        kernel = Kernel(KernelClass.ATTENTION, moved, dtype, product, variant, attention=attention)
        return self._costs.seconds(kernel)

    def _exchange(self, tokens: int) -> float:
        """Seconds of an all-reduce of hidden units: by NCCL, or by the engine's kernel if that is faster.

        Groups with sequences of their own exchange as much, in an all-gather and a reduce-scatter.
        """
        n, network = self.decoder.num_ranks, self._costs.network
        if n < 2 or network is None:
            return 0.0
        num_bytes = tokens * self.decoder.hidden_size * _ACTIVATION_BYTES
        by_nccl = network.seconds(Exchange.ALL_REDUCE, num_bytes, Group(n)) + self._speeds.launch_seconds
        own = self.engine.exchange + 2 * (n - 1) / n * num_bytes / (_OWN_SHARE * network.peer)
        return self.engine.late + min(by_nccl, own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests that follow each other, so many at once.

    Attributes:
        requests: requests at once.
        prompt, answer: tokens of a request's prompt, and of its answer.
        together: share of the prompts that arrive all at once, rather than when another request ends.
        most_tokens: tokens of prompts that the engine takes into a pass at most.
        room: requests that the memory has room for; others wait. None for all.
    """

    requests: int
    prompt: int
    answer: int
    together: float = 0.0
    most_tokens: int = 8192
    room: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Times of the requests of a load, in the mean.

    Attributes:
        first_seconds: seconds from the arrival of a request to its first token.
        token_seconds: seconds of each token after that.
    """

    first_seconds: float
    token_seconds: float


def served(costs: ServingCosts, load: Load) -> Served:
    """Predicted seconds of the requests of a load.

    In the time of an answer each of the other requests ends once, and the prompt of the next one keeps the
    tokens waiting. A prompt waits for some passes, or for half of the others if all arrive at once; where
    memory has no room, a request waits until those before it have ended.
    """
    engine, groups = costs.engine, costs.decoder.num_groups
    batch = max(1, math.ceil(load.requests / groups))
    if load.room is not None:
        batch = min(batch, max(1, load.room))
    token = costs.token_seconds(batch, load.prompt + load.answer / 2)
    several = max(1, min(batch, load.most_tokens // max(1, load.prompt)))
    each = costs.prompt_parts(load.prompt, several).seconds / several
    token_seconds = token + engine.held * (batch - 1) * each / load.answer
    alone = engine.prompt_slower * costs.prompt_parts(load.prompt).seconds
    first = alone + (engine.waited * token if batch > 1 else 0.0)
    at_once = alone + min(alone, engine.prompt_slower * each) * (batch - 1) / 2
    waiting = max(load.requests / groups - batch, 0.0) / batch * (load.answer * token_seconds + alone)
    return Served(
        first_seconds=engine.prompt + (1 - load.together) * first + load.together * at_once + waiting,
        token_seconds=token_seconds,
    )
