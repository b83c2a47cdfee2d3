"""Fixtures that the tests of predictions share."""

from __future__ import annotations

from typing import Any

import pytest

from autofit.predict.confidence import Residuals
from autofit.predict.predictor import Predictor
from autofit_workers.replay.plans.formula_plans import FormulaPlans


@pytest.fixture
def predictor(workload: Any, worker: Any, exact: Residuals) -> Predictor:
    return Predictor(workload, worker, residuals=exact, plans=FormulaPlans)
