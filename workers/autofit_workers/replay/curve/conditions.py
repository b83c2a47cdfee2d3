"""Conditions of a replay besides the batch size, and the workspaces of calls under these conditions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from autofit_workers.replay.allocator import AllocatorSettings, EventClock, keeps_up, lags
from autofit_workers.replay.allocator.settings import DEFAULT_SETTINGS
from autofit_workers.replay.curve import mixed_convolutions
from autofit_workers.replay.curve.corrections import CORRECTION_NAMES
from autofit_workers.replay.curve.scratch.formulas import Platform
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.replay.plans.plan import PlanSource
from autofit_workers.replay.plans.workspace import at_once, native_workspace, workspace
from autofit_workers.replay.spans import NO_WORKSPACE, Workspace, certain
from autofit_workers.replay.vendors import libraries_of
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.conv_algorithms import ConvPolicy, Rewrite, mixed
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.trace import Scratch
from autofit_workers.spec.work import Convolution

MIXED = mixed.ALGORITHM.name

# Whatever a trace leaves to be sized when it is replayed.
Call = Convolution | tuple[str, Scratch] | Workspace


class Level(StrEnum):
    """Level of a predicted peak: the assumption about workspaces and the device's lag behind the host.

    `WORST` is the largest that any plan of a convolution wants, whatever plan the policy takes.
    """

    LOW = "low"
    LIKELY = "likely"
    HIGH = "high"
    WORST = "worst"

    @property
    def up_to(self) -> tuple[Level, ...]:
        """Levels from this one down, over which a peak is the largest; likely covers itself alone.

        A workspace can also lower the peak, by the segment it leaves behind, hence the smaller
        ones; the likely peak is one assumption alone.
        """
        if self is Level.LIKELY:
            return (self,)
        order = (Level.LOW, Level.LIKELY, Level.HIGH, Level.WORST)
        return tuple(reversed(order[: order.index(self) + 1]))

    @property
    def clock(self) -> EventClock:
        """Clock for events of other streams: `lags` at the high and worst levels, else `keeps_up`."""
        return lags if self in (Level.HIGH, Level.WORST) else keeps_up

    def settles(self, runs: Iterable[bool]) -> bool:
        """Whether a batch size runs at this level, given whether it runs with the plans of each source.

        At the low level one source is enough, at the likely level half of them, otherwise all must agree.
        """
        if self is Level.LIKELY:
            by_source = list(runs)
            return 2 * sum(by_source) >= len(by_source)
        return any(runs) if self is Level.LOW else all(runs)


class Elsewhere(Protocol):
    """Interface for workspaces on the other cards that may run a step; see `curve.other_cards`.

    Attributes:
        name: where the plans of these cards come from, for reports.
    """

    @property
    def name(self) -> str: ...

    def widened(
        self,
        calls: Sequence[Call],
        found: Sequence[Workspace],
        conditions: Conditions,
        torch_release: tuple[int, int],
    ) -> tuple[Workspace, ...]:
        """Workspaces of calls on the likely card, with low and high ends that cover the other cards too."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions of a replay beside the batch size: card, plans, algorithm, allocator settings.

    Attributes:
        conv_algo: the convolution algorithm, a backend's policy or a rewrite
            (`autofit_workers.spec.conv_algorithms`).
        architecture: of the card.
        plans: the sources of cuDNN's plans on the card. Several where the cuDNN that will run cannot
            be asked: the likely peak is then the lower median of their peaks, the ends span them.
            Without any, formulas for the architecture.
        elsewhere: where it is not known which card will run, the other cards that the ends span; the
            likely peak is by this architecture alone.
        allow_tf32: whether fp32 convolutions may use tensor cores, PyTorch's default.
        settings: of PyTorch's caching allocator.
        corrections: names of `autofit_workers.replay.curve.corrections` that are on; the allocations of the
            others take no memory.
        torch_release: major and minor version of the PyTorch that runs; None for that of the trace.
        multiprocessors: of the card; None where it is not known which of its architecture it is.
    """

    conv_algo: str = "cudnn"
    architecture: str = "sm_80"
    plans: tuple[PlanSource, ...] = ()
    elsewhere: Elsewhere | None = None
    allow_tf32: bool = True
    settings: AllocatorSettings = DEFAULT_SETTINGS
    corrections: frozenset[str] = CORRECTION_NAMES
    torch_release: tuple[int, int] | None = None
    multiprocessors: int | None = None

    @property
    def policy(self) -> ConvPolicy:
        """Convolution policy of the backend; its default for the calls that a rewrite leaves to it."""
        return conv.policy_of(conv.find(self.conv_algo), GPU_KIND)

    @property
    def workspace_source(self) -> str:
        """Description, for reports, of the source that convolution workspaces are taken from."""
        if not self.policy.enabled:
            return "PyTorch's own kernels"
        name = self.sources[0].name
        if self.elsewhere is not None and self.elsewhere.name != name:
            name = f"{name}; other architectures: {self.elsewhere.name}"
        if isinstance(conv.find(self.conv_algo), Rewrite):
            return f"{self.conv_algo} itself; for layers that it leaves to cuDNN: {name}"
        return name

    @property
    def sources(self) -> tuple[PlanSource, ...]:
        """Sources of convolution plans, each replayed in turn; formulas if none is given."""
        if not self.policy.enabled:
            return (FormulaPlans(self.architecture),)  # not asked
        return self.plans or (FormulaPlans(self.architecture),)


def demands(
    calls: Sequence[Call], conditions: Conditions, source: PlanSource, torch_release: tuple[int, int]
) -> tuple[Workspace, ...]:
    """Workspace of each call under `conditions`; the plans of all convolutions are queried at once.

    Args:
        source: of the plans on the conditions' own card.
        torch_release: of the trace.
    """
    rewrite = conv.find(conditions.conv_algo)
    if rewrite.name == MIXED:

        def under(conv_algo: str) -> tuple[Workspace, ...]:
            return demands(calls, dataclasses.replace(conditions, conv_algo=conv_algo), source, torch_release)

        return mixed_convolutions.least(calls, under, GPU_KIND)
    if not isinstance(rewrite, Rewrite):
        return _of_backend(calls, conditions, source, torch_release)
    parts = [_part(call, rewrite) for call in calls]
    asked = [call for _, call in parts if call is not None]
    backend = dataclasses.replace(conditions, conv_algo=conditions.policy.name)
    found = iter(_of_backend(asked, backend, source, torch_release))
    return tuple(
        certain(own_bytes) if call is None else next(found).plus(own_bytes) for own_bytes, call in parts
    )


def _part(call: Call, rewrite: Rewrite) -> tuple[int, Call | None]:
    """Workspace bytes of a rewrite itself for a call, and the call that it leaves to the backend, or None."""
    if not isinstance(call, Convolution) or rewrite.leaves(call) is not None:
        return 0, call
    return rewrite.own_bytes(call), rewrite.handed_on(call)


def leaves_some_to_backend(calls: Iterable[Convolution], conv_algo: str) -> bool:
    """Whether `conv_algo` leaves any of the calls to the backend's library, cuDNN or MIOpen."""
    algorithm = conv.find(conv_algo)
    if isinstance(algorithm, Rewrite):
        return any(_part(call, algorithm)[1] is not None for call in calls)
    chooses_it = not isinstance(algorithm, ConvPolicy) or algorithm.enabled
    return chooses_it and bool(list(calls))


