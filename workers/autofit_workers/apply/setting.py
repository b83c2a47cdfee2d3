"""Applies a trial's knobs to PyTorch's flags, the model, batches and steps, and restores every flag.

    flags       TF32 and the backend's policy         applied, with the rewrites of convolutions
    model       types of weights, channels last,      built_model, before it moves to the device
                checkpoints
                adapters, kernels, the loss           adapted_model, on the device
                torch.compile                         placed_model, which moves it there
    batches     types, channels last                  converted_batch, on the device
    steps       autocast, gradient scaler             autocast_factory, make_scaler

The optimizer's implementation is chosen where the optimizer is made (`autofit_workers.workload.optimizers`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from autofit_workers.apply import adapter, base, torchao_weights
from autofit_workers.apply.attention import built_with, only_kernel, set_attention
from autofit_workers.apply.checkpointing import checkpoint_blocks
from autofit_workers.apply.compiling import compiled, require_compilable
from autofit_workers.apply.kernels import set_kernels
from autofit_workers.apply.loss import set_loss
from autofit_workers.conv.intercept import Rewriting, rewriting, rewriting_by_plan
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.conv_algorithms import ConvAlgorithm, Rewrite, mixed
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.knobs import KNOBS, Knobs
from autofit_workers.spec.knobs.base import QUANTIZATIONS
from autofit_workers.spec.setup import ALONE, Parallel

AUTOCAST_DTYPES = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions


@contextmanager
def applied(
    knobs: Knobs, device_kind: str, conv_plan: tuple[tuple[str, str], ...] = ()
) -> Iterator[Rewriting | None]:
    """Context manager that applies a knob setting's convolution algorithm and precision flags.

    An algorithm may be a rewrite, which computes convolutions by other PyTorch operators. Yields the function
    mode that does so; None if nothing is rewritten.

    Args:
        knobs: the knob setting.
        device_kind: `cuda` or `cpu`.
        conv_plan: pairs of a layer and its algorithm, for the algorithm `mixed`; see `Rewriting.follow`.

    Raises:
        UnsupportedError: the convolution algorithm or the allocator's settings have no effect on this kind
            of device.
        InapplicableError: knobs cannot be combined; after the block, the algorithm computed none of the
            convolutions called.
    """
    if device_kind == "cpu" and knobs.allocator != Knobs().allocator:
        raise UnsupportedError(f"allocator {knobs.allocator} does not apply to cpu: choose default")
    require_compilable(knobs)
    algorithm = algorithm_on(knobs, device_kind)
    policy = conv.policy_of(algorithm, device_kind)
    # Source of both flags: "TensorFloat-32" in PyTorch's CUDA notes.
    with (
        torch.backends.cudnn.flags(
            enabled=policy.enabled,
            benchmark=policy.benchmark,
            deterministic=policy.deterministic,
            allow_tf32=knobs.tf32_in_convolutions,
        ),
        onednn(enabled=policy.enabled),
        _matmul_precision("high" if knobs.precision == "tf32" else "highest"),
        switched(knobs, device_kind),
        _rewriting(algorithm, conv_plan) as mode,
    ):
        yield mode


@contextmanager
def switched(knobs: Knobs, device_kind: str) -> Iterator[None]:
    """Context manager in which attention may use only the PyTorch kernel that the knobs name, if any.

    All knobs are checked first.

    Raises:
        UnsupportedError: a knob's value has no effect on this kind of device.
    """
    for knob in KNOBS.values():
        if knob.require is not None:
            knob.require(getattr(knobs, knob.name), device_kind)
    with only_kernel(knobs.attention):
        yield


def _rewriting(
    algorithm: ConvAlgorithm, conv_plan: tuple[tuple[str, str], ...]
) -> AbstractContextManager[Rewriting | None]:
    if isinstance(algorithm, Rewrite):
        return rewriting(algorithm)
    return rewriting_by_plan(conv_plan) if algorithm is mixed.ALGORITHM else nullcontext()


def algorithm_on(knobs: Knobs, device_kind: str) -> ConvAlgorithm:
    """Convolution algorithm of a knob setting; on the CPU the default, `cudnn`, means oneDNN.

    Raises:
        UnsupportedError: the algorithm does not exist on this kind of device.
    """
    is_default = knobs.conv_algo == Knobs().conv_algo
    algorithm = conv.find(conv.defaults(device_kind)[0] if is_default else knobs.conv_algo)
    # A plan is made for cards, but may be applied anywhere.
    if device_kind not in algorithm.device_kinds and algorithm is not mixed.ALGORITHM:
        raise UnsupportedError(
            f"conv_algo {algorithm.name} does not apply to {device_kind}: "
            f"use {', '.join(conv.applicable(device_kind))}"
        )
    return algorithm


def set_threads(count: int | None) -> None:
    """Sets the number of threads of operators on the CPU; None leaves it as it is.

    `autofit_workers.apply.process_state` puts the number back.
    """
    if count is not None:
        torch.set_num_threads(count)


def autocast_factory(
    knobs: Knobs, device_kind: str, parallel: Parallel = ALONE.parallel
) -> Callable[[], AbstractContextManager[object]]:
    """Factory of a step's autocast context; `nullcontext` without amp, or if sharding casts itself."""
    autocasts = parallel.autocasts(adapted=knobs.adapter is not None)
    dtype = AUTOCAST_DTYPES.get(knobs.precision) if autocasts else None
    return nullcontext if dtype is None else partial(torch.autocast, device_kind, dtype=dtype)


