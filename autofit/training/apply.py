"""Convolution algorithms and checkpoints for the user's own training: what `autofit tune` answers, in use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.predict.conv_plan import ConvPlan
from autofit.settings.tune_settings import resolve_settings
from workers import conv
from workers.errors import InapplicableError, UnsupportedError


@contextmanager
def apply_conv_algo(
    model: Any, conv_algo: str, *, plan: ConvPlan | str | Path | None = None
) -> Iterator[Mapping[str, str]]:
    """Works out a model's convolutions by an algorithm, forward and backward, for the length of a block.

    A rewrite (`im2col`, `fft`, `chunked:8`, …) concerns this model alone, in this thread, and runs the
    backward pass of what ran forward in the block wherever that is called. A backend's policy (`native`,
    `cudnn-benchmark`, …) is a switch of the whole process. Afterwards everything is as before.

        >>> with autofit.apply_conv_algo(model, "fft"):
        ...     loss = criterion(model(images), labels)
        >>> loss.backward()

    Args:
        model: an `nn.Module`, where it is to run.
        conv_algo: one of those that `autofit conv-algos` lists.
        plan: of `mixed`, the algorithm of each layer: a `TuneResult.conv_plan`, or the file that
            `autofit tune --conv-plan` wrote.

    Returns:
        A context manager; it gives the layers that the algorithm cannot work out, which are left to
        the backend, each with the reason, as they are met.

    Raises:
        StorageError: the plan cannot be read.
        UsageError: there is no such algorithm or plan, it means nothing on the model's device, or it
            works out none of the model's convolutions; the last is raised by the model's first forward
            pass.
    """
    from workers.apply.own_model import algorithm_in_use  # imports torch

    algorithm = conv.find(_known(conv_algo))
    try:
        with algorithm_in_use(model, algorithm, plan=_assignment(conv_algo, plan)) as left:
            yield left
    except (UnsupportedError, InapplicableError) as error:
        raise UsageError(str(error)) from error


def checkpoint_blocks(model: Any, checkpointing: str = "blocks") -> None:
    """Lets the repeated blocks of a model keep less than they would, and run again in backward.

    Repeated blocks are modules with children that stand beside one of their class in an `nn.Sequential`
    or an `nn.ModuleList`. Their random numbers are the same both times; a batch norm in them updates its
    running statistics twice.

    Args:
        model: an `nn.Module`.
        checkpointing: `blocks` keeps of each block its inputs alone, `every:4` of each four that follow
            each other those of the first; `selective` also keeps what products, convolutions and
            attention put out, `selective:50` at most half of that.

    Raises:
        UsageError: the model has no such blocks, or there is no such checkpointing.
    """
    from workers.apply.checkpointing import checkpoint_blocks as apply  # imports torch

    try:
        apply(model, checkpointing)
    except (InapplicableError, ValueError) as error:
        raise UsageError(str(error)) from error


def _assignment(conv_algo: str, plan: ConvPlan | str | Path | None) -> tuple[tuple[str, str], ...] | None:
    if (plan is None) == (conv_algo == "mixed"):
        raise UsageError(
            "mixed needs a plan: give plan=result.conv_plan, or a file that --conv-plan wrote"
            if plan is None
            else f"a plan is for mixed, not for {conv_algo}: leave one of them out"
        )
    if plan is None:
        return None
    return (plan if isinstance(plan, ConvPlan) else ConvPlan.load(Path(plan))).assignment


def _known(conv_algo: str) -> str:
    settings = resolve_settings({"model": "model", "conv_algo": conv_algo}, {}, None)
    return settings.one_conv_algo("a model")
