"""CUDA's branches of composite operators whose C++ code depends on the device.

Composite operators run above autograd in C++ and branch on the device, but C++ sees fake GPU tensors on
another device (see `fake_gpu`). Each function here repeats the branch for a CUDA tensor, and is registered
only for the autograd keys of GPU tensors, so that CPU tensors are unaffected. `WITH_TEMPORARIES` is a second
group: operators for which PyTorch's fake mode shows only the output, although they also allocate temporaries.
Sources are files in `aten/src/ATen/native` of PyTorch 2.11 to 2.15, named below.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.autograd import current_node
from autofit_workers.pytorch.operators import OpOverload, find_operator, has_kernel, operator_names
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.releases import ATTENTION_ADDS_A_BATCH
from autofit_workers.tracing import followed_release
from autofit_workers.tracing.fake import recurrent
from autofit_workers.tracing.fake.ranks.collectives import NAMESPACES

aten: Any = torch.ops.aten

# `_lacking_a_cuda_kernel` finds operators that have a CPU kernel and a composite fallback; these have no CPU
# kernel, so they are listed.
_CUDA_ONLY = ("aten::_fused_rms_norm",)


_MOST_OF_CUDNN = 128  # head size (`check_cudnn_tensor_shapes`); only the newest cards allow more


def register() -> torch.library.Library:
    """Registers Python code for composite operators, such as `linear`, that have CUDA kernels of their own.

    A CPU build of PyTorch would decompose them. The registration lasts until the returned library is deleted.
    """
    library = torch.library.Library("aten", "IMPL")
    lacking = _lacking_a_cuda_kernel()
    # Wrappers of tensors, such as `DTensor`, have the device that C++ sees, XLA; see `fake_gpu`.
    for key in ("CUDA", "XLA"):
        library.impl("linear", _linear, f"Autograd{key}")
        library.impl("dropout", _dropout, f"Autograd{key}")
        library.impl("scaled_dot_product_attention", _scaled_dot_product_attention, f"Autograd{key}")
        library.impl("softmax.int", _softmax, f"Autograd{key}")
        library.impl("log_softmax.int", _log_softmax, f"Autograd{key}")
        for name in lacking:
            library.impl(name.removeprefix("aten::"), _never_called, key)
    recurrent.register(library)
    return library


def _lacking_a_cuda_kernel() -> list[str]:
    """Names of operators that a CPU build decomposes although CUDA has a kernel for each.

    Without a backend kernel PyTorch's dispatcher takes the composite one, whose decomposition would show
    temporaries that no GPU allocates (five for `silu_backward`).
    """
    has: Any = has_kernel
    names: list[str] = operator_names()
    return [
        name
        for name in names
        if name.startswith("aten::")
        and has(name, "CompositeImplicitAutograd")
        and not has(name, "CUDA")
        and (has(name, "CPU") or name in _CUDA_ONLY)
    ]


def _never_called(*_args: object, **_kwargs: object) -> None:
    raise AssertionError("a fake tensor reached a CUDA kernel")


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    """Output of `linear` for CUDA tensors (Linear.cpp).

    With a bias and a 2-D or contiguous input it is one `addmm`, else a product and an addition in place.
    """
    if bias is not None and input.dim() == 2:
        output: Tensor = aten.addmm(bias, input, weight.t())
        return output
    if bias is not None and input.is_contiguous():
        flat = input.reshape(-1, input.size(-1))
        output = aten.addmm(bias, flat, weight.t())
        return output.view([*input.shape[:-1], weight.size(0)])
    output = aten.matmul(input, weight.t())
    return output if bias is None else output.add_(bias)


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:  # noqa: A002
    """Output of `dropout` for CUDA tensors; the mask has one byte per element (Dropout.cpp)."""
    if p == 0 or not train or input.numel() == 0:
        return input
    if p == 1:
        return input.mul(torch.zeros((), dtype=input.dtype, device=input.device))
    output: Tensor = aten.native_dropout(input, p, train)[0]
    return output


def _softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Output of `softmax` for CUDA tensors; its kernel converts float16 to float32 itself (SoftMax.cpp)."""
    output: Tensor = aten._softmax(*_converted(self, dim, dtype))
    return output


def _log_softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    output: Tensor = aten._log_softmax(*_converted(self, dim, dtype))
    return output


def _converted(tensor: Tensor, dim: int, dtype: torch.dtype | None) -> tuple[Tensor, int, bool]:
    """Arguments for both softmax kernels: the input, `dim`, and whether the kernel converts to float32."""
    if tensor.dtype == torch.float16 and dtype == torch.float32:
        return tensor, dim, True
    return tensor if dtype is None else tensor.to(dtype), dim, False