def make_scaler(knobs: Knobs, device_kind: str) -> torch.amp.GradScaler:
    """Gradient scaler of a trial's training steps; disabled unless the precision is `amp-fp16`.

    Its first scale is 1. With PyTorch's own 65536 the first steps of many models overflow,
    and a step that overflows skips the optimizer; memory does not depend on the scale.
    """
    return torch.amp.GradScaler(device_kind, init_scale=1.0, enabled=knobs.precision == "amp-fp16")


def built_model(build: Callable[[], torch.nn.Module], knobs: Knobs) -> torch.nn.Module:
    """Model on the CPU, built and converted by the knobs; see `converted_model`."""
    with built_with(knobs.attention):
        model = build()
    return converted_model(model, knobs)


def converted_model(model: torch.nn.Module, knobs: Knobs) -> torch.nn.Module:
    """Model on the CPU converted to the knobs' types, memory format, attention and checkpointing.

    A conversion during the move to the GPU would leave temporaries there.

    Raises:
        MissingLibraryError: a library is not installed here.
        InapplicableError: the model has nothing to checkpoint or to quantize, or no such attention.
    """
    set_attention(model, knobs.attention)
    checkpoint_blocks(model, knobs.checkpointing)
    model = base.with_base(model, knobs)
    if knobs.precision == "bf16":
        model = model.to(dtype=torch.bfloat16)
    if knobs.memory_format == "channels_last":
        # `Module.to` takes only one of the two formats, and fails for weights with another number of
        # dimensions.
        for tensor in (*model.parameters(), *model.buffers()):
            if not is_lazy(tensor) and tensor.dim() in _CHANNELS_LAST:
                tensor.data = tensor.data.to(memory_format=_CHANNELS_LAST[tensor.dim()])
    return model


def placed_model(model: torch.nn.Module, knobs: Knobs, device: torch.device) -> torch.nn.Module:
    """Model moved to its device and changed by the knobs: adapter, kernels, loss, `torch.compile`.

    Raises:
        InapplicableError, MissingLibraryError: see `adapted_model`.
    """
    torchao_weights.quantize_on(model, device)
    model = adapted_model(model.to(device), knobs)
    return compiled(model, knobs) if knobs.compile else model


def adapted_model(model: torch.nn.Module, knobs: Knobs, *, shards: bool = False) -> torch.nn.Module:
    """Model with the adapter, the kernels and the loss that the knobs name.

    Args:
        model: the model on its device, or on the host if it will be sharded.
        knobs: the knob setting.
        shards: whether the model will be sharded.

    Raises:
        InapplicableError, UnsupportedError: one of the three does not work with the model, or with this
            PyTorch.
        MissingLibraryError: a library that one of them needs is not installed here.
    """
    if knobs.adapter is not None:
        model = base.prepared(model, knobs, shards=shards)
        model = adapter.with_adapter(model, knobs.adapter, in_float32=knobs.precision != "bf16")
    set_kernels(model, knobs)
    set_loss(model, knobs.loss)
    return model


def import_libraries(knobs: Knobs) -> None:
    """Imports the libraries of `base` and `adapter`, before a device exists that they would query.

    Raises:
        MissingLibraryError: a library is not installed here.
    """
    if knobs.base in QUANTIZATIONS:
        base.import_library(knobs.base)
    if knobs.adapter is not None:
        adapter.library(knobs.adapter)


def converted_batch(batch: Any, knobs: Knobs) -> Any:
    """Batch with its floating-point tensors in the type and memory format of the knobs.

    Tensors are converted where `autofit_workers.workload.workload.check_batch` finds them; their containers
    are copied, not changed, because a workload may return the same batch again.
    """
    if knobs.precision != "bf16" and knobs.memory_format == "contiguous":
        return batch
    return mapped(batch, partial(_converted, knobs=knobs))


def _converted(tensor: torch.Tensor, *, knobs: Knobs) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    if knobs.precision == "bf16":
        tensor = tensor.to(dtype=torch.bfloat16)
    if knobs.memory_format == "channels_last" and tensor.dim() in _CHANNELS_LAST:
        tensor = tensor.to(memory_format=_CHANNELS_LAST[tensor.dim()])
    return tensor


def mapped(batch: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Copy of a batch with `convert` applied to every tensor that `check_batch` finds."""
    return _mapped(batch, convert, {})


def _mapped(value: Any, convert: Callable[[torch.Tensor], torch.Tensor], made: dict[int, Any]) -> Any:
    """Copy of a batch with `convert` applied to its tensors; `made` holds copies by their object's id."""
    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, list | tuple | set | frozenset):
        items = [_mapped(item, convert, made) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, dict):
        made[id(value)] = mapping = copy.copy(value)
        mapping.update({key: _mapped(item, convert, made) for key, item in value.items()})
        return mapping
    if isinstance(value, type) or callable(value) or not hasattr(value, "__dict__"):
        return value
    # Dataclasses, and classes such as `BatchEncoding` of transformers, hold tensors in attributes, which in
    # a frozen dataclass can only be set in this way.
    made[id(value)] = instance = copy.copy(value)
    for name, item in vars(value).items():
        object.__setattr__(instance, name, _mapped(item, convert, made))
    return instance


@contextmanager
def onednn(*, enabled: bool) -> Iterator[None]:
    """Context manager that switches oneDNN on or off; unlike `mkldnn.flags`, it sets no other flag."""
    before = torch.backends.mkldnn.enabled
    flags: Any = torch.backends.mkldnn
    flags.enabled = enabled
    try:
        yield
    finally:
        flags.enabled = before


@contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    if precision == before:  # setting it would fix flags that PyTorch leaves open by default
        yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
