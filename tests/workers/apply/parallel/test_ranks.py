"""What ranks do not do together is refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autofit_workers.apply.parallel.ranks import Ranks
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.setup import Parallel, Setup
from autofit_workers.trials import door
from autofit_workers.workload.workload import resolve

FILE = Path(__file__).parents[2] / "tracing" / "sharded_workloads.py"


def test_quantized_weights_that_would_be_sharded_are_not_measured() -> None:
    knobs, ranks = Knobs(base="nf4", adapter="lora:r=4"), Ranks(Parallel.parse("fsdp1:2"))
    workload = resolve(WorkloadRef(kind="builtin", target="gpt2"))
    with pytest.raises(InapplicableError, match="fsdp1:2 with base nf4 is predicted and not measured"):
        ranks.placed(torch.nn.Linear(2, 2), knobs, torch.device("cpu"), workload)


@pytest.mark.process
@pytest.mark.parametrize(("name", "parallel"), [("gpt", "pp:2+gpipe+3"), ("mixtral", "ep:2")])
def test_ranks_with_parts_of_a_model_are_measured_together(name: str, parallel: str) -> None:
    outcome = door.run(
        TrialSpec(
            workload=WorkloadRef(kind="file", target=f"{FILE}:{name}"),
            batch_size=2,
            probe=Probe.CPU,
            setup=Setup(parallel=Parallel.parse(parallel)),
            budget_bytes=2 * 1024**3,
            is_own_budget=True,
            num_threads=1,
        )
    )
    assert outcome.verdict is Verdict.FITS, outcome.error
    assert [each.rank for each in outcome.ranks] == [0, 1]
    assert outcome.parallel == parallel
