from __future__ import annotations

import dataclasses

import pytest
import torch

from workers.knobs.optimizer import TORCH_OPTIMIZERS
from workers.workload.optimizers import each_of, make_optimizer, make_optimizers
from workers.workload.workload import Workload, WorkloadError

# What each keeps per parameter: this is what memory depends on.
STATE_TENSORS = {
    "sgd": set(),
    "sgd-momentum": {"momentum_buffer"},
    "adam": {"exp_avg", "exp_avg_sq"},
    "adamw": {"exp_avg", "exp_avg_sq"},
    "rmsprop": {"square_avg"},
    "adagrad": {"sum"},
}


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_every_name_makes_an_optimizer_with_its_state(name: str) -> None:
    parameter = torch.nn.Parameter(torch.ones(5))
    optimizer = make_optimizer(name, [parameter])
    parameter.sum().backward()
    optimizer.step()
    state = optimizer.state[parameter]
    sized_like_it = {
        key for key, value in state.items() if torch.is_tensor(value) and value.shape == parameter.shape
    }
    assert sized_like_it == STATE_TENSORS[name]
    assert (parameter < 1).all()


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_the_implementation_is_pytorchs_default(name: str) -> None:
    defaults = make_optimizer(name, [torch.nn.Parameter(torch.ones(1))]).defaults
    assert defaults["foreach"] is None
    assert not defaults.get("fused")


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_every_implementation_updates_alike(name: str) -> None:
    implementations = ["default", "foreach", "loop", *(["fused"] if "adam" in name or "sgd" in name else [])]
    updated = []
    for implementation in implementations:
        parameter = torch.nn.Parameter(torch.ones(5))
        optimizer = make_optimizer(name, [parameter], implementation)
        parameter.square().sum().backward()
        optimizer.step()
        updated.append(parameter.detach())
    for other in updated[1:]:
        torch.testing.assert_close(other, updated[0])


@pytest.mark.parametrize(
    ("implementation", "foreach", "fused"),
    [("foreach", True, None), ("fused", None, True), ("loop", False, None)],
)
def test_the_implementation_asked_for_is_the_one_that_runs(implementation, foreach, fused) -> None:
    made = make_optimizer("adam", [torch.nn.Parameter(torch.ones(1))], implementation)
    assert (made.defaults["foreach"], made.defaults["fused"]) == (foreach, fused)


@pytest.mark.parametrize("name", ["rmsprop", "adagrad"])
def test_what_has_no_fused_kernel_on_a_gpu_is_refused_with_what_has(name: str) -> None:
    with pytest.raises(
        WorkloadError, match=f"no fused CUDA kernel for {name}.*sgd, sgd-momentum, adam, adamw"
    ):
        make_optimizer(name, [torch.nn.Parameter(torch.ones(1))], "fused")


def test_a_function_decides_its_implementation_itself() -> None:
    with pytest.raises(WorkloadError, match="set foreach= or fused= in its function"):
        make_optimizer(torch.optim.Adam, [torch.nn.Parameter(torch.ones(1))], "fused")


def test_momentum_and_weight_decay_are_what_the_names_say() -> None:
    parameters = [torch.nn.Parameter(torch.ones(1))]
    assert make_optimizer("sgd", parameters).defaults["momentum"] == 0
    assert make_optimizer("sgd-momentum", parameters).defaults["momentum"] == 0.9
    assert make_optimizer("adam", parameters).defaults["weight_decay"] == 0
    assert make_optimizer("adamw", parameters).defaults["weight_decay"] > 0


def test_function_of_the_parameters_makes_its_own() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = make_optimizer(lambda params: torch.optim.SGD(params, lr=0.25), iter([parameter]))
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert optimizer.param_groups[0]["params"] == [parameter]


def test_function_that_returns_something_else_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"returned list; return a torch\.optim\.Optimizer"):
        make_optimizer(list, [torch.nn.Parameter(torch.ones(1))])


def _one_for_each(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model.children()]


def test_a_workload_with_a_step_of_its_own_may_have_several_optimizers_made_of_its_model() -> None:
    workload = Workload(
        build_model=torch.nn.Identity,
        make_batch=torch.zeros,
        loss=torch.sum,
        optimizer=_one_for_each,
        step=lambda *_: None,
    )
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    made = make_optimizers(workload, model)
    assert [list(each.param_groups[0]["params"]) for each in each_of(made)] == [
        list(layer.parameters()) for layer in model
    ]
    with pytest.raises(WorkloadError, match=r"returned 2 optimizers: give the workload a step\(model, opt"):
        make_optimizers(dataclasses.replace(workload, step=None), model)
    one = make_optimizers(dataclasses.replace(workload, step=None, optimizer="adam"), model)
    assert isinstance(one, torch.optim.Adam)
    assert each_of(one) == (one,)


@pytest.mark.parametrize("made", [(), (1, 2)])
def test_a_tuple_of_anything_else_is_refused(made: tuple[int, ...]) -> None:
    with pytest.raises(WorkloadError, match="returned tuple; return a torch"):
        make_optimizer(lambda params: made, [])  # type: ignore[arg-type, return-value]
