"""Convolution plans interpolated between the batch sizes at which another source was queried.

A workspace consists of copies of feature maps, so it grows linearly with the batch as long as cuDNN
keeps to the same kernels. A search over batch sizes then queries a few sizes, and also those between
two of them where the kernels change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from autofit_workers.replay.plans.plan import PassedOn, Plan, PlanSource
from autofit_workers.replay.plans.workspace import samples_at_once
from autofit_workers.spec.work import Convolution

_Found = TypeVar("_Found")


class GridPlans(PassedOn):
    """Source of plans that queries another source at a few batch sizes only, and interpolates between them.

    The sizes are 1, 2, 3, 4, 6, 8, 12, … samples. A `PlanSource`.

    Args:
        source: the source that is queried.
    """

    def __init__(self, source: PlanSource) -> None:
        super().__init__(source)
        self._layers: dict[tuple[object, ...], _Layer] = {}

    def plans(self, calls: Sequence[Convolution]) -> list[tuple[Plan, ...]]:
        """Plans of each call, interpolated where the first plans at both neighbouring sizes use one kernel.

        All other calls are queried at their own batch size.
        """
        layers = []
        for call in calls:
            key = layer(call)
            known = self._layers.get(key)
            if known is None:
                known = self._layers[key] = _Layer(samples_at_once(call))
            layers.append(known)
        asked = [(known, call, call.input_shape[0]) for known, call in zip(layers, calls, strict=True)]
        new = [each for each in asked if each[2] not in each[0].plans]
        ends = ((known.plans, call, end) for known, call, size in new for end in known.ends(size))
        look_up(ends, self._source.plans)
        own = ((known.plans, call, size) for known, call, size in new if not known.interpolates(size))
        look_up(own, self._source.plans)
        return [known.plans[size] for known, _, size in asked]


def look_up(
    wanted: Iterable[tuple[dict[int, _Found], Convolution, int]],
    ask: Callable[[list[Convolution]], Iterable[_Found]],
) -> None:
    """Asks for convolutions at batch sizes that are not known yet, all at the same time and each once.

    Args:
        wanted: what is known of a convolution's layer by batch size, to which the answer is added; the
            convolution, at any batch size; and the batch size that is asked for.
        ask: returns an answer for each convolution.
    """
    missing = [each for each in wanted if each[2] not in each[0]]
    if not missing:
        return
    # Several convolutions may be of one layer.
    distinct = {(id(known), size): call.of_samples(size) for known, call, size in missing}
    found = dict(zip(distinct, ask(list(distinct.values())), strict=True))
    for known, _, size in missing:
        known[size] = found[id(known), size]


class _Layer:
    """Plans of one convolution at the batch sizes that were asked for or interpolated.

    Args:
        most_samples: number of samples that cuDNN runs in one piece.

    Attributes:
        plans: the plans, by batch size.
    """

    def __init__(self, most_samples: int) -> None:
        self._most_samples = most_samples
        self._lines: dict[tuple[int, int], tuple[_Line, ...] | None] = {}
        self.plans: dict[int, tuple[Plan, ...]] = {}

    def ends(self, num_samples: int) -> tuple[int, int]:
        """Lower and upper batch size next to a call's own at which its plans are queried.

        The upper one is at most the number of samples that cuDNN runs in one piece. Both are the call's own
        size if that is in the grid, or if cuDNN runs no more samples in one piece.
        """
        low, high = neighbours(num_samples)
        high = min(high, self._most_samples)
        return (num_samples, num_samples) if high <= num_samples else (low, high)

    def interpolates(self, num_samples: int) -> bool:
        """Adds the plans at a batch size if they follow from those at the sizes next to it, `ends`.

        Returns:
            Whether they do; not if the first plans of the two sizes use different kernels.
        """
        low, high = self.ends(num_samples)
        if low == high:
            return True
        if (low, high) not in self._lines:
            self._lines[low, high] = _lines(low, high, self.plans[low], self.plans[high])
        lines = self._lines[low, high]
        if lines is None:
            return False
        gone, width = num_samples - low, high - low
        self.plans[num_samples] = tuple(
            [
                Plan(at_low.engine, at_low.workspace_bytes + -(-rise * gone // width), *at_low[2:])
                for at_low, rise in lines
            ]
        )
        return True


def layer(call: Convolution) -> tuple[object, ...]:
    """Key of a convolution call, equal for all numbers of samples.

    A tuple rather than a dataclass, because one is made for each call at every batch size.
    """
    return (
        call.conv_pass,
        call.input_shape[1:],
        call.weight_shape,
        call.output_shape[1:],
        call.stride,
        call.padding,
        call.dilation,
        call.groups,
        call.dtype,
        call.channels_last,
    )


def neighbours(num_samples: int) -> tuple[int, int]:
    """Nearest numbers below and above `num_samples` in the grid 1, 2, 3, 4, 6, 8, 12, … of batch sizes.

    A number that is in the grid is returned twice.
    """
    power = 1 << (num_samples.bit_length() - 1)
    middle = power + power // 2
    if num_samples in (power, middle):
        return num_samples, num_samples
    return (power, middle) if num_samples < middle else (middle, 2 * power)


class _Line(NamedTuple):
    """Plan whose workspace is a line between two batch sizes.

    Attributes:
        at_low: the plan at the smaller size.
        rise_bytes: bytes by which its workspace is larger at the larger size.
    """

    at_low: Plan
    rise_bytes: int


def _lines(
    low: int, high: int, at_low: tuple[Plan, ...], at_high: tuple[Plan, ...]
) -> tuple[_Line, ...] | None:
    """Plans between two batch sizes; None if the first plans of the two sizes use different kernels.

    Args:
        low, high: the two batch sizes.
        at_low, at_high: the plans at these sizes.
    """
    if at_low[0].engine != at_high[0].engine:
        return None
    by_engine: dict[int, list[int]] = {}
    for plan in at_high:
        by_engine.setdefault(plan.engine, []).append(plan.workspace_bytes)
    lines = []
    for plan in at_low:
        there = by_engine.get(plan.engine)
        # The workspace of a kernel that has no plan at the larger size is assumed to grow with the samples.
        end = there.pop(0) if there else plan.workspace_bytes * high // low
        lines.append(_Line(plan, end - plan.workspace_bytes))
    return tuple(lines)
