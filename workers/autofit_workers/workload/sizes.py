"""Size of a workload's samples, such as tokens of a text or the side of an image."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.trace import SampleSize
from autofit_workers.workload.keywords import keyword
from autofit_workers.workload.workload import Workload

_KEYWORD = "size"


def sized(workload: Workload, size: int, *, allows_long: bool) -> dict[str, Callable[..., Any]]:
    """Replacements for a workload's functions, by attribute name, which make every sample of one size.

    These are `make_batch`, and `build_model` if it takes a size.

    Args:
        workload: the workload.
        size: size of a sample, such as its number of tokens.
        allows_long: whether the size may exceed the largest that the model was made for.

    Raises:
        InapplicableError: the workload makes samples of one size, or its model was made for shorter ones.
    """
    name = workload.name or "the workload"
    if keyword(workload.make_batch, _KEYWORD) is None:
        raise InapplicableError(
            f"--seq-len: {name} makes samples of one size; let its make_batch take a keyword size "
            "(make_batch(batch_size, device, *, size=512)), or leave the option out"
        )
    longest = workload.max_size
    if longest is not None and size > longest and not allows_long:
        raise InapplicableError(
            f"samples of {size} are beyond the {longest} positions of {name}: ask for --seq-len {longest} or "
            "less, or add --allow-long"
        )
    takers: dict[str, Callable[..., Any]] = {
        "make_batch": workload.make_batch,
        "build_model": workload.build_model,
    }
    return {
        each: functools.partial(taker, size=size)
        for each, taker in takers.items()
        if keyword(taker, _KEYWORD) is not None
    }


def sample_size(workload: Workload, size: int | None) -> SampleSize | None:
    """Size of a workload's samples, such as 512 tokens, with its rounding multiple and maximum.

    None if the workload makes samples of one size only.

    Args:
        workload: the workload.
        size: the size that was asked for; None for the workload's own.
    """
    taken = keyword(workload.make_batch, _KEYWORD)
    if taken is None:
        return None
    own = taken.default if isinstance(taken.default, int) else None
    return SampleSize(size=size or own, multiple=workload.size_multiple, longest=workload.max_size)
