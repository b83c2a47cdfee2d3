"""Fixtures of the conformance tests, beside the dispatcher that each module brings."""

from __future__ import annotations

import pytest

from autofit.dispatch.base import Dispatcher
from autofit_workers.spec.protocol import TrialOutcome
from autofit_workers.spec.setup import Parallel, Setup
from tests.conformance.dispatcher import TrialFolder


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> TrialFolder:
    return TrialFolder(tmp_path_factory.mktemp("trials"))


@pytest.fixture(scope="module")
def outcomes(dispatcher: Dispatcher, trials: TrialFolder) -> dict[str, TrialOutcome]:
    """Outcomes of a trial for each verdict, all dispatched at once."""
    specs = {
        "hangs": trials.spec("hangs", deadline_seconds=6.0),
        "fits": trials.spec("fits"),
        "runs_out_of_memory": trials.spec("runs_out_of_memory", budget_bytes=2**31),
        "is_killed": trials.spec("is_killed"),
        "is_mistaken": trials.spec("is_mistaken"),
        "two ranks": trials.spec("fits", setup=Setup(parallel=Parallel.parse("ddp:2"))),
    }
    futures = {name: dispatcher.submit(spec) for name, spec in specs.items()}
    return {name: future.result() for name, future in futures.items()}
