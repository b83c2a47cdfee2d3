"""Convolution plans interpolated between the batch sizes at which another source was queried.

A workspace consists of copies of feature maps, so it grows linearly with the batch as long as cuDNN
keeps to the same kernels. A search over batch sizes then queries a few sizes, and also those between
two of them where the kernels change.
"""

from __future__ import annotations

from collections.abc import Sequence

from autofit_workers.replay.plans.plan import PassedOn, Plan, PlanSource
from autofit_workers.replay.plans.workspace import samples_at_once
from autofit_workers.spec.work import Convolution


class GridPlans(PassedOn):
    """Source of plans that queries another source at a few batch sizes only, and interpolates between them.

    The sizes are 1, 2, 3, 4, 6, 8, 12, … samples. A `PlanSource`.

    Args:
        source: the source that is queried.
    """

    def __init__(self, source: PlanSource) -> None:
        super().__init__(source)
        self._known: dict[tuple[object, ...], tuple[Plan, ...]] = {}

    def plans(self, calls: Sequence[Convolution]) -> list[tuple[Plan, ...]]:
        """Plans of each call, interpolated where the first plans at both neighbouring sizes use one kernel.

        All other calls are queried at their own batch size.
        """
        keys = [(*layer(call), call.input_shape[0]) for call in calls]
        new = {key: call for key, call in zip(keys, calls, strict=True) if key not in self._known}
        ends = {key: _ends(call) for key, call in new.items()}
        self._ask({(*key[:-1], size): (call, size) for key, call in new.items() for size in ends[key]})
        for key, call in new.items():
            keys_of_ends = [(*key[:-1], size) for size in ends[key]]
            at_ends = (self._known[each] for each in keys_of_ends)
            between = _interpolated(call.input_shape[0], *ends[key], *at_ends)
            if between is not None:
                self._known[key] = between
        self._ask({key: (call, call.input_shape[0]) for key, call in new.items()})
        return [self._known[key] for key in keys]

    def _ask(self, wanted: dict[tuple[object, ...], tuple[Convolution, int]]) -> None:
        missing = {
            key: call.of_samples(size) for key, (call, size) in wanted.items() if key not in self._known
        }
        if missing:
            self._known |= zip(missing, self._source.plans(list(missing.values())), strict=True)


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


def _ends(call: Convolution) -> tuple[int, int]:
    """Lower and upper batch size next to a call's own at which its plans are queried.

    The upper one is at most the number of samples that cuDNN runs in one piece. Both are the call's own size
    if that is in the grid, or if cuDNN runs no more samples in one piece.
    """
    num_samples = call.input_shape[0]
    low, high = neighbours(num_samples)
    high = min(high, samples_at_once(call))
    return (num_samples, num_samples) if high <= num_samples else (low, high)


def _interpolated(
    num_samples: int, low: int, high: int, at_low: tuple[Plan, ...], at_high: tuple[Plan, ...]
) -> tuple[Plan, ...] | None:
    """Plans with workspaces interpolated linearly between those at two batch sizes.

    Args:
        num_samples: batch size that the plans are for.
        low, high: the two batch sizes.
        at_low, at_high: the plans at these sizes.

    Returns:
        The plans; None if the first plans of the two sizes use different kernels.
    """
    if low == high:
        return at_low
    if at_low[0].engine != at_high[0].engine:
        return None
    by_engine: dict[int, list[int]] = {}
    for plan in at_high:
        by_engine.setdefault(plan.engine, []).append(plan.workspace_bytes)
    plans = []
    for plan in at_low:
        there = by_engine.get(plan.engine)
        # The workspace of a kernel that has no plan at the larger size is assumed to grow with the samples.
        end = there.pop(0) if there else plan.workspace_bytes * high // low
        rise = (end - plan.workspace_bytes) * (num_samples - low)
        size = plan.workspace_bytes + -(-rise // (high - low))
        plans.append(Plan(plan.engine, size, plan.uses_tensor_cores, plan.is_deterministic))
    return tuple(plans)
