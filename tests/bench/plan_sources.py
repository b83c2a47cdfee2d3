"""Who is asked what cuDNN does on the card of a row."""

from __future__ import annotations

import functools
from pathlib import Path

from autofit.chips import device_properties
from autofit.gpus import find_gpu
from tests.bench.tables.rows import Row
from workers.predict.cudnn_plans import CudnnPlans
from workers.predict.plans import PlanSource

FORMULAS, CUDNN = "formulas", "cudnn"
SOURCES = (CUDNN, FORMULAS)


def default_source() -> str:
    """cuDNN itself where it is installed."""
    return CUDNN if CudnnPlans.is_available() else FORMULAS


def sources_of(row: Row, source: str, cache: Path) -> tuple[PlanSource, ...]:
    """The sources of plans for a row; none for formulas, which the curve knows."""
    return (_cudnn(row.gpu, cache),) if source == CUDNN else ()


@functools.cache
def _cudnn(gpu: str, cache: Path) -> CudnnPlans:
    """One for every card, because it holds what it was answered."""
    return CudnnPlans(device_properties(find_gpu(gpu)), cache_folder=cache / "plans")
