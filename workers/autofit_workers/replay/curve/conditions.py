"""Conditions of a replay besides the batch size, and the workspaces of calls under these conditions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from autofit_workers.spec.pythons import StrEnum
from autofit_workers.spec.trace import Scratch
from autofit_workers.spec.work import Convolution

MIXED = mixed.ALGORITHM.name

# Memory whose bytes are computed when a trace is replayed: a convolution's workspace, an operator's scratch
# memory with the name of its correction, or an estimate that the trace holds as a range.
Call = Convolution | tuple[str, Scratch] | Workspace


class Level(StrEnum):
    """Level of a predicted peak: low, likely, high or worst; how cautious the assumptions behind it are.

    Two things are not known for certain: how much workspace cuDNN takes for each convolution, and how far the
    device lags behind the host, which delays the reuse of memory between streams. The likely level takes the
    most probable of both, low and high the ends of what is expected. `WORST` takes for each convolution the
    largest workspace of all of cuDNN's plans, even of those that PyTorch would not choose.
    """

    LOW = "low"
    LIKELY = "likely"
    HIGH = "high"
    WORST = "worst"

    @property
    def up_to(self) -> tuple[Level, ...]:
        """Levels over which the peak at this level is the largest: itself and all lower ones; `LIKELY` alone.

        A peak is taken over several levels because a larger workspace can also lower the peak: it leaves a
        segment behind that later requests reuse.
        """
        if self is Level.LIKELY:
            return (self,)
        order = (Level.LOW, Level.LIKELY, Level.HIGH, Level.WORST)
        return tuple(reversed(order[: order.index(self) + 1]))

    @property
    def clock(self) -> EventClock:
        """Assumption on when CUDA events complete: immediately; at high and worst level once waited for."""
        return lags if self in (Level.HIGH, Level.WORST) else keeps_up

    def settles(self, runs: Iterable[bool]) -> bool:
        """Whether a batch size counts as running at this level, from its results with several plan sources.

        At the low level one source with which it runs is enough, at the likely level half of them; at the
        high and worst levels it has to run with all.

        Args:
            runs: for each source of cuDNN's convolution plans, whether the batch size runs with its plans.
        """
        if self is Level.LIKELY:
            by_source = list(runs)
            return 2 * sum(by_source) >= len(by_source)
        return any(runs) if self is Level.LOW else all(runs)


class Elsewhere(Protocol):
    """Interface of an object that knows workspaces on cards other than the likely one.

    It serves predictions for one of several possible cards; `curve.other_cards` implements it.

    Attributes:
        name: text for reports that says where the convolution plans of these cards come from.
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
        """Workspaces of calls on the likely card, with low and high ends that cover the other cards too.

        Args:
            calls: calls with workspace or scratch memory.
            found: workspace of each call on the likely card.
            conditions: conditions on the likely card; on the other cards only the card differs.
            torch_release: major and minor version of the PyTorch that made the trace.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions of a replay other than the batch size: card, plans, algorithm, allocator settings.

    A plan is one of the ways in which cuDNN can compute a convolution, each with a workspace of its own.

    Attributes:
        conv_algo: name of the convolution algorithm (`autofit_workers.spec.conv_algorithms`): either switches
            of cuDNN, such as `cudnn` or `cudnn-benchmark`, or a rewrite of convolutions into other operators.
        architecture: architecture of the card, such as `sm_80`.
        plans: sources of cuDNN's plans on the card. There are several if the cuDNN that will run cannot be
            queried: the likely peak is then the lower median of the peaks with each source, and the low and
            high peaks span all of them. If empty, formulas for the architecture are used.
        elsewhere: if the card that will run is not known, the other cards that the low and high peaks have
            to cover; the likely peak is that of `architecture` alone. None if the card is known.
        allow_tf32: whether fp32 convolutions may use tensor cores, PyTorch's default.
        settings: settings of PyTorch's caching allocator.
        corrections: kinds of scratch memory to count, by their names in
            `autofit_workers.replay.curve.corrections`; allocations of all other kinds take no memory.
        torch_release: major and minor version of the PyTorch that runs; None for that of the trace.
        multiprocessors: number of the card's multiprocessors; None if only its architecture is known.
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
        """Switches by which cuDNN or MIOpen chooses plans; the default ones if `conv_algo` is a rewrite."""
        return conv.policy_of(conv.find(self.conv_algo), GPU_KIND)

    @property
    def workspace_source(self) -> str:
        """Description, for reports, of where convolution workspaces are taken from, such as `cuDNN 9.20`."""
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
        """Sources of convolution plans; the step is replayed with each. Formulas if `plans` is empty."""
        if not self.policy.enabled:
            return (FormulaPlans(self.architecture),)  # not queried for any call
        return self.plans or (FormulaPlans(self.architecture),)


def demands(
    calls: Sequence[Call], conditions: Conditions, source: PlanSource, torch_release: tuple[int, int]
) -> tuple[Workspace, ...]:
    """Workspace or scratch memory of each call under `conditions`, in the order of `calls`.

    Args:
        calls: convolutions, scratch memory of operators, and estimates of a library's memory.
        conditions: card, algorithm and more.
        source: source of cuDNN's convolution plans, queried once for all convolutions.
        torch_release: major and minor version of the PyTorch that made the trace.
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
    """Bytes that a rewrite itself takes for a call, and the call that it leaves to cuDNN or MIOpen.

    A call that the rewrite does not change is left as it is, at 0 bytes. The second value is None if the
    rewrite leaves nothing.
    """
    if not isinstance(call, Convolution) or rewrite.leaves(call) is not None:
        return 0, call
    return rewrite.own_bytes(call), rewrite.handed_on(call)


def leaves_some_to_backend(calls: Iterable[Convolution], conv_algo: str) -> bool:
    """Whether cuDNN or MIOpen computes at least a part of any of the convolutions under `conv_algo`."""
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
    """Workspace or scratch memory of each call on the card of `conditions`, with plans of one source."""
    card = Architecture.of(conditions.architecture)
    platform = Platform(card, conditions.torch_release or torch_release, conditions.multiprocessors)
    policy, libraries = conditions.policy, libraries_of(card)
    # cuDNN has no transposed convolutions: PyTorch asks it for the gradient of a plain one.
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
