"""A language model as one rank's products and attention, whose seconds `replay.time.serving` predicts.

Every matrix of a layer is one that its tokens are multiplied with; engines compute those of one module that
take the same inputs at once (queries, keys and values; gate and up).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from autofit.serving.architecture import Architecture, Layer, LayerKind, module_of
from autofit.serving.weights import BY_ROWS, ROUTERS, elements_of_rank
from autofit_workers.replay.time.serving import Block, Decoder, Heads, Matrix
from autofit_workers.spec.model_parts import Parameter

# Bits of an element of a weight, and the type of products with it.
Stored = Callable[[Parameter], tuple[float, str]]

_OF_EXPERT = re.compile(r"(?P<before>.*\bexperts)\.\d+\.(?P<after>.+)")
_EXPERTS = re.compile(r"\bexperts\.")
_DOWN = ("down_proj", "w2", "linear_2", "output_linear")
_TAKEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_top_k", "moe_topk")
_CHOOSES_KEYS = "index_topk"  # in configurations of sparse attention (DeepSeek-V3.2, GLM-5)
_LEAST_COUNTED = 0.97  # of the elements of a model's layers; the rest are norms, biases and convolutions
_STATE_BYTES = 4  # of an element of a recurrent state, which engines keep in float32


class UntimedModelError(ValueError):
    """Seconds of a model are not predicted; the message says why, as the end of a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How the ranks of a server share a model.

    Attributes:
        num_ranks: number of ranks.
        spread_experts: ranks that experts are spread over; those left split each expert.
        has_own_requests: whether each rank has requests of its own, and so all of the attention (data
            parallelism), while experts are shared.
    """

    num_ranks: int = 1
    spread_experts: int = 1
    has_own_requests: bool = False

    @property
    def of_layers(self) -> int:
        """Ranks that each layer but its experts is split over."""
        return 1 if self.has_own_requests else self.num_ranks


def decoder_of(architecture: Architecture, ranks: Ranks, stored: Stored, *, kv_bytes: int = 2) -> Decoder:
    """One rank's part of a model.

    Args:
        stored: bits of a parameter's elements, and the type of products with it.
        kv_bytes: bytes of an element of the KV cache.

    Raises:
        UntimedModelError: the model has parts whose time is not known.
    """
    if len(architecture.kept) > len(architecture.layers):
        raise UntimedModelError("attention to another sequence is not timed")
    blocks: Counter[tuple[tuple[Matrix, ...], Heads | None, int]] = Counter()
    for layer, parameters in zip(architecture.layers, architecture.parameters_of, strict=True):
        matrices = tuple(_matrices(architecture, parameters, ranks, stored))
        if not matrices:
            raise UntimedModelError("a layer of it has no products")
        heads, state = _heads(architecture, layer, ranks.of_layers), 0
        if layer.kind is LayerKind.STATE:
            state = layer.state_bytes(ranks.of_layers, _STATE_BYTES)
        blocks[matrices, heads, state] += 1
    if not blocks:
        raise UntimedModelError("its layers are not known")
    _require_whole(architecture)
    bits, dtype = stored(_head(architecture))
    head = Matrix(
        rows=-(-architecture.vocab_size // ranks.num_ranks),
        columns=architecture.hidden_size,
        bits=bits,
        dtype=dtype,
    )
    return Decoder(
        blocks=tuple(
            Block(times=times, matrices=matrices, heads=heads, state_bytes=state)
            for (matrices, heads, state), times in blocks.items()
        ),
        head=head,
        hidden_size=architecture.hidden_size,
        num_ranks=ranks.num_ranks,
        num_groups=ranks.num_ranks if ranks.has_own_requests else 1,
        kv_bytes=kv_bytes,
    )


def _require_whole(architecture: Architecture) -> None:
    """Raises `UntimedModelError` if some weights of the layers are in no product."""
    counted = every = 0
    for parameters in architecture.parameters_of:
        for name, parameter in parameters.items():
            number = math.prod(parameter.shape)
            every += number
            counted += number if _is_of_experts(name, parameter) or _is_matrix(parameter) else 0
    if counted < _LEAST_COUNTED * every:
        raise UntimedModelError("some of its weights are of kinds that are not timed")


def _is_of_experts(name: str, parameter: Parameter) -> bool:
    return bool(_EXPERTS.search(name)) and len(parameter.shape) >= 2 and "bias" not in name


def _is_matrix(parameter: Parameter) -> bool:
    return len(parameter.shape) == 2 and not any(each in parameter.owner for each in ("Embedding", "Norm"))


def _head(architecture: Architecture) -> Parameter:
    """Weight from hidden units to the vocabulary; the embedding where both are one."""
    wide = [each for each in architecture.parts.parameters if each.shape[:1] == (architecture.vocab_size,)]
    if not wide:
        raise UntimedModelError("its head is not known")
    return next((each for each in wide if "Embedding" not in each.owner), wide[-1])


def _heads(architecture: Architecture, layer: Layer, num_ranks: int) -> Heads | None:
    """One rank's attention in a layer; None for a layer with a state."""
    if layer.kind is LayerKind.STATE:
        return None
    if layer.kind is LayerKind.CROSS:
        raise UntimedModelError("attention to another sequence is not timed")
    config = architecture.parts.config
    if config.get(_CHOOSES_KEYS):
        raise UntimedModelError(
            "which keys its attention looks at is chosen token by token, which is not timed"
        )
    heads = max(1, architecture.num_heads // num_ranks)
    if layer.kind is not LayerKind.LATENT:
        return Heads(
            heads=heads, kv_heads=layer.heads_of(num_ranks), width=layer.width // 2, window=layer.window
        )
    widths = [config.get(name) for name in ("qk_head_dim", "v_head_dim")]
    if None in widths:
        raise UntimedModelError("the widths of its latent attention are not known")
    return Heads(
        heads=heads,
        kv_heads=heads,  # a prompt's keys are unpacked from what is kept of them
        width=sum(map(int, filter(None, widths))) // 2,
        kept_heads=1,
        kept_width=layer.width // 2,  # keys and values are one vector
    )


def _matrices(
    architecture: Architecture, parameters: Mapping[str, Parameter], ranks: Ranks, stored: Stored
) -> Iterator[Matrix]:
    """One rank's matrices of a layer, those that are computed at once as one."""
    together: defaultdict[tuple[str, int, float, str], int] = defaultdict(int)
    of_experts: defaultdict[str, list[Parameter]] = defaultdict(list)
    for name, parameter in parameters.items():
        if _is_of_experts(name, parameter):
            match = _OF_EXPERT.fullmatch(name)
            of_experts[f"{match['before']}.{match['after']}" if match else name].append(parameter)
            continue
        if not _is_matrix(parameter):
            continue
        rows, columns = parameter.shape if parameter.owner != "Conv1D" else parameter.shape[::-1]
        share = elements_of_rank(parameter, architecture, ranks.of_layers) / math.prod(parameter.shape)
        module = module_of(parameter.name)
        if module in BY_ROWS:
            columns = math.ceil(columns * share)
        else:
            rows = math.ceil(rows * share)
        is_apart = module in BY_ROWS + ROUTERS
        bits, dtype = stored(parameter)
        together[name if is_apart else name.rsplit(".", 2)[0], columns, bits, dtype] += rows
    for (_, columns, bits, dtype), rows in together.items():
        yield Matrix(rows=rows, columns=columns, bits=bits, dtype=dtype)
    for name, members in of_experts.items():
        yield _experts(architecture, name, members, ranks, stored)


def _experts(
    architecture: Architecture, name: str, members: list[Parameter], ranks: Ranks, stored: Stored
) -> Matrix:
    """One rank's part of the experts' matrices of one kind."""
    config, first = architecture.parts.config, members[0]
    taken = next((config[each] for each in _TAKEN if config.get(each)), None)
    if taken is None:
        raise UntimedModelError("how many experts a token takes is not known")
    number = first.shape[0] if len(first.shape) == 3 else len(members)
    inner = [size for size in first.shape[-2:] if size != architecture.hidden_size]
    width = inner[0] if inner else architecture.hidden_size
    spread = math.gcd(ranks.spread_experts, number)
    split = -(-width * spread // ranks.num_ranks)
    is_down = any(each in name for each in _DOWN)
    bits, dtype = stored(first)
    return Matrix(
        rows=architecture.hidden_size if is_down else split,
        columns=split if is_down else architecture.hidden_size,
        bits=bits,
        dtype=dtype,
        experts=max(2, number // spread),
        taken=int(taken),
        spread=spread,
    )
