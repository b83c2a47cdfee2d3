"""Chooses the cheapest convolution algorithm for every layer such that a step fits its budget.

Only one convolution workspace is alive at a time. So the budget of a step gives each of its convolutions a
limit of its own: the budget less the bytes that are alive when it runs. The cheapest algorithm within each
layer's limit is then the cheapest plan. An integer program is only needed if each layer keeps a workspace of
its own (Oyama et al., 2018). Layers still depend on each other through the allocator, which keeps freed
memory: a plan is therefore replayed through it, and the limit is lowered until the reserved peak is within
the budget.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autofit.errors import StorageError, UsageError
from autofit.predict.convolutions.costs import FALLBACK_SLOWDOWN, ConvCosts
from autofit_workers.replay.curve.conditions import Level
from autofit_workers.replay.curve.mixed_convolutions import Candidate
from autofit_workers.replay.curve.step_on_card import StepOnCard
from autofit_workers.replay.spans import Workspace
from autofit_workers.spec.documents import parse_json, read_file
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.work import Convolution

PLAN_SCHEMA = "autofit.conv-plan/1"
_NUM_ATTEMPTS = 24  # halvings of the range in which the limit is searched


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChoice:
    """Algorithm that a convolution plan gives to a layer.

    Attributes:
        layer: the name of the module that calls the convolution.
        workspace_bytes: largest scratch memory that the layer takes in its forward and backward pass.
        cost: predicted time of the layer, as a share of the time of all convolutions.
    """

    layer: str
    algorithm: str
    workspace_bytes: int
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvPlan:
    """Choice of an algorithm for every convolution of a step (a convolution plan).

    Attributes:
        peak_reserved_bytes: reserved peak of the step with these algorithms: the likely one or the high end,
            by the risk that the user chose.
        relative_cost: predicted time of all convolutions, divided by that with the backend's own choice.
    """

    batch_size: int
    layers: tuple[LayerChoice, ...]
    peak_reserved_bytes: int
    relative_cost: float

    @property
    def assignment(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a layer's name and the name of its convolution algorithm."""
        return tuple((choice.layer, choice.algorithm) for choice in self.layers)

    def to_dict(self) -> dict[str, Any]:
        return {"schema": PLAN_SCHEMA, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a convolution plan from a file.

        Raises:
            StorageError: the file cannot be read.
            UsageError: the file holds no plan.
        """
        try:
            data = parse_json(read_file(path))
            return from_plain({PLAN_SCHEMA: cls}[data["schema"]], data)
        except OSError as error:
            raise StorageError(f"cannot read the plan {path}: {error.strerror}; check the path") from error
        except (ValueError, TypeError, LookupError) as error:
            raise UsageError(
                f"{path} is not a convolution plan: give a file that --conv-plan wrote"
            ) from error


@dataclass(frozen=True, slots=True)
class _Pick:
    """Algorithm that a layer may get, with its scratch memory and likely seconds."""

    algorithm: str
    sizes: Mapping[Convolution, int]
    cost: float
    plans: frozenset[Convolution]

    @property
    def workspace_bytes(self) -> int:
        return max(self.sizes.values())

    @property
    def plan_bytes(self) -> int:
        """Largest workspace in bytes of the calls for which cuDNN chooses the plan; 0 without such calls."""
        return max((self.sizes[call] for call in self.plans), default=0)


class ConvPlanner:
    """Chooses an algorithm for each convolution of a step so that it fits, at one batch size on a card.

    Args:
        on_card: traced step at the batch size on the card; the convolution algorithm that it was traced with
            does not matter.
        costs: predicts the times of convolutions on the card.
        level: whether uncertain sizes are taken at their likely value or high end.
        on_top: takes the bytes of the largest workspace among those that depend on cuDNN's choice, and
            returns the bytes to be added to the peak for it.
    """

    def __init__(
        self,
        on_card: StepOnCard,
        costs: ConvCosts,
        *,
        level: Level = Level.HIGH,
        on_top: Callable[[int], int] = lambda _workspace_bytes: 0,
    ) -> None:
        self._on_card = on_card
        self._costs = costs
        self._level = level
        self._on_top = on_top

    def within_budget(self, budget_bytes: int) -> ConvPlan | None:
        """Fastest choice of algorithms with which the step's reserved peak is within a budget; else None."""
        live = self._on_card.step.live_at_convolutions(self._level)

        def under(total_bytes: int) -> ConvPlan:
            return self.within(lambda call: total_bytes - live[call])

        best = under(budget_bytes)
        if best.peak_reserved_bytes <= budget_bytes:
            return best
        low, high = min(live.values(), default=0), budget_bytes
        best = under(low)
        if best.peak_reserved_bytes > budget_bytes:
            return None
        for _ in range(_NUM_ATTEMPTS):
            middle = (low + high) // 2
            plan = under(middle)
            if plan.peak_reserved_bytes <= budget_bytes:
                low, best = middle, min(plan, best, key=lambda each: each.relative_cost)
            else:
                high = middle
        return best

    def within(self, limit_of: Callable[[Convolution], int]) -> ConvPlan:
        """Fastest choice of algorithms in which no call's workspace exceeds the limit for that call.

        A layer for which every algorithm exceeds the limit gets the one with the smallest workspace.

        Args:
            limit_of: returns the limit for a call, in bytes.
        """
        modules = self._modules
        picked: dict[Convolution, _Pick] = {}
        default_cost = 0.0
        for layer, picks in self._picks.items():
            fitting = [p for p in picks if all(size <= limit_of(call) for call, size in p.sizes.items())]
            picked[layer] = (
                min(fitting, key=lambda pick: pick.cost)
                if fitting
                else min(picks, key=lambda pick: pick.workspace_bytes)
            )
            default_cost += picks[0].cost * len(modules[layer])
        total = sum(pick.cost * len(modules[layer]) for layer, pick in picked.items())
        sizes = {call: size for pick in picked.values() for call, size in pick.sizes.items()}
        return ConvPlan(
            batch_size=self._on_card.step.batch_size,
            layers=tuple(
                LayerChoice(
                    layer=module,
                    algorithm=picked[layer].algorithm,
                    workspace_bytes=picked[layer].workspace_bytes,
                    cost=picked[layer].cost / total,
                )
                for module, layer in _in_order(modules)
            ),
            peak_reserved_bytes=self._on_card.reserved_with(sizes, self._level)
            + self._on_top(max((pick.plan_bytes for pick in picked.values()), default=0)),
            relative_cost=total / default_cost,
        )

    @cached_property
    def _picks(self) -> dict[Convolution, list[_Pick]]:
        """Algorithms that each distinct convolution may get, the backend's own choice first."""
        options = self._on_card.convolution_options()
        return {
            layer: [pick for option in found for pick in self._picks_of(option)]
            for layer, found in options.items()
        }

    @cached_property
    def _modules(self) -> dict[Convolution, tuple[str, ...]]:
        """Paths of the modules that call each distinct convolution."""
        return self._on_card.step.convolution_modules()

    def _picks_of(self, option: Candidate) -> Iterator[_Pick]:
        """Yields an algorithm with its usual workspaces, then with the smallest ones, which take longer."""
        cost = sum(self._costs.seconds(call, option.algorithm) for call in option.spans)
        first = {call: getattr(span, f"{self._level}_bytes") for call, span in option.spans.items()}
        plans = frozenset(call for call, span in option.spans.items() if span.choices_bytes)
        yield _Pick(option.algorithm, first, cost, plans)
        smallest = {call: _smallest(span) for call, span in option.spans.items()}
        if smallest != first:
            yield _Pick(option.algorithm, smallest, cost * FALLBACK_SLOWDOWN, plans)


def _smallest(span: Workspace) -> int:
    return min((span.low_bytes, *span.choices_bytes))


def _in_order(modules: Mapping[Convolution, Sequence[str]]) -> list[tuple[str, Convolution]]:
    return [(module, layer) for layer, names in modules.items() for module in names]
