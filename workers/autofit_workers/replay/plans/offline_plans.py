"""Chooses the source of convolution plans where no libcudnn is installed."""

from __future__ import annotations

from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.replay.plans.miopen import MiopenPlans
from autofit_workers.replay.plans.plan import PlanSource
from autofit_workers.replay.plans.table_plans import TablePlans
from autofit_workers.spec.architecture import Architecture, Vendor


def offline_source(architecture: str, torch_version: str) -> PlanSource:
    """Returns the plan table of PyTorch's cuDNN, or formulas for a card older than every table.

    AMD's cards have no cuDNN; their source, `MiopenPlans`, knows no plans.
    """
    if Architecture.of(architecture).vendor is Vendor.AMD:
        return MiopenPlans()
    try:
        return TablePlans.for_torch(torch_version, architecture)
    except ValueError:
        return FormulaPlans(architecture)