def _of_backend(
    calls: Sequence[Call], conditions: Conditions, source: PlanSource, torch_release: tuple[int, int]
) -> tuple[Workspace, ...]:
    found = _on_its_card(calls, conditions, source, torch_release)
    if conditions.elsewhere is None:
        return found
    return conditions.elsewhere.widened(calls, found, conditions, torch_release)


def _on_its_card(
    calls: Sequence[Call], conditions: Conditions, source: PlanSource, torch_release: tuple[int, int]
) -> tuple[Workspace, ...]:
    card = Architecture.of(conditions.architecture)
    platform = Platform(card, conditions.torch_release or torch_release, conditions.multiprocessors)
    policy, libraries = conditions.policy, libraries_of(card)
    # cuDNN knows of no transposed convolutions: they are gradients of others.
    plain = [
        dataclasses.replace(call, transposed=False)
        if isinstance(call, Convolution) and call.transposed
        else call
        for call in calls
    ]
    asked = [
        call
        for call in plain
        if isinstance(call, Convolution) and policy.enabled and libraries.runs(call, platform)
    ]
    plans = dict(zip(asked, source.plans([at_once(call) for call in asked]), strict=True))

    def demand(call: Call) -> Workspace:
        if isinstance(call, Workspace):
            return call
        if not isinstance(call, Convolution):
            correction, scratch = call
            is_on = correction in conditions.corrections
            return libraries.scratch(correction, scratch, platform) if is_on else NO_WORKSPACE
        if call in plans:
            return workspace(
                call,
                plans[call],
                policy,
                allow_tf32=conditions.allow_tf32,
                knows_the_order=source.knows_the_order,
            )
        return native_workspace(call)

    return tuple(map(demand, plain))