def _scaled_dot_product_attention(  # noqa: PLR0917 - the operator's own signature
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Output of `scaled_dot_product_attention` for CUDA tensors, by the first enabled kernel that fits.

    The order is flash, memory-efficient, math, cuDNN (transformers/attention.cpp and cuda/sdp_utils.cpp);
    `torch.nn.attention.sdpa_kernel` and similar functions enable kernels. On some cards of compute capability
    9.0 and 10.0 PyTorch prefers cuDNN's kernel, which is not predicted.

    Raises:
        InapplicableError: no enabled kernel takes such tensors.
    """
    # Before, attention without a batch dimension computes all scores; 2.14 was not checked.
    adds_a_batch = not followed_release.is_before(ATTENTION_ADDS_A_BATCH)
    if adds_a_batch and query.dim() == key.dim() == value.dim() == 3:
        batched: Tensor = aten.scaled_dot_product_attention(
            query.unsqueeze(0),
            key.unsqueeze(0),
            value.unsqueeze(0),
            None if attn_mask is None else attn_mask[None] if attn_mask.dim() == 3 else attn_mask[None, None],
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
        return batched.squeeze(0)
    head_size = query.size(-1)
    fusable = query.dim() == key.dim() == value.dim() == 4 and query.dtype == key.dtype == value.dtype
    half = query.dtype in (torch.float16, torch.bfloat16)
    enabled = torch.backends.cuda
    takes_flash = fusable and half and attn_mask is None and head_size == value.size(-1) and head_size <= 256
    if enabled.flash_sdp_enabled() and takes_flash:
        padding = -head_size % 8
        q, k, v = (torch.nn.functional.pad(t, (0, padding)) if padding else t for t in (query, key, value))
        scale = head_size**-0.5 if scale is None else scale
        output: Tensor = aten._scaled_dot_product_flash_attention(
            q, k, v, dropout_p, is_causal, False, scale=scale
        )[0]
        return output[..., :head_size] if padding else output
    alignment = 8 if half else 4
    is_aligned = head_size % alignment == 0 and value.size(-1) % alignment == 0
    needs_logsumexp = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if enabled.mem_efficient_sdp_enabled() and fusable and not enable_gqa and is_aligned:
        efficient: Tensor = aten._scaled_dot_product_efficient_attention(
            query,
            key,
            value,
            _efficient_mask(attn_mask, query, key),
            needs_logsumexp,
            dropout_p,
            is_causal,
            scale=scale,
        )[0]
        return efficient
    if enabled.math_sdp_enabled():
        math: Tensor = aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
        return math
    widest = max(head_size, value.size(-1))
    if enabled.cudnn_sdp_enabled() and fusable and half and is_aligned and widest <= _MOST_OF_CUDNN:
        cudnn: Tensor = aten._scaled_dot_product_cudnn_attention(
            query,
            key,
            value,
            _as_bias(attn_mask, query),
            needs_logsumexp,
            dropout_p,
            is_causal,
            False,
            scale=scale,
        )[0]
        return cudnn
    raise InapplicableError(
        f"no attention kernel that is enabled takes queries of {str(query.dtype).removeprefix('torch.')} and "
        f"shape {tuple(query.shape)}{'' if attn_mask is None else ' with a mask'}: choose another with "
        "--attention, or leave it at default"
    )


def _as_bias(attn_mask: Tensor | None, query: Tensor) -> Tensor | None:
    """`attn_mask` as a bias on the scores, of their dtype if boolean (`convert_boolean_attn_mask`)."""
    if attn_mask is None or attn_mask.dtype != torch.bool:
        return attn_mask
    masked = torch.scalar_tensor(float("-inf"), dtype=query.dtype, device=query.device)
    return torch.where(attn_mask, 0.0, masked)


def _efficient_mask(attn_mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """`attn_mask` as a bias for the memory-efficient kernel, whose rows are padded to 16 elements."""
    attn_mask = _as_bias(attn_mask, query)
    if attn_mask is None:
        return None
    padding = -attn_mask.size(-1) % 16
    if padding:
        attn_mask = torch.nn.functional.pad(attn_mask, (0, padding))[..., : attn_mask.size(-1)]
    return attn_mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))


def _logsumexp(self: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    """Output of `logsumexp`; a shifted copy of the input is exponentiated in place (ReduceOps.cpp)."""
    maxima = aten.amax(self, dim, True)
    sums: Tensor = aten.sum.dim_IntList(aten.sub(self, maxima).exp_(), dim, keepdim)
    return sums.log_().add_(maxima.view_as(sums))


def _elementwise_loss(
    input: Tensor,  # noqa: A002
    target: Tensor,
    reduction: int = 1,
    _beta: float = 1.0,
) -> Tensor:
    """Squared or smooth L1 loss; a reduced loss keeps the storage of all elements (BinaryOps.cpp)."""
    dtype, shape = torch.result_type(input, target), torch.broadcast_shapes(input.shape, target.shape)
    result = input.new_empty(shape, dtype=dtype)
    if reduction == 0:
        return result
    input.new_empty(shape, dtype=dtype)
    return result.as_strided((), ())


def _huber_loss(
    input: Tensor,  # noqa: A002
    target: Tensor,
    reduction: int = 1,
    _delta: float = 1.0,
) -> Tensor:
    """Huber loss; a new tensor holds the losses of all elements until they are reduced (Loss.cpp)."""
    return _reduced(input.new_empty(torch.broadcast_shapes(input.shape, target.shape)), reduction)


def _soft_margin_loss(
    input: Tensor,  # noqa: A002
    target: Tensor,
    reduction: int = 1,
) -> Tensor:
    """Soft margin loss; a reduced loss keeps the storage of all elements (Loss.cpp)."""
    return _binary_cross_entropy(input, target, None, reduction)


def _soft_margin_loss_backward(
    _grad: Tensor,
    input: Tensor,  # noqa: A002
    target: Tensor,
    _reduction: int,
) -> Tensor:
    """Gradient of the soft margin loss (Loss.cpp).

    Of its temporaries, `exp(-target · input)` lives until the end of the call; the others are freed before
    the gradient is allocated.
    """
    negative = -target
    product = negative.mul(input)
    exponential = product.exp()
    del negative, product
    gradient: Tensor = target.mul(exponential)
    return gradient


def _binary_cross_entropy(
    input: Tensor,  # noqa: A002
    _target: Tensor,
    _weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    """Binary cross entropy; a reduced loss keeps the storage of the unreduced one (Loss.cu)."""
    loss = torch.empty_like(input)
    reduced = _reduced(loss, reduction)
    return reduced if reduction == 0 else loss.as_strided(reduced.size(), reduced.stride())


def _binary_cross_entropy_with_logits(
    input: Tensor,  # noqa: A002
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    """Binary cross entropy of logits; temporaries are log-sigmoid and unreduced loss (Loss.cpp)."""
    log_sigmoid = aten.log_sigmoid(input)
    if pos_weight is not None:
        log_sigmoid.mul_((pos_weight - 1).mul(target).add_(1))
    loss: Tensor = (1 - target).mul_(input).sub_(log_sigmoid)
    if weight is not None:
        loss.mul_(weight)
    return _reduced(loss, reduction)


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    """Loss after `reduction` 0 (none), 1 (mean) or 2 (sum), as `apply_loss_reduction` of Loss.cpp."""
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


def _safe_softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax that sets fully masked rows to zero, which it finds by a boolean temporary (SoftMax.cpp)."""
    output: Tensor = aten.softmax.int(self, dim, dtype)
    return output.masked_fill_(aten.isneginf(self).all(dim, True), 0.0)


# These gradient formulas write into new zeros, in place unless a tensor is a subclass, as fake tensors are
# (`areAnyTensorSubclassLike`): `value_selecting_reduction_backward`, `index_select_backward` and
# `index_backward` of FunctionsManual.cpp, and `gather_backward` of TensorAdvancedIndexing.cpp.
_IN_PLACE_IN_BACKWARD: dict[Any, Any] = {
    aten.scatter.src: aten.scatter_.src,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_put.default: aten.index_put_.default,
}


def as_no_subclass(func: OpOverload) -> OpOverload:
    """Operator that autograd calls for plain tensors in place of `func`: its in-place variant, or `func`.

    Fake tensors are a subclass, for which gradient formulas avoid in-place operators. This is the in-place
    variant if a formula is running and has one, else `func` itself.
    """
    in_place: OpOverload | None = _IN_PLACE_IN_BACKWARD.get(func)
    return func if in_place is None or not _in_a_formula() else in_place


def _in_a_formula() -> bool:
    """Whether autograd is running a node's C++ gradient formula, not a Python function or a recomputation."""
    if torch.is_grad_enabled():
        return False
    node: Any = current_node()
    return node is not None and not isinstance(node, torch.autograd.function.BackwardCFunction)


def _written_in_python() -> dict[Any, Callable[..., Any]]:
    """Maps PyTorch's operators that are written in Python to the functions that run them.

    They are in torch/nn/modules/linear_cross_entropy.py, which exists since PyTorch 2.13; before, the map is
    empty.
    """
    try:
        module = importlib.import_module("torch.nn.modules.linear_cross_entropy")
    except ModuleNotFoundError:
        return {}
    chunked = "_linear_cross_entropy_batch_chunked"
    made: list[Any] = [getattr(module, name, None) for name in (chunked, f"{chunked}_no_reduction")]
    return {each._opoverload: each._init_fn for each in made if each is not None}


# Operators whose temporaries PyTorch's fake mode does not show, with functions that allocate them.
WITH_TEMPORARIES: dict[Any, Callable[..., Any]] = {
    **_written_in_python(),
    **recurrent.WITH_TEMPORARIES,
    find_operator("aten._safe_softmax.default"): _safe_softmax,  # since 2.5
    aten.logsumexp.default: _logsumexp,
    aten.mse_loss.default: _elementwise_loss,
    aten.smooth_l1_loss.default: _elementwise_loss,
    aten.huber_loss.default: _huber_loss,
    aten.soft_margin_loss.default: _soft_margin_loss,
    aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    aten.binary_cross_entropy_with_logits.default: _binary_cross_entropy_with_logits,
}


def consists_of_operators(func: OpOverload) -> bool:
    """Whether the Python code that replaces operator `func` runs all of its GPU work as other operators.

    Only for operators in `WITH_TEMPORARIES`; if False, the time of `func` itself has to be recorded too.
    """
    if func.namespace in NAMESPACES:  # a collective also moves its input between ranks
        return False
    return func in WITH_TEMPORARIES and func not in recurrent.WITH_TEMPORARIES
