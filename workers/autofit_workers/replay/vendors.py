"""Libraries of each vendor as a replay asks for them: scratch memory, and convolutions with their plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from autofit_workers.replay.curve.scratch import amd
from autofit_workers.replay.curve.scratch.formulas import Platform, scratch_bytes
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.replay.plans.miopen import MiopenPlans
from autofit_workers.replay.plans.plan import PlanSource
from autofit_workers.replay.plans.table_plans import TablePlans
from autofit_workers.replay.plans.workspace import goes_to_cudnn
from autofit_workers.replay.spans import Workspace, certain
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.trace import Scratch
from autofit_workers.spec.vendors import Vendor
from autofit_workers.spec.work import Convolution


class Libraries(NamedTuple):
    """Functions that say what a vendor's libraries take.

    Attributes:
        scratch: range of bytes of one scratch allocation, by the name of the correction it belongs to.
        runs: whether the convolution library computes a convolution where it is on; else PyTorch's own
            kernels do.
        offline_plans: source of convolution plans where the library is not installed, by the architecture
            and the version of PyTorch.
    """

    scratch: Callable[[str, Scratch, Platform], Workspace]
    runs: Callable[[Convolution, Platform], bool]
    offline_plans: Callable[[str, str], PlanSource]


def libraries_of(card: Architecture) -> Libraries:
    """Libraries of the vendor of an architecture."""
    return _LIBRARIES[card.vendor]


def offline_source(architecture: str, torch_version: str) -> PlanSource:
    """Source of convolution plans where no library that chooses them is installed."""
    return libraries_of(Architecture.of(architecture)).offline_plans(architecture, torch_version)


def _scratch_of_cuda(_correction: str, scratch: Scratch, platform: Platform) -> Workspace:
    return certain(scratch_bytes(scratch, platform))


def _cudnn_runs(call: Convolution, platform: Platform) -> bool:
    return goes_to_cudnn(call, platform.capability, platform.torch_release)


def _miopen_runs(_call: Convolution, _platform: Platform) -> bool:
    """Returns True, as MIOpen has every convolution; its plan source refuses to guess."""
    return True


def _cudnn_plans(architecture: str, torch_version: str) -> PlanSource:
    """Plan table of PyTorch's cuDNN, or formulas for a card older than every table."""
    try:
        return TablePlans.for_torch(torch_version, architecture)
    except ValueError:
        return FormulaPlans(architecture)


def _miopen_plans(_architecture: str, _torch_version: str) -> PlanSource:
    return MiopenPlans()


_LIBRARIES = {
    Vendor.NVIDIA: Libraries(_scratch_of_cuda, _cudnn_runs, _cudnn_plans),
    Vendor.AMD: Libraries(amd.scratch_span, _miopen_runs, _miopen_plans),
}
