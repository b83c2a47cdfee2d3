"""GPU kernels that operators run, each with its class, matrix product and bytes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from autofit_workers.replay.time.collectives import exchange_of, exchanged_bytes
from autofit_workers.replay.time.speeds import TF32
from autofit_workers.spec.pythons import StrEnum
from autofit_workers.spec.work import ELEMENT_BYTES, Convolution, ConvPass, Group, Layout, Operand, Work


class KernelClass(StrEnum):
    """Class of kernels that share a bottleneck, and so the constants that predict their times."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"  # as matrix products, in one group
    GROUPED_CONVOLUTION = "grouped_convolution"
    DEPTHWISE_CONVOLUTION = "depthwise_convolution"
    ATTENTION = "attention"
    BATCH_NORM = "batch_norm"
    LAYER_NORM = "layer_norm"
    SOFTMAX = "softmax"
    POOL = "pool"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    COPY = "copy"
    REORDER = "reorder"  # a copy into another order of dimensions
    INDEX = "index"  # reads or writes at places that another tensor names
    OPTIMIZER = "optimizer"  # on lists of tensors
    RECURRENT = "recurrent"
    TRANSFER = "transfer"  # between the device and the host
    ALL_REDUCE = "all_reduce"  # among the ranks of a node, over links with measured all-reduces
    GATHER = "gather"  # all-gathers, reduce-scatters and all-to-alls in a node, over links with measured ones
    COLLECTIVE = "collective"  # any other collective
    OTHER = "other"  # of an operator of which only the operands are known


_COMPILED = "inductor."  # begins the names of kernels that `torch.compile` generates
EXCHANGES = frozenset({KernelClass.ALL_REDUCE, KernelClass.GATHER, KernelClass.COLLECTIVE})


