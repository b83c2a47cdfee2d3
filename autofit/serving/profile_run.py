"""Replays an engine's profiling pass, which measures its activations, through PyTorch's allocator.

It runs one forward pass over the most tokens of a batch, then samples one token for each sequence.
Its tensors follow from the engines' own layers, which are fused, and not from transformers':

    residual ─┐ added in the norm, in place               llama.py and layernorm.py of vLLM
    hidden ───┴▶ qkv (one matrix) ▶ attention ▶ output projection ─▶ hidden
             └─▶ gate and up (one matrix) ▶ activation × up ▶ down ─▶ hidden
    hidden of the last tokens ▶ logits ▶ float32 ▶ top-k and top-p ▶ probabilities ▶ tokens

An argument lives as long as its caller: the normed input of a layer until the layer's output exists.
Matrix products take cuBLAS's workspace, sorting takes scratch memory, both from PyTorch's allocator
(`autofit_workers.replay.curve.scratch.formulas`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from autofit.serving.architecture import Architecture, Layer, LayerKind, module_of, rows_of
from autofit_workers.replay.allocator.caching import CachingAllocator
from autofit_workers.replay.curve.scratch.formulas import Platform, scratch_bytes
from autofit_workers.spec.architecture import Architecture as CardArchitecture
from autofit_workers.spec.model_parts import Parameter
from autofit_workers.spec.trace import Scratch

_INDEX_BYTES, _FLOAT_BYTES = 8, 4
_DOWN = ("down_proj", "dense_4h_to_h", "fc2", "wo", "w2", "c_proj")
_GATED = ("gate_proj", "gate_up_proj", "w3", "wi_1", "up_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Forward pass by which a serving engine measures its activations at the start, on one rank.

    Attributes:
        num_tokens: tokens of the batch.
        num_seqs: sequences of the batch, each of which gets a next token.
        element_bytes: bytes of an element of the model's dtype.
        platform: card architecture and PyTorch release, on which the scratch memory of libraries depends.
        num_sms: number of the card's multiprocessors.
        keeps_gate: whether the output of an MLP's first matrix product lives until its last one has run, as a
            variable of the engine's code holds it.
        keeps_reduced: whether the memory of all-reduced tensors is not reused within the pass, as NCCL's
            stream may still use it.
        most_expert_tokens: most tokens that the experts of a layer process at once.
    """

    architecture: Architecture
    num_ranks: int
    num_tokens: int
    num_seqs: int
    element_bytes: int
    platform: Platform
    num_sms: int
    keeps_gate: bool = False
    keeps_reduced: bool = False
    most_expert_tokens: int = 1 << 40


@dataclass(slots=True)
class Tape:
    """Allocates and frees the tensors of a forward pass, in a simulated PyTorch allocator."""

    allocator: CachingAllocator = field(default_factory=CachingAllocator)

    @contextmanager
    def holding(self, *sizes: int) -> Iterator[None]:
        """Context manager that allocates tensors of `sizes` bytes, and frees them at its end."""
        blocks = [self.allocator.malloc(size) for size in sizes if size > 0]
        try:
            yield
        finally:
            for block in blocks:
                self.allocator.free(block)

    def keep(self, num_bytes: int) -> None:
        """Allocates a tensor of `num_bytes` that is never freed in this simulation."""
        if num_bytes > 0:
            self.allocator.malloc(num_bytes)


Sampler = Callable[[Tape, Pass], None]


@dataclass(frozen=True, slots=True)
class Activations:
    """Allocated and reserved peak of a serving engine's forward pass in PyTorch's allocator, in bytes."""

    allocated_bytes: int
    reserved_bytes: int


def replay(one: Pass, sampler: Sampler | None) -> Activations:
    """Simulates the allocations of a forward pass on one rank, and returns their peaks.

    Args:
        one: the pass: its batch, model and card.
        sampler: allocates what the sampling of next tokens needs, after the pass; None if nothing is sampled.
    """
    tape = Tape()
    of_tokens = one.num_tokens * one.architecture.hidden_size * one.element_bytes
    # Ids, positions and cache slots of the tokens.
    with tape.holding(*[one.num_tokens * _INDEX_BYTES] * 3, of_tokens, of_tokens):
        tape.keep(_cublas_bytes(one))
        for layer, parameters in zip(one.architecture.layers, one.architecture.parameters_of, strict=True):
            _attention(tape, one, layer, parameters, of_tokens)
            _mlp(tape, one, parameters, of_tokens)
    with tape.holding(of_tokens):  # output of the last norm
        if sampler is not None:
            sampler(tape, one)
    return Activations(tape.allocator.peak_allocated_bytes, tape.allocator.peak_reserved_bytes)


