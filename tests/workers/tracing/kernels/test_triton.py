"""Kernels of Triton do nothing, and what Python makes for them is what a card would hold."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autofit_workers.spec.protocol import Probe, TrialSpec, WorkloadRef
from autofit_workers.spec.trace import Trace
from autofit_workers.tracing.kernels.stand_ins import selective_scan
from autofit_workers.trials.run import run

FILE = Path(__file__).parent / "triton_workloads.py"
NUM_FEATURES = 16
ROWS_BYTES = 4 * NUM_FEATURES * 4  # a batch of four
FLUSHED_BYTES = 256 * 1024**2


def traced(attribute: str) -> Trace:
    reference = WorkloadRef(kind="file", target=f"{FILE}:{attribute}")
    found = run(TrialSpec(workload=reference, batch_size=4, probe=Probe.PREDICT))
    assert found.trace_json is not None, found.error
    return Trace.from_json(found.trace_json)


def test_what_python_makes_for_a_kernel_is_followed_without_registration() -> None:
    trace = traced("plain")
    empties = [a.num_bytes for a in trace.allocations if a.operator == "aten.empty_like"]
    assert empties == [ROWS_BYTES] * 6  # in each of three steps the output, and the gradient
    (note,) = trace.notes
    assert note.startswith("kernels of Triton (_double) do nothing here")


def test_a_buffer_of_a_row_for_each_multiprocessor_is_that_of_the_card() -> None:
    partial = 108 * NUM_FEATURES * 4
    assert [a.num_bytes for a in traced("plain").allocations].count(partial) == 3


def test_the_first_call_of_a_kernel_that_is_tuned_empties_the_cache_and_later_ones_do_not() -> None:
    trace = traced("tuned")
    flushed = [i for i, a in enumerate(trace.allocations) if a.num_bytes == FLUSHED_BYTES]
    assert len(flushed) == 4  # one for each of its settings
    assert all(~index in trace.events for index in flushed)
    second = next(mark.position for mark in trace.marks if mark.name == "step 2 input")
    assert all(trace.events.index(index) < second for index in flushed)


def test_each_prediction_of_a_process_tunes_anew() -> None:
    first, second = traced("tuned"), traced("tuned")
    assert len(first.allocations) == len(second.allocations)


def test_what_an_operator_of_triton_makes_on_its_way_is_seen() -> None:
    made = [a.operator for a in traced("operator").allocations]
    assert made.count("aten.clone") == 3
    assert traced("operator").notes[0].startswith("kernels of Triton")


def test_an_operator_of_python_that_launches_kernels_is_followed_by_its_own_function() -> None:
    """Its function for shapes would tell neither the kernel nor the buffer with which it is tuned."""
    trace = traced("experts")
    assert [a.operator for a in trace.allocations].count("aten.zeros_like") == 3
    assert [a.num_bytes for a in trace.allocations].count(FLUSHED_BYTES) == 4
    assert trace.notes[0].startswith("kernels of Triton (_double)")
    assert not any("moe_mm" in note for note in trace.notes)


def test_a_number_that_a_kernel_writes_is_made_up_where_the_host_reads_it() -> None:
    assert traced("read").allocations


def test_a_loss_that_makes_its_gradient_in_forward_and_compares_in_backward_is_followed() -> None:
    trace = traced("fused_loss")
    assert [mark.name for mark in trace.marks][-1] == "step 3 optimizer"


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed")
def test_pytorch_still_knows_that_triton_is_not_installed() -> None:
    assert traced("asking").allocations


def test_the_compiled_module_of_mamba_makes_what_its_source_does() -> None:
    u = torch.empty(2, 8, 4097, dtype=torch.bfloat16, device="meta")
    a = torch.empty(8, 16, device="meta")
    b = torch.empty(2, 1, 16, 4097, dtype=torch.bfloat16, device="meta")
    output, states, gated = selective_scan.fwd(u, u, a, b, b, None, u, None, True)
    assert (output.shape, gated.shape, states.shape) == (u.shape, u.shape, (2, 8, 3, 32))
    assert states.dtype == torch.float32
    *gradients, dz = selective_scan.bwd(
        u, u, a, b, b, None, u, None, output, states, output, None, True, False
    )
    assert [each if each is None else each.dtype for each in (*gradients, dz)] == [
        *(torch.bfloat16,) * 2,
        torch.float32,
        *(torch.bfloat16,) * 2,
        None,
        None,
        torch.bfloat16,
    ]


_COMPILER = """
import sys
from autofit_workers.tracing.kernels import triton as kernels
kernels.install()
import triton
import triton.language

import torch._inductor.runtime.triton_compat as compiler
from torch.utils._triton import has_triton_package

assert not compiler.HAS_TRITON and not has_triton_package()
assert sys.modules["triton"] is triton and sys.modules["triton.language"] is triton.language
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="the compiler takes what is there")
def test_the_compiler_imports_and_finds_no_triton_where_one_is_stood_in_for() -> None:
    done = subprocess.run([sys.executable, "-c", _COMPILER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
