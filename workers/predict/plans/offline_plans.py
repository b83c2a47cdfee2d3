"""Plans where there is no libcudnn to ask."""

from __future__ import annotations

from workers.predict.plans.formula_plans import FormulaPlans
from workers.predict.plans.plan import PlanSource
from workers.predict.plans.table_plans import TablePlans


def offline_source(architecture: str, torch_version: str) -> PlanSource:
    """The table of the plans of PyTorch's cuDNN, or formulas for a card that is older than all of it."""
    try:
        return TablePlans.for_torch(torch_version, architecture)
    except ValueError:
        return FormulaPlans(architecture)
