"""What becomes of a trial on a node that runs short of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit.dispatch.ray import RayDispatcher
from autofit_workers.spec.protocol import Verdict
from tests.conformance.dispatcher import TrialFolder, marked_processes, survivors

pytestmark = pytest.mark.process


def test_a_trial_whose_worker_ray_killed_for_memory_is_lost_and_not_out_of_memory(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
):
    # To this cluster's memory monitor the machine is always too full.
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.0")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    trials = TrialFolder(tmp_path)
    with RayDispatcher() as dispatcher:
        outcome = dispatcher.submit(trials.spec("hangs", budget_bytes=2**31)).result(timeout=60)
        assert outcome.verdict is Verdict.LOST
        assert "ran short of memory" in outcome.error.message
    assert survivors(marked_processes(mark)) == []
