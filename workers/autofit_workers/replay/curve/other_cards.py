"""Workspaces of calls on an unknown card: the smallest and the largest over several architectures.

Replaying a step for every architecture would cost as many replays. Instead the low level gives each call its
smallest workspace on any of the cards, and the high level its largest: one replay for each level, whatever
the number of cards. The likely level has the workspaces of one card.

Plans are queried at the batch sizes of `autofit_workers.replay.plans.grid_plans`. A workspace consists of
copies of feature maps, so between two of these sizes it is taken as proportional to the samples that cuDNN
runs in one piece: at the high level with the larger workspace per sample of the two sizes, at the low level
with the smaller one. That covers the kernels of both sizes, wherever between them cuDNN changes kernels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from autofit_workers.replay.curve.conditions import Call, Conditions, demands
from autofit_workers.replay.plans.grid_plans import layer, look_up, neighbours
from autofit_workers.replay.plans.plan import PlanSource
from autofit_workers.replay.plans.workspace import samples_at_once
from autofit_workers.replay.spans import Workspace
from autofit_workers.spec.work import Convolution

_Key = tuple[object, ...]


class _Ends(NamedTuple):
    """Smallest and largest workspace in bytes of a call over several cards.

    Attributes:
        low_bytes: the smallest at the low level.
        high_bytes, worst_bytes: the largest at the high and at the worst level.
    """

    low_bytes: int
    high_bytes: int
    worst_bytes: int

    @classmethod
    def of(cls, workspaces: Iterable[Workspace]) -> _Ends:
        low, high, worst = zip(*((w.low_bytes, w.high_bytes, w.worst_bytes) for w in workspaces), strict=True)
        return cls(min(low), max(high), max(worst))


class OtherCards:
    """Workspaces on all cards that a step may run on, if it is not known on which.

    It widens the workspaces of the likely card; an object of this class is given as `Conditions.elsewhere`.

    Args:
        sources: the source of cuDNN's plans for each possible architecture, by its name; at least one.
    """

    def __init__(self, sources: Mapping[str, PlanSource]) -> None:
        assert sources
        self._sources = dict(sources)
        # By policy and layer, the ends by batch size.
        self._layers: dict[_Key, dict[_Key, dict[int, _Ends]]] = {}

    @property
    def name(self) -> str:
        """Names of the plan sources, each once, joined by commas."""
        return ", ".join(dict.fromkeys(source.name for source in self._sources.values()))

    def widened(
        self,
        calls: Sequence[Call],
        found: Sequence[Workspace],
        conditions: Conditions,
        torch_release: tuple[int, int],
    ) -> tuple[Workspace, ...]:
        """Workspaces `found` for the likely card, with low and high ends that cover all cards.

        Args:
            calls: calls with workspace or scratch memory.
            found: workspace of each call on the likely card.
            conditions: conditions on the likely card; on the other cards only the card differs.
            torch_release: major and minor version of the PyTorch that made the trace.
        """
        ask = self._asking(conditions, torch_release)
        scratch = [call for call in calls if not isinstance(call, Workspace | Convolution)]
        of_scratch = iter(ask(scratch))
        # PyTorch's own kernels are the same on every card.
        chosen = [call for call in calls if isinstance(call, Convolution) and conditions.policy.enabled]
        of_layers = self._layers.setdefault(_policy(conditions), {})
        known = [of_layers.setdefault(layer(call), {}) for call in chosen]
        # The two sizes among 1, 2, 3, 4, 6, 8, 12, … next to each convolution's batch size.
        look_up(
            (
                (of_layer, call, size)
                for of_layer, call in zip(known, chosen, strict=True)
                for size in neighbours(call.input_shape[0])
            ),
            ask,
        )
        of_chosen = map(_between, chosen, known)

        def ends(call: Call, likely: Workspace) -> _Ends:
            if isinstance(call, Workspace):
                return _Ends.of([likely])
            if not isinstance(call, Convolution):
                return next(of_scratch)
            return next(of_chosen) if conditions.policy.enabled else _Ends.of([likely])

        return tuple(_spread(each, ends(call, each)) for call, each in zip(calls, found, strict=True))

    def _asking(
        self, conditions: Conditions, torch_release: tuple[int, int]
    ) -> Callable[[Sequence[Call]], list[_Ends]]:
        """Returns a function that computes the smallest and largest workspace of calls over all cards.

        Args:
            conditions: conditions on the likely card; on the other cards only the card differs.
            torch_release: major and minor version of the PyTorch that made the trace.
        """
        others = [
            (
                dataclasses.replace(
                    conditions, architecture=each, plans=(source,), elsewhere=None, multiprocessors=None
                ),
                source,
            )
            for each, source in self._sources.items()
        ]

        def ask(calls: Sequence[Call]) -> list[_Ends]:
            if not calls:
                return []
            by_card = (demands(calls, other, source, torch_release) for other, source in others)
            return [_Ends.of(column) for column in zip(*by_card, strict=True)]

        return ask


def _between(call: Convolution, known: Mapping[int, _Ends]) -> _Ends:
    """Smallest and largest workspace of a convolution, interpolated between sizes of the grid.

    Args:
        known: ends of the convolution's layer by batch size.
    """
    num_samples = call.input_shape[0]
    at_ends = neighbours(num_samples)
    below, above = (known[size] for size in at_ends)
    if at_ends[0] == at_ends[1]:
        return below
    most_samples = samples_at_once(call)
    num_samples, low, high = (min(size, most_samples) for size in (num_samples, *at_ends))
    return _Ends(
        min(below.low_bytes * num_samples // low, above.low_bytes * num_samples // high),
        max(-(-below.high_bytes * num_samples // low), -(-above.high_bytes * num_samples // high)),
        max(-(-below.worst_bytes * num_samples // low), -(-above.worst_bytes * num_samples // high)),
    )


def _policy(conditions: Conditions) -> _Key:
    """Key of the conditions on which the choice among a convolution's plans depends: algorithm and TF32."""
    return conditions.conv_algo, conditions.allow_tf32


def _spread(likely: Workspace, ends: _Ends) -> Workspace:
    """Returns the workspace `likely` with low, high and worst bytes widened to `ends`.

    The smaller sizes that are tried when memory is short stay those of the likely card.

    Args:
        likely: workspace of a call on the likely card.
        ends: smallest and largest workspace of the call on all cards.
    """
    return Workspace(
        low_bytes=min(likely.low_bytes, ends.low_bytes),
        likely_bytes=likely.likely_bytes,
        high_bytes=max(likely.high_bytes, ends.high_bytes),
        worst_bytes=max(likely.worst_bytes, ends.worst_bytes),
        choices_bytes=likely.choices_bytes,
        repeated_bytes=likely.repeated_bytes,
    )
