"""Knob settings: one value for every knob."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from autofit_workers.spec.knobs import (
    activation_budget,
    adapter,
    allocator,
    attention,
    base,
    batch_layout,
    cache,
    checkpointing,
    clip_grad_norm,
    compile,  # noqa: A004 - PyTorch's own word
    conv_algo,
    global_batch,
    grad_accumulation,
    kernels,
    loss,
    memory_format,
    new_tokens,
    num_beams,
    optimizer,
    optimizer_impl,
    optimizer_in_backward,
    precision,
    seq_len,
    set_to_none,
)
from autofit_workers.spec.knobs.knob import Knob
from autofit_workers.spec.pythons import Self

# In the order of the fields of `Knobs`, the convolution algorithm first.
KNOBS: dict[str, Knob] = {
    module.KNOB.name: module.KNOB
    for module in (
        conv_algo,
        precision,
        memory_format,
        optimizer,
        optimizer_impl,
        optimizer_in_backward,
        set_to_none,
        checkpointing,
        allocator,
        grad_accumulation,
        global_batch,
        compile,
        activation_budget,
        attention,
        adapter,
        base,
        clip_grad_norm,
        seq_len,
        kernels,
        loss,
        batch_layout,
        new_tokens,
        cache,
        num_beams,
    )
}
_MAX_PASSES = 2  # forward and backward passes a trial takes before its optimizer steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Knob setting: a value for each training option that may be varied besides the batch size.

    Attributes:
        conv_algo: one of `CONV_ALGOS`, or one of `CONV_ALGOS_WITH_NUMBER` with a colon and its
            number. `cudnn` is PyTorch's default, which on the CPU is oneDNN.
        precision: one of `PRECISIONS`; `fp32` is PyTorch's default, TF32 in convolutions but
            not in matrix products; `ieee-fp32` has it nowhere, `tf32` in both. `amp-…` is
            autocast, with float16 under a gradient scaler; `bf16` converts model and inputs.
        memory_format: one of `MEMORY_FORMATS`, of the model's weights and its inputs.
        optimizer: one of `OPTIMIZERS`, or None for the workload's own optimizer.
        optimizer_impl: one of `OPTIMIZER_IMPLS`; `default` leaves the choice to PyTorch, which
            takes `foreach` on a GPU; `loop` updates one parameter after the other.
        optimizer_in_backward: whether each parameter is updated, and its gradient freed, as soon as backward
            has computed it.
        set_to_none: whether a step begins without gradients, as is PyTorch's default, or with
            gradients of zeros.
        checkpointing: one of `CHECKPOINTINGS`, or one of `CHECKPOINTINGS_WITH_NUMBER` with a colon and
            its number. `blocks` keeps only the inputs of every repeated block of the model and runs it
            again in backward; `every:N` treats each N blocks that follow each other as one block;
            `selective` also keeps the outputs of matrix products, convolutions and attention, of
            which `selective:N` keeps at most N percent of a block's bytes.
        allocator: one of `ALLOCATORS`, or `max_split:N`, by which blocks of N MiB and more are not split,
            for CUDA's caching allocator. `default` leaves the environment as it is.
        grad_accumulation: number of batches, each with a forward and a backward pass, of an optimizer
            step; None if `global_batch` decides it.
        global_batch: exact number of samples of an optimizer step, whatever the batch size: it is
            accumulated from as many batches as that takes.
        compile: whether `torch.compile` compiles the model, with its defaults; `mode=NAME` for one of its
            modes, see `autofit_workers.spec.knobs.compile`.
        activation_budget: share of activations, from 0 to 1, that a compiled model keeps for backward; None
            for as many as PyTorch keeps by itself.
        attention: one of `ATTENTIONS`: the kernel of `scaled_dot_product_attention`; `default` leaves the
            choice to PyTorch. `eager`, `fa2` and `fa3` are implementations of transformers, the latter two
            with the kernels of FlashAttention.
        adapter: adapter that is trained in place of the model's own weights: `METHOD:KEY=VALUE,…`, by the
            library peft; None for no adapter.
        base: one of `BASES`: how the model's own weights are kept, before the adapter; None as they are made.
        clip_grad_norm: the norm that all gradients together are clipped to before the optimizer steps; None
            where they are not.
        seq_len: the size of a sample, in mode generate of a prompt; None for the workload's own size.
        kernels: one of `ALL_KERNELS`: whose kernels a model of transformers runs, other than attention's.
        loss: one of `LOSSES`, or `chunked:N`: how a causal language model of transformers computes its cross
            entropy; `full` keeps all logits, as transformers does by default.
        batch_layout: one of `LAYOUT_NAMES` with its number: whether sequences of a batch are padded, or lie
            one after the other.
        new_tokens: number of tokens that mode generate generates after each prompt.
        cache: one of `CACHES`: the kind of KV cache in mode generate.
        num_beams: number of beams of beam search in mode generate.

    Raises:
        ValueError: a knob has no such value.
    """

    conv_algo: str = KNOBS["conv_algo"].default
    precision: str = KNOBS["precision"].default
    memory_format: str = KNOBS["memory_format"].default
    optimizer: str | None = KNOBS["optimizer"].default
    optimizer_impl: str = KNOBS["optimizer_impl"].default
    optimizer_in_backward: bool = KNOBS["optimizer_in_backward"].default
    set_to_none: bool = KNOBS["set_to_none"].default
    checkpointing: str = KNOBS["checkpointing"].default
    allocator: str = KNOBS["allocator"].default
    grad_accumulation: int | None = KNOBS["grad_accumulation"].default
    global_batch: int | None = KNOBS["global_batch"].default
    compile: bool | str = KNOBS["compile"].default
    activation_budget: float | None = KNOBS["activation_budget"].default
    attention: str = KNOBS["attention"].default
    adapter: str | None = KNOBS["adapter"].default
    base: str | None = KNOBS["base"].default
    clip_grad_norm: float | None = KNOBS["clip_grad_norm"].default
    seq_len: int | None = KNOBS["seq_len"].default
    kernels: str = KNOBS["kernels"].default
    loss: str = KNOBS["loss"].default
    batch_layout: str = KNOBS["batch_layout"].default
    new_tokens: int | None = KNOBS["new_tokens"].default
    cache: str = KNOBS["cache"].default
    num_beams: int = KNOBS["num_beams"].default

    def __post_init__(self) -> None:
        """Checks and converts each knob's value; raises `ValueError` for wrong or contradictory ones."""
        for knob in KNOBS.values():
            value = getattr(self, knob.name)
            if value is knob.default:  # as most are, of thousands of settings; it reads as itself
                continue
            try:
                read = knob.read(value)
            except ValueError as error:
                raise ValueError(f"{knob.name}: {error}") from None
            if type(read) is not type(value) and not (type(read) is float and type(value) is int):
                raise ValueError(f"{knob.name}: expected {type(read).__name__}, got {value!r}")
            object.__setattr__(self, knob.name, read)
        if self.global_batch is None:
            if self.grad_accumulation is None:
                raise ValueError(
                    "grad_accumulation: give a number of batches, or a global_batch that decides it"
                )
            return
        if self.grad_accumulation not in (1, None):
            raise ValueError("grad_accumulation and global_batch cannot be combined: give one of them")
        object.__setattr__(self, "grad_accumulation", None)

    @property
    def tf32_in_convolutions(self) -> bool:
        """Whether convolutions of fp32 tensors may run in TF32, as is PyTorch's default."""
        return self.precision != "ieee-fp32"

    @property
    def accumulates(self) -> bool:
        """Whether an optimizer step may accumulate gradients over more than one batch."""
        return self.grad_accumulation != 1

    def num_batches(self, batch_size: int) -> int:
        """Number of batches of `batch_size` whose gradients an optimizer step accumulates.

        Raises:
            ValueError: the batch size does not divide the global batch (the samples of a step).
        """
        if self.global_batch is None:
            assert self.grad_accumulation is not None
            return self.grad_accumulation
        if self.global_batch % batch_size:
            raise ValueError(
                f"batch size {batch_size} does not divide the global batch of {self.global_batch}: "
                "choose one that does"
            )
        return self.global_batch // batch_size

    def samples_per_step(self, batch_size: int, num_own: int = 1) -> int:
        """Number of samples of an optimizer step, on all ranks and in all accumulated batches.

        Args:
            batch_size: samples of a batch.
            num_own: number of different batches that all ranks pass through the model at a time, see
                `Parallel.num_batches`; 1 for a single process.

        Raises:
            ValueError: the batch size does not divide the global batch (the samples of a step).
        """
        return num_own * self.num_batches(batch_size) * batch_size

    def num_passes(self, batch_size: int) -> int:
        """Number of batches that a trial's step accumulates: at most two, as later ones repeat the second."""
        return min(_MAX_PASSES, self.num_batches(batch_size))

    def for_passes(self, num_passes: int) -> Self:
        """Copy whose step accumulates `num_passes` micro-batches, without a global batch size."""
        return dataclasses.replace(self, grad_accumulation=num_passes, global_batch=None)

    def to_dict(self) -> dict[str, str | bool | int | float | None]:
        return dataclasses.asdict(self)
