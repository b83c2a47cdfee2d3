"""Plans of cuDNN for a convolution, in the order in which PyTorch tries them.

PyTorch takes the first plan that can be built and whose workspace can be allocated, and keeps it
(`run_single_conv` of aten/src/ATen/native/cudnn/Conv_v8.cpp). Where plans come from is a
`PlanSource`: libcudnn itself, a table of its answers, or formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from autofit_workers.spec.work import Convolution


@dataclass(frozen=True, slots=True)
class Plan:
    """Way in which cuDNN can compute a convolution.

    Attributes:
        engine: cuDNN's number of the kernel family; negative where no cuDNN was asked.
        workspace_bytes: memory beside the output while it runs.
        uses_tensor_cores: for fp32 that is TF32.
        is_deterministic: gives the same bits on every run.
    """

    engine: int
    workspace_bytes: int
    uses_tensor_cores: bool = False
    is_deterministic: bool = True


class PlanSource(Protocol):
    """Interface for the plans of convolutions on one card.

    Attributes:
        name: where the plans come from, for reports.
        knows_the_order: whether the first plan is the one that PyTorch takes; else any of them may be.
    """

    @property
    def name(self) -> str: ...

    @property
    def knows_the_order(self) -> bool: ...

    def plans(self, calls: Sequence[Convolution]) -> list[tuple[Plan, ...]]:
        """Plans of each call, in PyTorch's order; never empty."""
        ...


class PassedOn:
    """Base of plan sources that answer by asking another source.

    Args:
        source: the source that is asked.
    """

    def __init__(self, source: PlanSource) -> None:
        self._source = source

    @property
    def name(self) -> str:
        """Name of the source that is asked, see `PlanSource`."""
        return self._source.name

    @property
    def knows_the_order(self) -> bool:
        """Whether PyTorch takes the asked source's first plan, see `PlanSource`."""
        return self._source.knows_the_order
