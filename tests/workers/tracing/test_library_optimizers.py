"""Optimizers of other libraries: their states are those of a real run; what may be elsewhere is a span."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from autofit_workers.spec.errors import MissingLibraryError
from autofit_workers.spec.knobs.optimizer import NAMED
from autofit_workers.spec.trace import COMPILED_STEP, MANAGED_MEMORY
from autofit_workers.spec.workloads.references import WorkloadError
from autofit_workers.workload.optimizers import each_of, make_named
from autofit_workers.workload.step import train_step
from autofit_workers.workload.workload import Workload, tensors_of

SMALL_WORKLOADS = Path(__file__).parent / "small_workloads.py"
OF_LIBRARIES = [name for name, named in NAMED.items() if named.distribution]
# Of a weight of 64 × 100 and a bias of 100. bitsandbytes keeps fewer than 4096 elements in 32 bits, else a
# scale for each 256 of them and a map of 256 numbers once; torchao a map for each state, of 16 for 4 bits.
SMALL = 4 * 100
STATE_BYTES = {
    "lion": 4 * 6400 + SMALL,
    "lion8bit": 6400 + 25 * 4 + 256 * 4 + SMALL,
    "adamw8bit": 2 * (6400 + 25 * 4 + 256 * 4 + SMALL),
    "paged-adamw8bit": 2 * (6400 + 25 * 4 + 256 * 4 + SMALL),
    "adamw8bit-torchao": 2 * (6400 + 25 * 4 + 256 * 4 + SMALL),
    "adamw4bit-torchao": 2 * (3200 + 50 * 4 + 16 * 4 + SMALL),
    "adamw-kahan": 2 * (4 * 6400 + SMALL),
}


def needs(name: str) -> None:
    pytest.importorskip(NAMED[name].library, reason=f"{NAMED[name].distribution} is not installed")


@pytest.mark.parametrize("name", STATE_BYTES)
def test_states_are_as_large_as_the_library_s_source_says(name, steps_of):
    needs(name)
    assert steps_of("wide", optimizer=name).live_bytes("optimizer_state") == STATE_BYTES[name]


@pytest.mark.parametrize("name", OF_LIBRARIES)
@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
def test_states_are_those_of_a_real_run(name, steps_of, monkeypatch):
    needs(name)
    monkeypatch.setattr(torch, "compile", lambda function, **_options: function)
    attribute = "embedding_and_layers" if NAMED[name].tells_hidden_weights else "wide"
    workload = Workload.load(f"{SMALL_WORKLOADS}:{attribute}")
    model = workload.build_model()
    real = make_named(name, model)
    train_step(workload, model, real, workload.make_batch(4, torch.device("cpu")))
    states = [state for each in each_of(real) for state in each.state.values()]
    held = [part for tensor in tensors_of(states) for part in (tensor, *vars(tensor).values())]
    tensors = [part for part in held if type(part) is torch.Tensor and part.dim() > 0]
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in tensors}
    found = steps_of(attribute, optimizer=name).live_bytes("optimizer_state")
    assert found == sum(storages.values())


def test_what_updates_of_half_precision_lose_is_a_third_state(steps_of):
    needs("adamw-kahan")
    steps = steps_of("wide", optimizer="adamw-kahan", precision="bf16")
    assert steps.live_bytes("optimizer_state") == 3 * 2 * 6500


def test_states_that_are_paged_are_a_span_from_nothing_to_all(steps_of):
    needs("paged-adamw8bit")
    steps = steps_of("paged", optimizer="paged-adamw8bit")
    pages = [each for each in steps.live("step 2 input") if each.operator == MANAGED_MEMORY]
    assert [(each.num_bytes, each.span_bytes, each.category) for each in pages] == [
        (0, (0, 400 * 300), "optimizer_state")
    ] * 2
    plain = steps_of("paged", optimizer="adamw8bit").live_bytes("optimizer_state")
    assert steps.live_bytes("optimizer_state") == plain - 2 * 400 * 300


@pytest.mark.parametrize(
    ("name", "span"), [("adamw8bit-torchao", (0, 0, 8)), ("adamw4bit-torchao", (9, 18, 26))]
)
def test_what_the_kernels_of_a_compiled_step_leave_each_other_is_a_span(name, span, steps_of):
    needs(name)
    steps = steps_of("wide", optimizer=name)
    low, likely, high = (size * 6400 for size in span)
    made = [(each.operator, each.num_bytes, each.span_bytes) for each in steps.allocations("optimizer")]
    assert made == [(COMPILED_STEP, likely, (low, high))]  # the bias, of 100 elements, has states of 32 bits
    assert [event >= 0 for event in steps.events("optimizer")][:2] == [True, False]


def test_a_gradient_is_decomposed_on_a_copy_and_what_cusolver_takes_is_said_to_be_left_out(steps_of):
    needs("galore-adamw")
    steps = steps_of("embedding_and_layers", optimizer="galore-adamw")
    copies = [each for each in steps.allocations("optimizer", step=1) if each.correction == "layout_copies"]
    assert [each.scratch.dimensions for each in copies] == [(96, 64)]
    assert not [each for each in steps.allocations("optimizer") if each.correction == "layout_copies"]
    assert any("cuSOLVER" in note for note in steps.trace.notes)


@pytest.mark.parametrize("name", ["adamw8bit", "galore-adamw", "muon"])
def test_it_has_an_implementation_of_its_own(name):
    with pytest.raises(WorkloadError, match="leave out optimizer_impl"):
        make_named(name, torch.nn.Linear(1, 1), "foreach")


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_where_its_library_is_not_installed_it_is_said_how_to_get_it(name, monkeypatch):
    for module in [each for each in sys.modules if each.partition(".")[0] == NAMED[name].library]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, NAMED[name].library, None)
    with pytest.raises(MissingLibraryError, match=f"pip install {NAMED[name].distribution}"):
        make_named(name, torch.nn.Linear(1, 1))


def test_where_the_library_has_no_such_optimizer_a_newer_one_is_asked_for(monkeypatch):
    monkeypatch.delattr(importlib.import_module("torch.optim"), "Muon")
    with pytest.raises(
        MissingLibraryError, match=r"muon is torch\.optim\.Muon, which torch .* does not have"
    ):
        make_named("muon", torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)))
