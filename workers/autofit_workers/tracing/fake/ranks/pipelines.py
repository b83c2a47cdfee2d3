"""Lets the stages of a pipeline exchange tensors with ranks that do not exist in a prediction.

Before the first step all stages agree, by sending a number along the pipeline, whether they know the shapes
of the tensors that they exchange or have to infer them. Here other stages do not exist, so this rank's stages
decide alone. The numbers, which take a block of the allocator's smallest size for a moment, are not
predicted.

A sent tensor lives as long as the `Work` of the send: NCCL's process group keeps it among the work's outputs
(`pointToPoint` in torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp), and so does gloo's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class _Exchange:
    """Wrapper of the `Work` of a send or receive that keeps its tensor alive."""

    def __init__(self, work: Any, tensor: torch.Tensor) -> None:
        self._work = work
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def install() -> None:
    """Lets pipeline stages exchange tensors with missing ranks, in this process for good."""
    distributed: Any = torch.distributed
    c10d: Any = distributed.distributed_c10d
    for name in ("isend", "irecv"):
        kept = _keeping(getattr(c10d, name))
        for each in (distributed, c10d):
            setattr(each, name, kept)
    _let_stages_agree()


def _keeping(exchange: Callable[..., Any]) -> Callable[..., Any]:
    def kept(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> _Exchange:
        return _Exchange(exchange(tensor, *args, **kwargs), tensor)

    return kept


def _let_stages_agree() -> None:
    from autofit_workers.pytorch.pipelining import WARM_UP, inference_mode

    if inference_mode is None:
        return

    def agree(_self: Any, stages: list[Any], has_backward: bool, _is_done: bool) -> None:
        for each in stages:
            finds_out = inference_mode.needs_dynamic(each._user_meta, has_backward)
            each._inference_mode = inference_mode.DYNAMIC if finds_out else inference_mode.STATIC

    WARM_UP.replace(agree)
