"""Memory of each vendor's libraries: scratch memory of operators, and plans of convolutions."""

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
    """Functions that compute the memory of a vendor's libraries.

    Attributes:
        scratch: returns the range of bytes of a scratch allocation, from the name of its kind, the
            allocation, and the card.
        runs: returns whether cuDNN or MIOpen, if enabled, runs a convolution; else PyTorch's kernels do.
        offline_plans: returns a source of convolution plans that works without cuDNN or MIOpen, for an
            architecture and a version of PyTorch.
    """

    scratch: Callable[[str, Scratch, Platform], Workspace]
    runs: Callable[[Convolution, Platform], bool]
    offline_plans: Callable[[str, str], PlanSource]


def libraries_of(card: Architecture) -> Libraries:
    """Functions for the libraries of a card's vendor, from the card's architecture."""
    return _LIBRARIES[card.vendor]


def offline_source(architecture: str, torch_version: str) -> PlanSource:
    """Source of convolution plans that needs no cuDNN or MIOpen installed: a table, or formulas.

    Args:
        architecture: name of the card's architecture, such as `sm_80`.
        torch_version: version of PyTorch, which decides the version of cuDNN.
    """
    return libraries_of(Architecture.of(architecture)).offline_plans(architecture, torch_version)


def _scratch_of_cuda(_correction: str, scratch: Scratch, platform: Platform) -> Workspace:
    return certain(scratch_bytes(scratch, platform))


def _cudnn_runs(call: Convolution, platform: Platform) -> bool:
    return goes_to_cudnn(call, platform.capability, platform.torch_release)


def _miopen_runs(_call: Convolution, _platform: Platform) -> bool:
    """Returns True, as MIOpen runs every convolution; `MiopenPlans` then raises for it."""
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