@dataclass(frozen=True, slots=True)
class Product:
    """Product of an m×k matrix with a k×n matrix, computed for each of `batch` pairs."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Attention:
    """Fused attention of queries to keys and values, forward.

    Attributes:
        batch: number of sequences.
        queries, keys: tokens of a sequence that attend, and that are attended to.
        heads, kv_heads: heads of the queries, and of the keys; several heads of queries may share one.
        width: elements of a head.
        is_causal: whether a query attends to no later key.
        window: number of keys that a query attends to at most; 0 for all.
        is_older: whether the kernel is FlashAttention 2, which does not use what Hopper and later added.
    """

    batch: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    width: int
    is_causal: bool = False
    window: int = 0
    is_older: bool = True


@dataclass(frozen=True, slots=True)
class Kernel:
    """One GPU kernel, or several alike in a row, with class, bytes and matrix product.

    Attributes:
        kind: class of the kernel.
        moved_bytes: bytes that it reads and writes.
        dtype: data type of its arithmetic; `tf32` if tensor cores make products of float32.
        product: the matrix product that it computes; None for none.
        variant: pass, layout or the like, for kernels of a class that have constants of their own.
        copied_bytes: bytes read and written before the kernel, to copy its operands into another layout.
        num_launches: number of kernels that the host launches, if several alike count as one `Kernel`.
        group: for a collective, the ranks that take part; its `variant` is then the `Exchange`, and its
            `moved_bytes` are those of `exchanged_bytes`. None for all other kernels.
        attention: for fused attention in a forward pass, what attends to what; None for all other kernels.
        num_taps: elements of a channel of the filter of a convolution in groups; 0 for all other kernels.
        is_strided, is_dilated: whether such a convolution has a stride, and whether it is dilated.
    """

    kind: KernelClass
    moved_bytes: int
    dtype: str
    product: Product | None = None
    variant: str = ""
    copied_bytes: int = 0
    num_launches: int = 1
    group: Group | None = None
    attention: Attention | None = None
    num_taps: int = 0
    is_strided: bool = False
    is_dilated: bool = False


def kernels_of(work: Work, *, allow_tf32: bool = False, conv_tf32: bool = True) -> tuple[Kernel, ...]:
    """GPU kernels that an operator runs, with their bytes and matrix products.

    Args:
        work: the operator with its inputs, outputs and flags.
        allow_tf32: whether tensor cores may compute products of float32 matrices, in TF32.
        conv_tf32: whether tensor cores may compute float32 convolutions, in TF32.
    """
    if work.convolutions:
        return _convolutions(work, allow_tf32=conv_tf32)
    if work.group is not None:
        return (_collective(work, work.group),)
    name = work.operator.removeprefix("aten.").partition(".")[0]
    make = _MAKERS_OF_OTHERS.get(work.operator) or _MAKERS.get(name)
    if work.operator.startswith(_COMPILED):
        make = _fused
    if make is None:
        make = _on_lists if name.startswith(("_foreach", "_fused")) else _element_by_element
    try:
        kernels = make(work)
    except (IndexError, ValueError):  # the operator has other arguments than its rule expects
        kernels = _other(work)
    return tuple(_with_tf32(kernel) for kernel in kernels) if allow_tf32 else kernels


def _collective(work: Work, group: Group) -> Kernel:
    first, *_ = (*work.inputs, *work.outputs)
    return Kernel(
        KernelClass.COLLECTIVE,
        exchanged_bytes(work),
        first.dtype,
        variant=exchange_of(work.operator),
        group=group,
    )


def _with_tf32(kernel: Kernel) -> Kernel:
    if kernel.product is None or kernel.dtype != "float32":
        return kernel
    return dataclasses.replace(kernel, dtype=TF32)


def _bytes(*operands: Operand) -> int:
    return sum(operand.num_bytes for operand in operands)


def _element_by_element(work: Work) -> tuple[Kernel, ...]:
    """Kernel assumed for an operator without a rule of its own.

    It is elementwise if the operator is flagged as pointwise, else of class `OTHER`.
    """
    return _of_class(KernelClass.ELEMENTWISE)(work) if "pointwise" in work.flags else _other(work)


def _other(work: Work) -> tuple[Kernel, ...]:
    return _of_class(KernelClass.OTHER)(work)


def _of_class(kind: KernelClass) -> Callable[[Work], tuple[Kernel, ...]]:
    """Returns a rule for operators whose kernel, of class `kind`, reads or writes each tensor once."""

    def make(work: Work) -> tuple[Kernel, ...]:
        is_elementwise = kind is KernelClass.ELEMENTWISE  # it computes in the type of its result
        first, *_ = (*work.outputs, *work.inputs) if is_elementwise else (*work.inputs, *work.outputs)
        return (Kernel(kind, _bytes(*work.inputs, *work.outputs), first.dtype),)

    return make


# Rows up to which softmax keeps its input in registers, and how often it reads longer rows: of the kernels
# softmax_warp_forward and cunn_SoftMaxForward, the latter reads for the maximum, the sum and the
# result, where the caches do not hold the row any more (NeuSight's kernels).
_SOFTMAX_READS = ((1024, 1.0), (6400, 1.6))
_SOFTMAX_READS_BEYOND = 2.2


def _softmax(work: Work) -> tuple[Kernel, ...]:
    source = work.inputs[0]
    reads = next(
        (times for longest, times in _SOFTMAX_READS if source.shape[-1] <= longest), _SOFTMAX_READS_BEYOND
    )
    moved = int(reads * source.num_bytes) + _bytes(*work.outputs)
    return (Kernel(KernelClass.SOFTMAX, moved, source.dtype),)


def _one_by_one(kind: KernelClass) -> Callable[[Work], tuple[Kernel, ...]]:
    """Returns a rule for operators whose kernel, of class `kind`, accesses elements one by one.

    vLLM's kernels do so, rather than read several elements in one access.
    """

    def make(work: Work) -> tuple[Kernel, ...]:
        return (Kernel(kind, _bytes(*work.inputs, *work.outputs), work.inputs[0].dtype, None, "one_by_one"),)

    return make


def _copy(work: Work) -> tuple[Kernel, ...]:
    """Kernel of a copy: between host and device, into another layout (`REORDER`), or plain."""
    if "transfer" in work.flags:
        return _of_class(KernelClass.TRANSFER)(work)
    first, last = (work.inputs or work.outputs)[-1], work.outputs[-1]
    reorders = first.layout is not last.layout and first.num_elements == last.num_elements
    kind = KernelClass.REORDER if reorders else KernelClass.COPY
    return (Kernel(kind, _bytes(first, last), last.dtype),)


def _copy_in(work: Work) -> tuple[Kernel, ...]:
    """Kernel that copies a rank's shards into its part of the gathered tensor (FSDP's all-gather).

    The part is the operator's first output.
    """
    part = work.outputs[0]
    return (Kernel(KernelClass.COPY, 2 * part.num_bytes, part.dtype),)


def _copy_together(work: Work) -> tuple[Kernel, ...]:
    """Kernel that copies tensors into one padded tensor, which is the operator's last input."""
    whole = work.inputs[-1]
    return (Kernel(KernelClass.COPY, _bytes(*work.inputs), whole.dtype),)


