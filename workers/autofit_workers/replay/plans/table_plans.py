"""Convolution plans from the shipped tables, where no libcudnn is installed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from autofit_workers.replay.plans.plan import Plan
from autofit_workers.replay.plans.plan_table import PlanTable, held_tables, load_table
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.versions import CUDNN_OF_WHEELS, release_of
from autofit_workers.spec.work import Convolution

_MEMOIZED_CALLS = 100_000


@dataclass(frozen=True)
class TablePlans:
    """Source of convolution plans that looks up the most similar convolution in a shipped table.

    It is a `PlanSource`. cuDNN's plans depend on the architecture only, not on the card. The table is that
    of the newest architecture that is not newer than the card's, and of the nearest version of cuDNN; `name`
    tells which they are. Versions differ: of 9,159 contiguous convolutions in float32, the first plan's
    workspace was the same with 9.20 and 9.27 for 56 % (sm_89) to 78 % (sm_90).

    A data type that the table lacks gets the plans of another: float64 those of float32 without tensor
    cores, the smallest first.

    Attributes:
        architecture: `sm_XY` of the card.
        cudnn: major and minor version of the cuDNN that will run; None for that of the wheel of
            PyTorch 2.13.

    Raises:
        ValueError: the architecture is older than those of all tables.
    """

    architecture: str
    cudnn: tuple[int, int] | None = None
    knows_the_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _held(self.architecture, self._wanted)

    @classmethod
    def for_torch(cls, version: str, architecture: str) -> TablePlans:
        """Returns the plan table of the cuDNN that comes with a PyTorch wheel.

        Args:
            version: version of PyTorch. A release older than those of `autofit_workers.spec.versions` has an
                older cuDNN than all of them, a newer release is taken to have the newest.
            architecture: `sm_XY` of the card.

        Raises:
            ValueError: `version` is no version, or the architecture is older than those of all tables.
        """
        release = release_of(version)
        if (cudnn := CUDNN_OF_WHEELS.get(release)) is not None:
            return cls(architecture, _numbers(cudnn))
        oldest = min(CUDNN_OF_WHEELS, key=_numbers)
        if _numbers(release) < _numbers(oldest):
            return cls(architecture, min(version for _, version in held_tables()))
        return cls(architecture, max(map(_numbers, CUDNN_OF_WHEELS.values())))

    @property
    def name(self) -> str:
        capability, version = _held(self.architecture, self._wanted)
        name = f"table of cuDNN {_dotted(version)}"
        if version != self._wanted:
            name += f", nearest to {_dotted(self._wanted)}"
        if f"sm_{capability}" != self.architecture:
            name += f", for sm_{capability}"
        return name

    def plans(self, calls: Sequence[Convolution]) -> list[tuple[Plan, ...]]:
        """Plans of each convolution, from the most similar one in the shipped table."""
        held = _held(self.architecture, self._wanted)
        return [_plans(*held, call) for call in calls]

    @property
    def _wanted(self) -> tuple[int, int]:
        return self.cudnn or _numbers(CUDNN_OF_WHEELS["2.13"])


@functools.cache
def _held(name: str, version: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """Chooses the shipped table for an architecture and a version of cuDNN.

    Args:
        name: architecture, `sm_XY`.
        version: major and minor version of cuDNN.

    Returns:
        Compute capability (10 × major + minor) and cuDNN version of the table.

    Raises:
        ValueError: the architecture is older than those of all tables.
    """
    wanted = Architecture.of(name).capability
    tables = held_tables()
    capability = max((known for known, _ in tables if known <= wanted), default=None)
    if capability is None:
        oldest = min(known for known, _ in tables)
        raise ValueError(f"the table of cuDNN's plans begins with sm_{oldest} and has nothing for {name}")
    versions = [known for has, known in tables if has == capability]
    # If two are equally near, the older one, which comes first.
    return capability, min(versions, key=lambda known: _distance(known, version))


@functools.lru_cache(maxsize=_MEMOIZED_CALLS)
def _plans(capability: int, version: tuple[int, int], call: Convolution) -> tuple[Plan, ...]:
    return plans_in(load_table(capability, version), call)


def plans_in(table: PlanTable, call: Convolution) -> tuple[Plan, ...]:
    """Convolution plans that a plan table has for a call.

    For float64 these are the plans of float32 without tensor cores, the smallest workspace first.
    """
    plans = table.plans(call)
    if call.dtype != "float64":
        return plans
    # The first plan of 240 convolutions in float64 took no workspace (cuDNN 9.20 for an A100).
    ieee = [plan for plan in plans if not plan.uses_tensor_cores] or plans
    return tuple(sorted(ieee, key=lambda plan: plan.workspace_bytes))


def _numbers(version: str) -> tuple[int, int]:
    major, minor, *_ = map(int, version.split("."))
    return major, minor


def _distance(version: tuple[int, int], other: tuple[int, int]) -> int:
    return abs(100 * (version[0] - other[0]) + version[1] - other[1])


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
