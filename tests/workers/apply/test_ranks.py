"""What ranks do not do together is refused in a sentence."""

from __future__ import annotations

import pytest
import torch

from workers.apply import ranks
from workers.errors import InapplicableError
from workers.knobs import Knobs
from workers.protocol import Probe, TrialSpec, WorkloadRef
from workers.setup import Parallel, Setup
from workers.workload.workload import resolve


def test_quantized_weights_that_would_be_sharded_are_not_measured() -> None:
    spec = TrialSpec(
        workload=WorkloadRef(kind="builtin", target="any"),
        batch_size=1,
        probe=Probe.CPU,
        knobs=Knobs(base="nf4", adapter="lora:r=4"),
        setup=Setup(parallel=Parallel.parse("fsdp1:2")),
    )
    workload = resolve(WorkloadRef(kind="builtin", target="gpt2"))
    with pytest.raises(InapplicableError, match="fsdp1:2 with base nf4 is predicted and not measured"):
        ranks.placed(torch.nn.Linear(2, 2), spec, torch.device("cpu"), workload)
