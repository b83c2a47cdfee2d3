"""Differences between releases of PyTorch that change how much memory a step takes.

`--torch RELEASE` predicts another release than the one that is installed: it takes those differences between
both into account that it can follow, and tells of the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autofit_workers.spec.pythons import StrEnum
from autofit_workers.spec.versions import (
    CUDNN_OF_WHEELS,
    SUPPORTED_RELEASES,
    parse_release,
    release_of,
    supported_releases,
)

Release = tuple[int, int]

AUTOCAST_OF_RMS_NORM: Release = (2, 12)
SHARDS_ARE_COPIES: Release = (2, 10)
FUSED_RMS_NORM: Release = (2, 9)
WHOLE_SLICES_ARE_FREE: Release = (2, 9)
COLLECTIVES_KEEP_TENSORS: Release = (2, 8)
WORKSPACE_OF_EACH_PRODUCT: Release = (2, 15)
ATTENTION_ADDS_A_BATCH: Release = (2, 15)


class Followed(StrEnum):
    """Whether a prediction of another release takes a change into account.

    Predicting an older release, the installed PyTorch is made to do what it did before. It can do what came
    later only where it has all that this needs.
    """

    NO = "no"
    OLDER = "of an older release"
    BOTH = "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Change between two releases of PyTorch by which the same step takes another amount of memory.

    Attributes:
        since: first release with the change.
        before: clause on what releases before `since` do.
        after: clause on what `since` and later releases do.
        source: place in PyTorch's source, pull request or comparison that shows the change.
        followed: whether `--torch` takes the change into account.
    """

    since: Release
    before: str
    after: str
    source: str
    followed: Followed = Followed.NO


DIFFERENCES = (
    Difference(
        since=WORKSPACE_OF_EACH_PRODUCT,
        before="a handle of cuBLAS keeps its workspace",
        after="each matrix product allocates cuBLAS's workspace",
        source="aten/src/ATen/cuda/CublasHandlePool.cpp",
        followed=Followed.BOTH,
    ),
    Difference(
        since=ATTENTION_ADDS_A_BATCH,
        before="attention without a batch dimension computes all scores",
        after="attention without a batch dimension is fused",
        source="transformers/attention.cpp, pytorch/pytorch#192271",
        followed=Followed.BOTH,
    ),
    Difference(
        since=AUTOCAST_OF_RMS_NORM,
        before="torch.nn.RMSNorm under autocast returns its input's data type",
        after="torch.nn.RMSNorm under autocast runs in float32",
        source="tests/versions: autocast's policy of aten::rms_norm; compared 2.9 to 2.11 with 2.12",
        followed=Followed.OLDER,
    ),
    Difference(
        since=SHARDS_ARE_COPIES,
        before="a shard of distribute_tensor may be a view, which keeps the whole tensor",
        after="a shard of distribute_tensor is a copy",
        source="Shard._shard_tensor in torch/distributed/tensor/placement_types.py",
        followed=Followed.OLDER,
    ),
    Difference(
        since=FUSED_RMS_NORM,
        before="torch.nn.RMSNorm is a sequence of operators that keep their inputs",
        after="torch.nn.RMSNorm is one kernel",
        source="aten::_fused_rms_norm has a CUDA kernel since 2.9 (native_functions.yaml)",
        followed=Followed.OLDER,
    ),
    Difference(
        since=WHOLE_SLICES_ARE_FREE,
        before="indexing with a whole slice, as x[:, 0], adds a gradient of x's size",
        after="indexing with a whole slice adds nothing",
        source="TensorIndexing.h; SliceBackward0 in the graph of x[:, 0] up to 2.8",
        followed=Followed.OLDER,
    ),
    Difference(
        since=COLLECTIVES_KEEP_TENSORS,
        before="tensors of an asynchronous collective are freed with the program's references",
        after="NCCL's process group keeps them until Work.wait, or a later collective",
        source="pytorch/pytorch#150398 (ProcessGroupNCCL.cpp)",
        followed=Followed.OLDER,
    ),
    Difference(
        since=(2, 7),
        before="FlashAttention keeps its random state as two tensors of 8 bytes",
        after="FlashAttention keeps its random state as one tensor of 16 bytes",
        source="ScaledDotProductFlashAttentionBackward0 of each wheel (autograd/generated/Functions.h)",
    ),
    Difference(
        since=(2, 2),
        before="a mean keeps its input for backward",
        after="a mean keeps only its input's shape",
        source="pytorch/pytorch#109935; MeanBackward0 of 2.1.2 has a saved self",
    ),
    Difference(
        since=(2, 0),
        before="zero_grad fills gradients with zeros",
        after="zero_grad drops gradients",
        source="pytorch/pytorch#92731",
    ),
    Difference(
        since=(2, 0),
        before="optimizers loop over parameters",
        after="optimizers take all parameters at once (foreach)",
        source="release notes of 2.0",
    ),
    Difference(
        since=(2, 0),
        before="cuBLAS's workspace is outside of PyTorch's allocator",
        after="cuBLAS's workspace is from PyTorch's allocator",
        source="pytorch/pytorch#95668, which holds 8,519,680 bytes that 1.13 did not",
    ),
    Difference(
        since=(2, 0),
        before="attention has no fused kernel: libraries keep all scores",
        after="scaled_dot_product_attention has fused kernels",
        source="release notes of 2.0",
    ),
)

