"""Kinds of parallelism that a search compares: `--search parallel=ddp,fsdp:8,hsdp`.

ddp, fsdp, tp, …        all of --nproc ranks
hsdp, fsdp+tp           every split of --nproc ranks into two or more factors of at least 2; on several
                        nodes, hsdp has one replica a node, so that a replica's shards stay on its node
fsdp:8, fsdp:4+tp:2     values of --parallel, with + in place of the comma
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from autofit_workers.spec.parallel_kinds import FSDP, PARALLEL_KINDS, REPLICATE, SCRIPT
from autofit_workers.spec.setup import Parallel

NAME = "parallel"  # name in `--search`
_HSDP = "hsdp"
_KINDS = (*(kind for kind in PARALLEL_KINDS if kind not in (REPLICATE, SCRIPT)), _HSDP)
# A plus separates kinds only before a kind with a number of ranks; it is part of the kind in fsdp1:8+grad-op.
_BEFORE_A_KIND = re.compile(r"\+(?=\w+:)")


def parallel_form(value: Any) -> str:
    """Text of a parallelism after a check: `fsdp:8`, or `fsdp` without a number of ranks.

    Args:
        value: text that was given.

    Raises:
        ValueError: there is no such kind of parallelism, or its number of ranks is wrong.
    """
    form = str(value).strip()
    if ":" in form:
        Parallel.parse(_with_commas(form))
    elif unknown := [kind for kind in _kinds(form) if kind not in _KINDS]:
        raise ValueError(
            f"{unknown[0]!r} is not one of {', '.join(_KINDS)}, nor a kind with ranks, as in fsdp:8"
        )
    return form


def parallels_of(forms: Iterable[str], num_ranks: int | None, num_nodes: int = 1) -> tuple[Parallel, ...]:
    """Parallelisms that several texts such as `fsdp:8` or `ddp` stand for, each once.

    A text of several kinds without degrees, such as `ddp+tp`, stands for every split of the ranks between
    them.

    Args:
        forms: the texts.
        num_ranks: number of ranks on all nodes together, from `--nproc`; None if it was not given.
        num_nodes: number of nodes that the ranks are spread over; `hsdp` has one replica a node.

    Raises:
        ValueError: a text lacks a number of ranks, has one other than `num_ranks`, or cannot have so many.
    """
    if num_ranks is not None and num_nodes > 1 and num_ranks % num_nodes == 0:
        forms = [f"{_HSDP}:{num_nodes}x{num_ranks // num_nodes}" if form == _HSDP else form for form in forms]
    return tuple(dict.fromkeys(parallel for form in forms for parallel in _parallels(form, num_ranks)))


def parallels_by_number(form: str, numbers: Iterable[int]) -> tuple[Parallel, ...]:
    """Parallelisms of one kind, one for each of several numbers of ranks; a single process for one rank.

    Args:
        form: kind of parallelism, such as `fsdp`.
        numbers: numbers of ranks.

    Raises:
        ValueError: `form` has a number of ranks itself, or the kind cannot have one of `numbers`.
    """
    if ":" in form:
        raise ValueError(
            f"{form} says how many GPUs, as --gpus does: give the kind alone, as in --parallel fsdp"
        )
    kind = parallel_form(form)
    return tuple(
        parallel
        for number in numbers
        for parallel in ((Parallel(),) if number == 1 else _parallels(kind, number))
    )


def _parallels(form: str, num_ranks: int | None) -> Iterator[Parallel]:
    """Yields the parallelisms that a form stands for: one with numbers, or all splits of the ranks."""
    if ":" in form:
        parallel = Parallel.parse(_with_commas(form))
        if num_ranks not in (None, parallel.num_ranks):
            raise ValueError(
                f"{form} is of {parallel.num_ranks} ranks, --nproc of {num_ranks}: leave out one of them"
            )
        yield parallel
        return
    if num_ranks is None:
        raise ValueError(f"{form} needs a number of ranks: write it as {form}:N, or give --nproc N")
    kinds = [own for kind in _kinds(form) for own in ((REPLICATE, FSDP) if kind == _HSDP else (kind,))]
    splits = list(_splits(num_ranks, len(kinds)))
    if not splits:
        raise ValueError(
            f"{form} cannot be of {num_ranks} ranks, no product of {len(kinds)} numbers from 2 on: leave it "
            "out, or give another number"
            if len(kinds) > 1
            else f"{form} of {num_ranks}: at least 2 ranks train together"
        )
    for degrees in splits:
        yield Parallel.of(zip(kinds, degrees, strict=True))


def _with_commas(form: str) -> str:
    return _BEFORE_A_KIND.sub(",", form)


def _kinds(form: str) -> list[str]:
    return [form] if form in _KINDS else form.split("+")


def _splits(number: int, num_factors: int) -> Iterator[tuple[int, ...]]:
    """Yields all ordered ways to write a number as a product of `num_factors` factors of at least 2.

    For 8 and two factors, they are (2, 4) and (4, 2).
    """
    if num_factors == 1:
        yield from [(number,)] if number > 1 else []
        return
    for factor in range(2, number // 2 + 1):
        if number % factor == 0:
            yield from ((factor, *others) for others in _splits(number // factor, num_factors - 1))
