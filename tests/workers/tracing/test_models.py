"""Models are built for real, at no cost of memory, and moved as `model.to("cuda")` moves them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import pytest

PERCEPTRON_BYTES = 4 * (16 * 48 + 48 + 48 * 2 + 2)


def parameters(steps) -> list[tuple[int, ...]]:
    return [a.shape for a in steps.live() if a.category == "parameter"]


def peak_resident_bytes(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def test_a_model_of_billions_of_parameters_costs_no_memory(steps_of):
    steps = steps_of("giant")
    assert steps.live_bytes("parameter") == 15 * 16384**2 * 4  # 4 billion parameters, 16 GB
    assert steps.live_bytes("gradient") == steps.live_bytes("parameter")
    predictors = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # another test's, which has ended
            if "faulthandler" in child.cmdline():
                predictors.append(child)
    assert predictors
    assert max(map(peak_resident_bytes, predictors)) < 2 * 1024**3


def test_a_parameter_passes_for_one_of_the_class_that_its_library_made_it_of(steps_of):
    steps = steps_of("of_library")
    assert parameters(steps) == [(48, 16)]
    assert steps.live_bytes("gradient") == 48 * 16 * 4


def test_tied_parameters_stay_one_allocation(steps_of):
    steps = steps_of("language")
    assert parameters(steps).count((100, 16)) == 1
    assert steps.live_bytes("gradient") == 100 * 16 * 4


def test_buffers_move_along_whether_checkpoints_keep_them_or_not(steps_of):
    steps = steps_of("language")
    assert [shape for shape in parameters(steps) if shape != (100, 16)] == [(5, 16), (70,)]
    assert {a.operator for a in steps.live() if a.shape in ((5, 16), (70,))} == {"aten._to_copy"}


@pytest.mark.parametrize("attribute", ["perceptron", "loaded", "on_meta", "on_cuda"])
def test_however_a_model_is_built_it_is_on_the_gpu_once(attribute, steps_of):
    steps = steps_of(attribute)
    assert sorted(parameters(steps)) == [(2,), (2, 48), (48,), (48, 16)]
    (start,) = (m.position for m in steps.trace.marks if m.name == "step 1 input")
    moved = [steps.trace.allocations[event].num_bytes for event in steps.trace.events[:start] if event >= 0]
    assert sum(moved) == PERCEPTRON_BYTES


def test_constructors_may_compute_with_tensors(steps_of):
    assert parameters(steps_of("computing")) == [(24, 16), (24,), (32, 24), (32,)]


def test_initializers_may_draw_until_values_are_in_bounds(steps_of):
    assert parameters(steps_of("truncated_normal")) == parameters(steps_of("perceptron"))


def test_constructors_may_ask_the_compiler_what_it_would_do(steps_of):
    assert parameters(steps_of("asking_the_compiler")) == parameters(steps_of("perceptron"))


def test_constructors_may_run_the_model(steps_of):
    assert parameters(steps_of("lazy")) == [(3, 16), (3,)]


def test_models_may_be_converted_while_they_are_built(steps_of):
    steps = steps_of("half")
    assert {a.dtype for a in steps.live()} == {"bfloat16"}
    assert steps.live_bytes("parameter") == PERCEPTRON_BYTES // 2


def test_reparametrized_weights_are_computed_in_every_step(steps_of):
    steps = steps_of("weight_norm")
    assert sorted(parameters(steps)) == [(48,), (48, 1), (48, 16)]
    assert ("_weight_norm_interface", 48 * 16 * 4) in steps.outputs("forward")


def test_a_model_that_its_workload_compiles_is_predicted_as_compiled(steps_of):
    compiled = steps_of("compiled")
    assert any(call.work.operator.startswith("inductor.") for call in compiled.trace.work)
    assert compiled.live_bytes("parameter") == PERCEPTRON_BYTES
