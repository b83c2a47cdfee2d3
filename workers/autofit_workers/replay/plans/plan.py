"""Convolution plans of cuDNN, in the order in which PyTorch tries them.

PyTorch takes the first plan that can be built and whose workspace can be allocated, and keeps it
(`run_single_conv` of aten/src/ATen/native/cudnn/Conv_v8.cpp). A `PlanSource` provides the plans:
libcudnn itself, a table of its answers, or formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from autofit_workers.spec.work import Convolution


class Plan(NamedTuple):
    """One of the ways in which cuDNN can compute a convolution, with the workspace in bytes.

    A tuple, because a search makes hundreds of thousands: a frozen dataclass takes four times as long.

    Attributes:
        engine: cuDNN's number of the kernel family; negative if cuDNN was not queried.
        workspace_bytes: memory that the convolution takes besides its output while it runs.
        uses_tensor_cores: whether it runs on tensor cores; for fp32 this means TF32.
        is_deterministic: whether it gives the same bits on every run.
    """

    engine: int
    workspace_bytes: int
    uses_tensor_cores: bool = False
    is_deterministic: bool = True


class PlanSource(Protocol):
    """Interface of an object that gives cuDNN's plans for convolutions on one card.

    Libcudnn itself, shipped tables and formulas implement it.

    Attributes:
        name: text for reports that says where the plans come from.
        knows_the_order: whether the first plan is the one that PyTorch takes; if not, it may take any of
            them.
    """

    @property
    def name(self) -> str: ...

    @property
    def knows_the_order(self) -> bool: ...

    def plans(self, calls: Sequence[Convolution]) -> list[tuple[Plan, ...]]:
        """Plans of each convolution call, in the order in which PyTorch tries them; never empty."""
        ...


class PassedOn:
    """Base class of plan sources that get their plans from another source.

    Args:
        source: the plan source that is queried.
    """

    def __init__(self, source: PlanSource) -> None:
        self._source = source

    @property
    def name(self) -> str:
        """Name of the source that is queried, see `PlanSource`."""
        return self._source.name

    @property
    def knows_the_order(self) -> bool:
        """Whether PyTorch takes the first plan of the source that is queried, see `PlanSource`."""
        return self._source.knows_the_order