def _cublas_bytes(one: Pass) -> int:
    return scratch_bytes(Scratch(formula="cublas", dimensions=(), element_bytes=1), one.platform)


def _return(tape: Tape, one: Pass, num_bytes: int) -> None:
    """Records on `tape` a layer's output, which all ranks sum up, and which replaces the layer's input."""
    if one.keeps_reduced and one.num_ranks > 1:
        tape.keep(num_bytes)
    else:
        with tape.holding(num_bytes):
            pass


def _attention(
    tape: Tape, one: Pass, layer: Layer, parameters: Mapping[str, Parameter], of_tokens: int
) -> None:
    """Records on `tape` the memory of a layer's attention in the engine's profiling pass."""
    tokens, size = one.num_tokens, one.element_bytes
    if layer.kind is LayerKind.STATE:
        # The input projection, its convolution, and the output of the scan.
        widest = max((rows_of(each) for name, each in parameters.items() if "in_proj" in name), default=0)
        of_rank = tokens * (widest // one.num_ranks) * size
        channels = tokens * (layer.conv_rows // one.num_ranks) * size
        with tape.holding(of_rank, channels, channels):
            _return(tape, one, of_tokens)
        return
    heads = max(1, one.architecture.num_heads // one.num_ranks)
    config = one.architecture.parts.config
    if layer.kind is LayerKind.LATENT:
        # vllm/model_executor/layers/attention/mla_attention.py: the prefill is that of full heads, keys made
        # of two parts and values padded to their size.
        without, rotated = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        query = tokens * heads * (without + rotated) * size
        expanded = tokens * heads * (without + config["v_head_dim"]) * size
        latent = tokens * (layer.width + (config.get("q_lora_rank") or 0)) * size
        with tape.holding(latent, query, expanded, query, query):
            _return(tape, one, of_tokens)
        return
    query = tokens * heads * one.architecture.head_size * size
    keys_and_values = tokens * layer.token_bytes(one.num_ranks, size)
    sums = tokens * heads * _FLOAT_BYTES  # sums of a softmax's rows
    with tape.holding(query + keys_and_values, query, sums):
        _return(tape, one, of_tokens)


def _mlp(tape: Tape, one: Pass, parameters: Mapping[str, Parameter], of_tokens: int) -> None:
    experts = [each for name, each in parameters.items() if "experts" in name and len(each.shape) == 3]
    dense = {
        module_of(name): each
        for name, each in parameters.items()
        if len(each.shape) == 2 and "attn" not in name and "attention" not in name
    }
    with tape.holding(of_tokens if experts and len(dense) > 1 else 0):  # shared experts' output, added later
        _dense(tape, one, dense, of_tokens)
    if experts:
        _experts(tape, one, min(experts, key=lambda each: math.prod(each.shape)), of_tokens)


def _dense(tape: Tape, one: Pass, modules: Mapping[str, Parameter], of_tokens: int) -> None:
    """Records on `tape` the memory of a dense feed-forward layer in the engine's profiling pass."""
    down = next((modules[name] for name in _DOWN if name in modules), None)
    if down is None:
        return
    inner = math.prod(down.shape) // rows_of(down) // one.num_ranks
    inner_bytes = one.num_tokens * inner * one.element_bytes
    first = 2 * inner_bytes if any(name in modules for name in _GATED) else inner_bytes
    if one.keeps_gate:
        with tape.holding(first, inner_bytes):
            _return(tape, one, of_tokens)
        return
    with tape.holding(inner_bytes):
        with tape.holding(first):
            pass
        _return(tape, one, of_tokens)


def _experts(tape: Tape, one: Pass, down: Parameter, of_tokens: int) -> None:
    """Records on `tape` the memory of a layer's experts: a row for each token and expert that gets it.

    The first and the last matrix product share a buffer; the activation between them has its own. Source:
    vllm/model_executor/layers/fused_moe/.

    Args:
        down: weight of the experts' last product.
        of_tokens: bytes of the layer's input.
    """
    config = one.architecture.parts.config
    num_experts, hidden_size = down.shape[0], one.architecture.hidden_size
    inner = math.prod(down.shape) // num_experts // hidden_size // one.num_ranks
    chosen = config.get("num_experts_per_tok") or config.get("top_k") or 1
    rows = min(one.num_tokens, one.most_expert_tokens) * chosen
    scores = one.num_tokens * num_experts * _FLOAT_BYTES
    weights = one.num_tokens * chosen * (_FLOAT_BYTES + _FLOAT_BYTES)
    shared = rows * max(2 * inner, hidden_size) * one.element_bytes
    with tape.holding(scores, weights, shared, rows * inner * one.element_bytes):
        _return(tape, one, of_tokens)


def platform(card: str, torch_release: tuple[int, int]) -> Platform:
    """Card architecture and PyTorch release, on which the scratch memory of libraries depends."""
    return Platform(CardArchitecture.of(card), torch_release)


# ── samplers ────────────────────────────────────────────────────────────────────────────────────


def _sort_bytes(one: Pass, element_bytes: int) -> int:
    shape = (one.num_seqs, one.architecture.vocab_size)
    return scratch_bytes(Scratch(formula="sort", dimensions=shape, element_bytes=element_bytes), one.platform)


def _num_logits(one: Pass) -> int:
    return one.num_seqs * one.architecture.vocab_size


def sorted_sampler_in_half(tape: Tape, one: Pass) -> None:
    """Allocates what vLLM 0.2.5 needs for sampling: it sorts logits in the model's dtype, and back.

    Source: vllm/model_executor/layers/sampler.py.
    """
    logits, size = _num_logits(one), one.element_bytes
    with tape.holding(logits * size):
        with tape.holding(logits * size, logits * _INDEX_BYTES):  # sorted logits and their original positions
            with tape.holding(_sort_bytes(one, size)):
                pass
            # Probabilities, their sums and two masks live on while the positions are sorted.
            with (
                tape.holding(logits * size, logits * size, logits, logits),
                tape.holding(logits * _INDEX_BYTES, logits * _INDEX_BYTES),
                tape.holding(_sort_bytes(one, _INDEX_BYTES)),
            ):
                pass
        with tape.holding(logits * size, logits * _FLOAT_BYTES, logits * _FLOAT_BYTES):
            pass  # logits again, probabilities and their logarithms


def sorted_sampler(tape: Tape, one: Pass) -> None:
    """Allocates what vLLM 0.6.4 and 0.7.0 need for sampling: float32 logits, sorted and scattered back.

    Source: vllm/model_executor/layers/sampler.py.
    """
    logits = _num_logits(one)
    with tape.holding(logits * one.element_bytes, logits * _FLOAT_BYTES):
        with tape.holding(logits * _FLOAT_BYTES, logits * _INDEX_BYTES):
            with tape.holding(_sort_bytes(one, _FLOAT_BYTES)):
                pass
            # Probabilities, their sums, two masks; then the target of the scattered logits.
            with tape.holding(*[logits * _FLOAT_BYTES] * 3, logits, logits):
                pass
        with tape.holding(*[logits * _FLOAT_BYTES] * 4):
            pass  # scattered logits, probabilities, their logarithms, and the noise that divides them


def masking_sampler(tape: Tape, one: Pass) -> None:
    """Allocates what vLLM 0.20.2 needs for sampling: a Triton kernel masks logits in place, with row buffers.

    Source: vllm/v1/sample/.
    """
    logits, vocabulary = _num_logits(one), one.architecture.vocab_size
    programs = min(one.num_sms, one.num_seqs)
    num_rows = min(1 << (programs - 1).bit_length(), one.num_sms)
    of_seqs = one.num_seqs * one.architecture.hidden_size * one.element_bytes
    with tape.holding(of_seqs, of_seqs, logits * one.element_bytes, logits * _FLOAT_BYTES):
        tape.keep(num_rows * vocabulary * _FLOAT_BYTES)
        with tape.holding(logits * _FLOAT_BYTES, logits * _FLOAT_BYTES):  # probabilities, and noise
            pass
