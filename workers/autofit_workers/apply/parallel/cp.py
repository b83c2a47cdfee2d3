"""Context parallelism: ranks share the sequences of a batch, by PyTorch's own ring attention.

Each rank has two chunks of every sequence, one from each half, so that a causal mask gives all ranks the same
work. PyTorch's `context_parallel` replaces `scaled_dot_product_attention` in forward and backward: an
all-gather brings other ranks' keys and values, an all-to-all sends their gradients
(torch/distributed/tensor/experimental/_context_parallel/_attention.py). It needs an attention kernel that
returns the log-sum-exp: flash, memory-efficient or cuDNN's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from autofit_workers.apply.parallel.strategy import Strategy, mesh_of
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.parallel_kinds import CP
from autofit_workers.spec.protocol import TrialSpec
from autofit_workers.spec.setup import Parallel
from autofit_workers.workload.workload import Workload, tensors_of

_SEQUENCE = 1  # dimension of a batch along which sequences run; 0 is that of samples
_ATTENTION = "scaled_dot_product_attention"
_NO_RING = "PyTorch's ring attention is of causal attention without a mask"


class ContextParallelRanks(Strategy):
    """Context parallelism: ranks share each sequence of a batch; a rank holds all parameters, or shards."""

    def require_applicable(self, spec: TrialSpec, _workload: Workload) -> None:
        if spec.is_for_host:
            raise InapplicableError(
                f"--parallel {self.parallel} is for GPUs, whose kernels of attention PyTorch's context "
                "parallelism takes: leave out cp, or predict for a card"
            )

    def sharing(
        self, model: torch.nn.Module, device_kind: str
    ) -> Callable[[Any], AbstractContextManager[None]]:
        return Context(model, self.parallel, device_kind).sharing

    def notes(self, _model: torch.nn.Module, _precision: str) -> tuple[str, ...]:
        degree = self.parallel.degree(CP)
        exchanged = ", gradients by DistributedDataParallel" if self.parallel.has_ddp else ""
        return (f"context_parallel: each of {degree} ranks has 1/{degree} of every sequence{exchanged}",)


STRATEGY = ContextParallelRanks


class Context:
    """Context parallelism of one rank: each batch is cut to the rank's part of the sequences.

    Steps have to run in the context manager `sharing`.

    Args:
        model: the model; if it is one of transformers, it attends without masks from now on.
        parallel: parallelism of the ranks, whose process group exists.
        device_kind: `cuda` or `cpu`.
    """

    def __init__(self, model: torch.nn.Module, parallel: Parallel, device_kind: str) -> None:
        self._parallel = parallel
        self._device_kind = device_kind
        self._mesh: Any = None
        _attend_without_masks(model)

    @contextmanager
    def sharing(self, batch: Any) -> Iterator[None]:
        """Context manager that cuts a batch to this rank's part, in place; attention spans all ranks.

        Raises:
            InapplicableError: the batch has no sequence that the ranks can divide; or, in the block
                or after it, the model attends in a way that ring attention cannot.
        """
        from torch.distributed.tensor.experimental import context_parallel

        sequences = self._sequences(batch)
        num_places = sequences[0].size(_SEQUENCE) // self._parallel.degree(CP)
        calls: list[None] = []
        with (
            context_parallel(
                self._mesh_of_ranks(),
                buffers=sequences,
                buffer_seq_dims=[_SEQUENCE] * len(sequences),
                no_restore_buffers=set(sequences),
            ),
            _attention_checked(self._parallel, num_places, calls),
        ):
            yield
        if not calls:
            raise InapplicableError(
                f"--parallel {self._parallel} is for models that attend by torch.nn.functional.{_ATTENTION}, "
                "and this one never called it: choose such attention (--attention sdpa of transformers' "
                "models), or leave out cp"
            )

    def _mesh_of_ranks(self) -> Any:
        if self._mesh is None:
            self._mesh = mesh_of(self._parallel, self._device_kind)[CP]
        return self._mesh

    def _sequences(self, batch: Any) -> list[torch.Tensor]:
        """Tensors of a batch that hold sequences, which run along dimension 1.

        The first integer tensor, such as the tokens, gives their length; other tensors of that length belong
        to them.

        Raises:
            InapplicableError: there is no such tensor, or the ranks cannot divide its length.
        """
        found = [each for each in tensors_of(batch) if each.dim() > _SEQUENCE]
        lengths = [each.size(_SEQUENCE) for each in found if not each.is_floating_point()]
        if not lengths:
            raise InapplicableError(
                f"--parallel {self._parallel} shares out sequences of tokens, and the batch has no tensor of "
                "integers with a row for each sample: leave out cp"
            )
        length, num_chunks = lengths[0], 2 * self._parallel.degree(CP)
        if length % num_chunks:
            raise InapplicableError(
                f"--parallel {self._parallel} gives each rank two chunks of a sequence, and {length} tokens "
                f"are not a multiple of {num_chunks}: take {max(length // num_chunks, 1) * num_chunks}"
            )
        return [each for each in found if each.size(_SEQUENCE) == length]


@contextmanager
def _attention_checked(parallel: Parallel, num_places: int, calls: list[None]) -> Iterator[None]:
    """Context manager that refuses attention calls which ring attention cannot compute.

    It also disables the math kernel.

    Args:
        parallel: parallelism of the ranks, for messages.
        num_places: number of positions of a sequence that this rank has.
        calls: gets an entry for each call of attention.

    Raises:
        InapplicableError: the model makes such a call.
    """
    functional: Any = torch.nn.functional
    attend: Callable[..., Any] = getattr(functional, _ATTENTION)

    def checked(  # noqa: PLR0917 - the function's own signature
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Any:
        """Runs attention, and refuses calls with masks or sequences that ring attention cannot have."""
        if attn_mask is not None or not is_causal or query.size(-2) != key.size(-2):
            what = "a mask" if attn_mask is not None else "attention that is not causal"
            raise InapplicableError(f"--parallel {parallel}: {_NO_RING}, and here is {what}: leave out cp")
        if query.size(-2) != num_places:
            raise InapplicableError(
                f"--parallel {parallel}: a rank has {num_places} places of a sequence and attends to "
                f"{query.size(-2)}: let make_batch shift targets, and the model take its inputs as they are"
            )
        calls.append(None)
        try:
            return attend(query, key, value, attn_mask, dropout_p, is_causal, **options)
        except InapplicableError as error:
            kind = str(query.dtype).removeprefix("torch.")
            raise InapplicableError(
                f"--parallel {parallel} needs a fused kernel of attention, and none that is enabled takes "
                f"{kind} in such heads: choose --precision amp-bf16 and --attention default, or leave out cp"
            ) from error

    kernels: Any = torch.backends.cuda
    computes_all = kernels.math_sdp_enabled()
    setattr(functional, _ATTENTION, checked)
    kernels.enable_math_sdp(False)  # the math kernel returns no log-sum-exp
    try:
        yield
    finally:
        kernels.enable_math_sdp(computes_all)
        setattr(functional, _ATTENTION, attend)


def _attend_without_masks(model: torch.nn.Module) -> None:
    """Makes a transformers model attend without masks, which it would make for non-consecutive positions.

    As in `_attach_context_parallel_hooks` of accelerate/big_modeling.py, `is_causal` is passed to attention
    instead.

    Raises:
        InapplicableError: a layer attends to a window, not to all earlier positions.
    """
    config: Any = getattr(model, "config", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"} or (not kinds and getattr(config, "sliding_window", None)):
        raise InapplicableError(
            f"--parallel cp: {_NO_RING}, and layers of {type(model).__name__} attend to a window: leave "
            "out cp"
        )

    def without(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "attention_mask" in kwargs:
            kwargs = {**kwargs, "attention_mask": None, "is_causal": True}
        return args, kwargs

    for name, module in model.named_modules():
        if name.endswith("self_attn"):
            module.register_forward_pre_hook(without, prepend=True, with_kwargs=True)