def _copy_apart(work: Work) -> tuple[Kernel, ...]:
    """Kernel that splits a tensor, the operator's first input, by copying its parts into the other inputs."""
    first = work.inputs[0]
    return (Kernel(KernelClass.COPY, 2 * first.num_bytes, first.dtype),)


def _matmul(work: Work) -> tuple[Kernel, ...]:
    """Kernel of `mm`, `addmm`, `bmm` or `baddbmm`, whose last two inputs are the matrices."""
    left, right = work.inputs[-2:]
    *batch, m, k = left.shape
    n = right.shape[-1]
    product = Product(m, n, k, math.prod(batch))
    variant = "batched" if batch else ""
    return (Kernel(KernelClass.MATMUL, _bytes(left, right, *work.outputs), left.dtype, product, variant),)


def _scaled_matmul(work: Work) -> tuple[Kernel, ...]:
    """Kernel of a product of two scaled matrices, such as fp8, which are the operator's first inputs."""
    left, right = work.inputs[:2]
    product = Product(left.shape[-2], right.shape[-1], left.shape[-1])
    return (Kernel(KernelClass.MATMUL, _bytes(left, right, *work.outputs), left.dtype, product),)


_WINDOW = "window="


def _attention(work: Work) -> tuple[Kernel, ...]:
    """Kernel of fused attention, as one matrix product of queries with keys.

    Its inner dimension stands for the two products of forward or the five of backward; causal masks halve it.
    """
    backward = "backward" in work.operator
    query, key = work.inputs[1:3] if backward else work.inputs[:2]  # backward has the gradient first
    batch = math.prod(query.shape[:-2])
    queries, keys, width = query.shape[-2], key.shape[-2], query.shape[-1]
    share = 0.5 if "causal" in work.flags else 1.0
    k = int((5 if backward else 2) * width * share) or 1
    product = Product(queries, keys, k, batch)
    moved = _bytes(*work.inputs, *work.outputs)
    if backward:
        return (Kernel(KernelClass.ATTENTION, moved, query.dtype, product, "backward"),)
    window = next((flag for flag in work.flags if flag.startswith(_WINDOW)), _WINDOW + "0")
    attention = Attention(
        batch=math.prod(query.shape[:-3]),
        queries=queries,
        keys=keys,
        heads=query.shape[-3],
        kv_heads=key.shape[-3],
        width=width,
        is_causal="causal" in work.flags,
        window=int(window.removeprefix(_WINDOW)),
        is_older="cudnn" not in work.operator,
    )
    variant = "decode" if queries == 1 else "forward"
    return (Kernel(KernelClass.ATTENTION, moved, query.dtype, product, variant, attention=attention),)


