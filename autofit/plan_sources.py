"""Who knows what cuDNN does on a card: libcudnn where it is installed, else a table, else formulas.

The libcudnn of the environment is asked, and not another, because it is the one that PyTorch would
run with; a CPU build of PyTorch brings none.
"""

from __future__ import annotations

import functools
import logging
from contextlib import suppress

from autofit import paths
from autofit.chips import properties_for
from autofit.errors import StorageError, UnknownGpuError
from workers.predict.cudnn import CudnnError
from workers.predict.cudnn_plans import CudnnPlans, start_server
from workers.predict.formula_plans import FormulaPlans
from workers.predict.plans import PlanSource

_log = logging.getLogger(__name__)


@functools.cache
def plan_source(architecture: str) -> PlanSource:
    """The best source of plans there is for a card of an architecture.

    cuDNN's plans were seen to depend on the architecture alone: neither on the number of
    multiprocessors, nor on clocks, caches or memory.
    """
    if CudnnPlans.is_available():
        try:
            source = CudnnPlans(properties_for(architecture), cache_folder=paths.cache_dir() / "plans")
            source.plans([])  # whether it can be asked at all
        except (CudnnError, UnknownGpuError, StorageError) as error:
            _log.warning("convolution workspaces are not planned by libcudnn: %s", error)
        else:
            return source
    return FormulaPlans(architecture)


def prepare() -> None:
    """Starts the process of libcudnn, where there is one, and returns at once, to hide its start-up."""
    if CudnnPlans.is_available():
        with suppress(CudnnError):  # `plan_source` says it
            start_server()
