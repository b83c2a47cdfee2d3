"""Optuna's own conformance suite for samplers: on spaces that are not ours, a sampler as any other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from optuna.samplers import BaseSampler, TPESampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)

from autofit.search.sampler import BoundarySampler
from autofit.search.space import SearchSpace


class TestBoundarySampler(BasicSamplerTestCase, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase):
    @pytest.fixture
    def sampler(self, space: SearchSpace) -> Callable[[], BaseSampler]:
        """Without start-up trials, as Optuna tests TPE itself: during them TPE samples nothing relative."""
        return lambda: BoundarySampler(space, budget_bytes=1, inner=TPESampler(n_startup_trials=0, seed=0))
