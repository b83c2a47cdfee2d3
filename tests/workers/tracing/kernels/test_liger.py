"""Every operator of Liger is followed by what its Python makes, where Liger is installed; it is not in CI.

What follows them is tested without it in `test_triton.py`: Liger's operators are functions that allocate,
launch kernels of Triton, and allocate again.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from autofit_workers.spec.protocol import Probe, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.trace import Trace
from autofit_workers.trials.run import run
from tests.workers.tracing.kernels.liger_workloads import STEPS, attribute

if importlib.util.find_spec("liger_kernel") is None:
    pytest.skip("liger_kernel is not installed", allow_module_level=True)
FILE = Path(__file__).parent / "liger_workloads.py"
BATCH_SIZE = 4
# Of other hardware or of whole models; and what files of operators share.
NOT_OPERATORS = {"__init__", "_nvidia_shared", "backends", "configure", "cute", "cutedsl", "cutile"}
SHARED = {"fused_moe_kernels", "utils"}
# `torch.compile` makes the kernels of the first. The second has kernels of CuTe, for other cards, so
# that it goes on with PyTorch here.
WITHOUT_KERNELS = ("chunked:", "fused_linear_scaled_cross_entropy")


@pytest.mark.parametrize("name", STEPS)
def test_an_operator_is_followed_forward_and_backward(name: str) -> None:
    reference = WorkloadRef(kind="file", target=f"{FILE}:{attribute(name)}")
    found = run(TrialSpec(workload=reference, batch_size=BATCH_SIZE, probe=Probe.PREDICT))
    assert found.verdict is Verdict.TRACED, found.error
    assert found.trace_json is not None
    trace = Trace.from_json(found.trace_json)
    launches = any(note.startswith("kernels of Triton") for note in trace.notes)
    assert launches or name.startswith(WITHOUT_KERNELS)
    assert not any("is not one of PyTorch's" in note for note in trace.notes)


def test_no_file_of_operators_is_left_out() -> None:
    spec = importlib.util.find_spec("liger_kernel.ops")
    assert spec is not None
    assert spec.origin is not None
    there = {path.stem for path in Path(spec.origin).parent.iterdir() if not path.name.startswith("__")}
    assert there - NOT_OPERATORS - SHARED <= {name.partition(":")[0] for name in STEPS}