# Operators that came with a release, by name. A step that uses one of them cannot run as it is with an older
# release. Found by comparing the names that each wheel registers; without overloads that write to `out`.
OPERATORS_SINCE: dict[str, Release] = {
    "aten._cudnn_attention_forward.default": (2, 7),
    "aten._scaled_grouped_mm.default": (2, 7),
    "aten._grouped_mm.default": (2, 8),
    "aten.addmm.dtype": (2, 8),
    "aten.baddbmm.dtype": (2, 8),
    "aten.bmm.dtype": (2, 8),
    "aten.mm.dtype": (2, 8),
    "aten._fused_adagrad_.tensor_lr": (2, 8),
    "aten.hash_tensor.default": (2, 9),
    "aten._scaled_mm_v2.default": (2, 10),
    "aten._scaled_grouped_mm_v2.default": (2, 10),
    "aten._scaled_dot_product_flash_attention.quantized": (2, 11),
    "aten._flash_attention_forward.quantized": (2, 11),
    "aten._foreach_powsum.Scalar": (2, 11),
    "aten.linalg__powsum.default": (2, 11),
    "aten._foreach_clone.default": (2, 12),
    "aten._philox_normal_.default": (2, 12),
    "aten._philox_uniform_.default": (2, 12),
    "aten._foreach_mm.default": (2, 13),
    "aten.linalg_polar.default": (2, 14),
    "aten.linalg_matrix_sqrth.default": (2, 14),
    "aten._scaled_addmm.default": (2, 15),
}


def followed_release(text: str) -> str:
    """Release, such as `2.8`, that `--torch` names, as a release or a whole version such as `2.8.1+cu128`.

    Raises:
        ValueError: the text is no version, or predictions do not know how that release differs.
    """
    try:
        release = release_of(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is no release of PyTorch such as 2.8: predictions follow {supported_releases()}"
        ) from error
    if release not in SUPPORTED_RELEASES:
        raise ValueError(
            f"how PyTorch {release} takes memory is not known: predictions follow {supported_releases()}"
        )
    return release


def between(release: str, other: str) -> tuple[Difference, ...]:
    """Differences between two releases of PyTorch, the newest first.

    Args:
        release, other: releases or versions, in either order.
    """
    older, newer = sorted((parse_release(release), parse_release(other)))
    return tuple(each for each in DIFFERENCES if older < each.since <= newer)


def note_on_following(release: str, installed: str) -> str:
    """Sentence that says which differences a prediction of a release takes into account, and which not.

    Args:
        release: release that is predicted.
        installed: version of PyTorch that traced the step.
    """
    found = between(release, installed)
    is_older = parse_release(release) < parse_release(installed)
    takes = (Followed.BOTH, Followed.OLDER) if is_older else (Followed.BOTH,)

    def clauses(differences: Iterable[Difference]) -> list[str]:
        return [each.before if is_older else each.after for each in differences]

    followed = [
        f"convolutions as of cuDNN {CUDNN_OF_WHEELS[release]}",
        *clauses(each for each in found if each.followed in takes),
    ]
    said = f"PyTorch {release} is predicted, traced with {installed}"
    said += f". Taken into account: {'; '.join(followed)}"
    if ignored := clauses(each for each in found if each.followed not in takes):
        said += f". Not taken into account: {'; '.join(ignored)}"
    return f"{said}. PyTorch's own Python code, such as optimizers and FSDP2, is the installed one's"
