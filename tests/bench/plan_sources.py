"""Who is asked what cuDNN does on the card of a row."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autofit.hardware.chips import device_properties
from autofit.hardware.gpus import find_gpu
from autofit_workers.replay.plans.cudnn_plans import CudnnPlans
from autofit_workers.replay.plans.grid_plans import GridPlans
from autofit_workers.replay.plans.plan import Plan, PlanSource
from autofit_workers.replay.plans.table_plans import TablePlans
from autofit_workers.spec.work import Convolution, ConvPass
from tests.bench.tables.rows import Row

FORMULAS, TABLE, CUDNN = "formulas", "table", "cudnn"
SOURCES = (TABLE, CUDNN, FORMULAS)
# From then on PyTorch's wheels bring a cuDNN that can be asked without a GPU, or nearly so.
_FIRST_RELEASE_ASKED = (2, 7)
_OLDEST, _CURRENT = (9, 8), (9, 20)


@dataclass(frozen=True)
class Without:
    """The plans of another source, for a cuDNN that needs nothing for some kinds of convolutions.

    Attributes:
        pointwise, grouped: whether it is 1×1 filters, and groups, that go without a workspace.
    """

    source: PlanSource
    pointwise: bool = False
    grouped: bool = False

    @property
    def name(self) -> str:
        kinds = [kind for kind, is_meant in (("1×1", self.pointwise), ("grouped", self.grouped)) if is_meant]
        return f"{self.source.name}, none for {' and '.join(kinds)}"

    @property
    def knows_the_order(self) -> bool:
        return self.source.knows_the_order

    def plans(self, calls: Sequence[Convolution]) -> list[tuple[Plan, ...]]:
        """See `PlanSource`."""
        return [
            (Plan(-1, 0), *plans) if self._is_meant(call) else plans
            for call, plans in zip(calls, self.source.plans(calls), strict=True)
        ]

    def _is_meant(self, call: Convolution) -> bool:
        is_pointwise = math.prod(call.weight_shape[2:]) == 1
        return (self.pointwise and is_pointwise) or (self.grouped and call.groups > 1)


@dataclass(frozen=True)
class WithWeightGradients:
    """The plans of a source, and of another one for the gradients of weights."""

    source: PlanSource
    weights: PlanSource

    @property
    def name(self) -> str:
        return f"{self.source.name}, for weights {self.weights.name}"

    @property
    def knows_the_order(self) -> bool:
        return self.source.knows_the_order and self.weights.knows_the_order

    def plans(self, calls: Sequence[Convolution]) -> list[tuple[Plan, ...]]:
        """See `PlanSource`."""
        answers = zip(calls, self.source.plans(calls), self.weights.plans(calls), strict=True)
        return [others if call.conv_pass is ConvPass.WGRAD else plans for call, plans, others in answers]


def default_source() -> str:
    """The table, which every checkout has and which answers the same everywhere."""
    return TABLE


def sources_of(row: Row, source: str, cache: Path) -> tuple[PlanSource, ...]:
    """The sources of plans for a row; none for formulas, which the curve knows."""
    if source == FORMULAS:
        return ()
    release = row.torch_release and tuple(map(int, row.torch_release.split(".")))
    is_asked = bool(release) and release >= _FIRST_RELEASE_ASKED
    if source == CUDNN:
        current = _cudnn(row.gpu, cache)
        return (current,) if is_asked else copying_or_not(current)
    return (TablePlans(row.architecture),) if is_asked else older_cudnn(row.architecture)


def copying_or_not(current: PlanSource) -> tuple[PlanSource, ...]:
    """What a cuDNN may do that is too old to be asked, such as the 9.1 of PyTorch 2.4 to 2.6, by a newer one.

    Real runs with it lie between those in which 1×1 and grouped convolutions copy their feature maps, as
    newer versions plan, and those in which they do without.
    """
    return current, Without(current, pointwise=True), Without(current, pointwise=True, grouped=True)


@functools.cache
def older_cudnn(architecture: str) -> tuple[PlanSource, ...]:
    """The same by the table, once more with the plans of 9.8 for gradients of weights.

    Of these plans the older version's are nearer to real runs on some tables and the newer one's on others,
    so both are replayed: chosen on the three tables of real peaks, all families together.
    """
    current = TablePlans(architecture, _CURRENT)
    older = WithWeightGradients(current, TablePlans(architecture, _OLDEST))
    return *copying_or_not(current), *copying_or_not(older)


@functools.cache
def _cudnn(gpu: str, cache: Path) -> PlanSource:
    """One for every card, because it holds what it was answered."""
    return GridPlans(CudnnPlans(device_properties(find_gpu(gpu)), cache_folder=cache / "plans"))
