"""Fixtures of small studies."""

from tests.autofit.small_studies import (
    budget_bytes,
    open_study,
    outcome_of,
    random_curve,
    run_study,
    space,
    storage,
    tabulated_curve,
)

__all__ = [
    "budget_bytes",
    "open_study",
    "outcome_of",
    "random_curve",
    "run_study",
    "space",
    "storage",
    "tabulated_curve",
]