def _batch_norm(work: Work) -> tuple[Kernel, ...]:
    """Kernel of batch norm forward, which in training reads its input twice: mean, then normalisation."""
    first = work.inputs[0]
    moved = (2 if "training" in work.flags else 1) * first.num_bytes + work.outputs[0].num_bytes
    return (Kernel(KernelClass.BATCH_NORM, moved, first.dtype, variant=_layout(first)),)


def _batch_norm_backward(work: Work) -> tuple[Kernel, ...]:
    """Kernel of batch norm backward, which reads gradient and input twice and writes the input's gradient."""
    big = [each for each in work.inputs if len(each.shape) > 1][:2]
    moved = 2 * _bytes(*big) + work.outputs[0].num_bytes
    return (Kernel(KernelClass.BATCH_NORM, moved, big[0].dtype, variant=_layout(big[0])),)


def _layout(operand: Operand) -> str:
    return "channels_last" if operand.layout is Layout.CHANNELS_LAST else ""


def _layer_norm_backward(work: Work) -> tuple[Kernel, ...]:
    """Kernels of layer norm backward: the input's gradient, and the sums for weight and bias."""
    big = [each for each in work.inputs if len(each.shape) > 1][:2]
    dtype = work.inputs[0].dtype
    return (
        Kernel(KernelClass.LAYER_NORM, _bytes(*big, work.outputs[0]), dtype),
        Kernel(KernelClass.REDUCTION, _bytes(*big), dtype),
    )


def _index(work: Work) -> tuple[Kernel, ...]:
    """Kernel of indexing, which reads only the elements that it returns, and the indices."""
    written = _bytes(*work.outputs)
    moved = 2 * written + _bytes(*work.inputs[1:])
    return (Kernel(KernelClass.INDEX, moved, (work.outputs or work.inputs)[0].dtype),)


_TENSORS_OF_A_LAUNCH = 32  # of a kernel on lists: 110, 64, 48, 36, 30 for 1 to 5 lists (ForeachFunctors)


def _on_lists(work: Work) -> tuple[Kernel, ...]:
    """Kernel of an operator on lists of tensors, such as `_foreach_add` or a fused optimizer.

    A fused optimizer reads and writes all its lists.
    """
    moved = _bytes(*work.inputs, *work.outputs)
    if "fused" in work.operator:
        moved = 2 * _bytes(*work.inputs)
    launches = max(1, math.ceil(len(work.outputs) / _TENSORS_OF_A_LAUNCH))
    dtype = (work.inputs or work.outputs)[0].dtype
    return (Kernel(KernelClass.OPTIMIZER, moved, dtype, num_launches=launches),)


def _convolutions(work: Work, *, allow_tf32: bool) -> tuple[Kernel, ...]:
    kernels = [kernel_of(call, allow_tf32=allow_tf32) for call in work.convolutions]
    backward = "backward" in work.operator
    if not backward and len(work.inputs[-1].shape) == 1:  # a bias, which a kernel of its own adds
        output = work.outputs[0]
        kernels.append(Kernel(KernelClass.ELEMENTWISE, 2 * output.num_bytes, output.dtype))
    if backward and any(len(each.shape) == 1 for each in work.outputs):  # the gradient of a bias
        kernels.append(Kernel(KernelClass.REDUCTION, work.inputs[0].num_bytes, work.inputs[0].dtype))
    return tuple(kernels)


_PADDED = 8
_NARROW_GROUP = 48  # channels of a group that cuDNN 8 has kernels for in channels last, at most
IMAGE_CHANNELS = 4  # cuDNN has kernels for images of up to this many


def kernel_of(call: Convolution, *, allow_tf32: bool = True) -> Kernel:
    """Kernel of one pass of a convolution, with its arithmetic as a matrix product.

    Args:
        call: the convolution pass.
        allow_tf32: whether tensor cores may compute it in TF32, if it is in float32.
    """
    groups = call.groups
    samples, inputs = call.input_shape[:2]
    filters, per_group = call.weight_shape[:2]
    taps = math.prod(call.weight_shape[2:])
    out_positions, in_positions = math.prod(call.output_shape[2:]), math.prod(call.input_shape[2:])
    element = ELEMENT_BYTES.get(call.dtype, 4)
    in_bytes, out_bytes = (
        element * samples * inputs * in_positions,
        element * samples * filters * out_positions,
    )
    moved = in_bytes + out_bytes + element * math.prod(call.weight_shape)
    dtype = TF32 if call.dtype == "float32" and allow_tf32 else call.dtype
    outputs = filters // groups
    is_unaligned = (
        groups == 1
        and dtype != "float32"
        and (inputs % _PADDED or filters % _PADDED)
        and inputs > IMAGE_CHANNELS
    )
    if dtype != "float32" and groups == 1:  # tensor cores read vectors of 16 bytes
        per_group, outputs = (_PADDED * math.ceil(each / _PADDED) for each in (per_group, outputs))
    if call.conv_pass is ConvPass.FPROP:
        product = Product(samples * out_positions, outputs, per_group * taps, groups)
    elif call.conv_pass is ConvPass.DGRAD:
        inner = max(1, outputs * taps * out_positions // max(in_positions, 1))  # less with a stride
        product = Product(samples * in_positions, per_group, inner, groups)
    else:
        product = Product(outputs, per_group * taps, samples * out_positions, groups)
    if groups > 1 and per_group == 1:
        kind = KernelClass.DEPTHWISE_CONVOLUTION
    elif groups > 1:
        kind = KernelClass.GROUPED_CONVOLUTION
    else:
        kind = KernelClass.CONVOLUTION
    copied = 0
    if not call.channels_last and dtype != "float32" and kind is not KernelClass.DEPTHWISE_CONVOLUTION:
        # Tensor cores want channels last: the operands of a pass are brought into that order before it.
        read = {ConvPass.FPROP: in_bytes, ConvPass.DGRAD: out_bytes, ConvPass.WGRAD: in_bytes + out_bytes}
        copied = 2 * read[call.conv_pass]
    layout = "channels_last" if call.channels_last else "contiguous"
    variant = f"{call.conv_pass} {layout}"
    if is_unaligned:
        variant = f"{layout} unaligned"
    elif kind is KernelClass.DEPTHWISE_CONVOLUTION:
        variant = layout
    elif kind is KernelClass.GROUPED_CONVOLUTION:
        return Kernel(
            kind,
            moved,
            dtype,
            product,
            _channels_last_groups(call, min(per_group, outputs)) if call.channels_last else layout,
            copied,
            num_taps=taps,
            is_strided=max(call.stride) > 1,
            is_dilated=max(call.dilation) > 1,
        )
    return Kernel(kind, moved, dtype, product, variant, copied)


def _channels_last_groups(call: Convolution, width: int) -> str:
    """Variant of a convolution in groups of some channels, in channels last.

    What cuDNN 8 ran backward for wide groups takes as long for each element whatever the width and the
    filter, and for narrow ones many times as long with a stride. Both backward passes were only timed
    together.
    """
    if call.conv_pass is ConvPass.FPROP:
        return "fprop channels_last"
    return "wide backward channels_last" if width > _NARROW_GROUP else "backward channels_last"


def _recurrent(work: Work) -> tuple[Kernel, ...]:
    """Kernel of recurrent layers of cuDNN and oneDNN, with the fewest bytes and FLOP that they can take.

    Each step of the sequence multiplies all weights.
    """
    sequence = work.inputs[0]
    tokens, width = math.prod(sequence.shape[:-1]), sequence.shape[-1]
    weights = sum(each.num_elements for each in work.inputs if len(each.shape) == 2)
    times = 2 if "backward" in work.operator else 1
    product = Product(tokens, max(1, weights // width), times * width)
    return (Kernel(KernelClass.RECURRENT, _bytes(*work.inputs, *work.outputs), sequence.dtype, product),)


def _fused(work: Work) -> tuple[Kernel, ...]:
    """Kernel that Inductor fused of several operators: it reads its inputs and writes its outputs once."""
    kind = KernelClass.ELEMENTWISE if "pointwise" in work.flags else KernelClass.REDUCTION
    return (Kernel(kind, _bytes(*work.inputs, *work.outputs), (*work.inputs, *work.outputs)[0].dtype),)


_MAKERS: dict[str, Callable[[Work], tuple[Kernel, ...]]] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "_addmm_activation"), _matmul),
    **dict.fromkeys(("_scaled_mm", "_scaled_mm_v2"), _scaled_matmul),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_flash_attention_backward",
            "_scaled_dot_product_efficient_attention_backward",
            "_scaled_dot_product_cudnn_attention_backward",
        ),
        _attention,
    ),
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit"), _batch_norm),
    **dict.fromkeys(("native_batch_norm_backward", "cudnn_batch_norm_backward"), _batch_norm_backward),
    **dict.fromkeys(("native_layer_norm", "native_group_norm", "_fused_rms_norm"),
                    _of_class(KernelClass.LAYER_NORM)),
    **dict.fromkeys(("native_layer_norm_backward", "native_group_norm_backward", "_fused_rms_norm_backward"),
                    _layer_norm_backward),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _of_class(KernelClass.SOFTMAX)),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d",
                     "avg_pool2d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward",
                     "upsample_bilinear2d", "upsample_nearest2d", "upsample_bicubic2d",
                     "upsample_bilinear2d_backward", "upsample_nearest2d_backward"),
                    _of_class(KernelClass.POOL)),
    **dict.fromkeys(("sum", "mean", "var_mean", "var", "std", "amax", "amin", "max", "min", "argmax", "norm",
                     "linalg_vector_norm", "cumsum", "nll_loss_forward", "topk", "sort"),
                    _of_class(KernelClass.REDUCTION)),
    **dict.fromkeys(("_to_copy", "copy_", "clone", "contiguous"), _copy),
    **dict.fromkeys(("cat", "constant_pad_nd", "roll", "flip", "repeat", "stack"),
                    _of_class(KernelClass.COPY)),
    **dict.fromkeys(("embedding", "embedding_dense_backward", "index", "index_put", "_index_put_impl_",
                     "index_select", "gather", "scatter", "scatter_add", "index_add"), _index),
    "_sparse_addmm": _of_class(KernelClass.INDEX),  # it reads scattered rows
    **dict.fromkeys(("zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "zero_", "fill_",
                     "new_zeros", "new_full", "new_ones", "scalar_tensor", "arange", "randn", "randint",
                     "rand", "rand_like", "randn_like", "bernoulli_", "normal_", "uniform_", "random_"),
                    _of_class(KernelClass.ELEMENTWISE)),
    **dict.fromkeys(("native_dropout", "native_dropout_backward", "nll_loss_backward", "where", "masked_fill",
                     "masked_fill_"), _of_class(KernelClass.ELEMENTWISE)),
    **dict.fromkeys(("_cudnn_rnn", "_cudnn_rnn_backward", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"),
                    _recurrent),
}  # fmt: skip

# Operators of FullyShardedDataParallel and of vLLM, by their full names.
_MAKERS_OF_OTHERS: dict[str, Callable[[Work], tuple[Kernel, ...]]] = {
    "fsdp.all_gather_copy_in": _copy_in,
    "fsdp.chunk_cat": _copy_together,
    "fsdp.copy_": _copy,
    "fsdp.split_with_sizes_copy": _copy_apart,
    "_C.rotary_embedding": _one_by_one(KernelClass.ELEMENTWISE),
    "_C.silu_and_mul": _one_by_one(KernelClass.ELEMENTWISE),
    "_C.rms_norm": _one_by_one(KernelClass.LAYER_NORM),
}
