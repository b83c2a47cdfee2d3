from __future__ import annotations

import dataclasses

import pytest
import torch

from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.optimizer import NAMED
from autofit_workers.spec.workloads.references import WorkloadError
from autofit_workers.workload.hidden_weights import hidden_weights
from autofit_workers.workload.optimizers import each_of, make_named, make_optimizer, make_optimizers
from autofit_workers.workload.overrides import with_overrides
from autofit_workers.workload.step import train_step
from autofit_workers.workload.workload import Workload

# What each keeps per parameter: this is what memory depends on.
STATE_TENSORS = {
    "sgd": set(),
    "sgd-momentum": {"momentum_buffer"},
    "adam": {"exp_avg", "exp_avg_sq"},
    "adamw": {"exp_avg", "exp_avg_sq"},
    "rmsprop": {"square_avg"},
    "adagrad": {"sum"},
    "adafactor": {"variance"},  # of a vector; a matrix has one for its rows and one for its columns
}


class OneParameter(torch.nn.Module):
    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))


@pytest.mark.parametrize("name", STATE_TENSORS)
def test_every_name_makes_an_optimizer_with_its_state(name: str) -> None:
    model = OneParameter(5)
    parameter, optimizer = model.weight, make_named(name, model)
    parameter.sum().backward()
    optimizer.step()
    state = optimizer.state[parameter]
    sized_like_it = {
        key for key, value in state.items() if torch.is_tensor(value) and value.shape == parameter.shape
    }
    assert sized_like_it == STATE_TENSORS[name]
    assert (parameter < 1).all()


@pytest.mark.parametrize("name", STATE_TENSORS)
def test_the_implementation_is_pytorchs_default(name: str) -> None:
    defaults = make_named(name, OneParameter()).defaults
    assert defaults["foreach"] is None
    assert not defaults.get("fused")


@pytest.mark.parametrize("name", STATE_TENSORS)
def test_every_implementation_updates_alike(name: str) -> None:
    updated = []
    for implementation in NAMED[name].implementations:
        model = OneParameter(5)
        parameter, optimizer = model.weight, make_named(name, model, implementation)
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
    made = make_named("adam", OneParameter(), implementation)
    assert (made.defaults["foreach"], made.defaults["fused"]) == (foreach, fused)


@pytest.mark.parametrize("name", ["rmsprop", "adagrad", "adafactor"])
def test_what_has_no_fused_kernel_on_a_gpu_is_refused_with_what_has(name: str) -> None:
    with pytest.raises(
        WorkloadError, match=f"no fused CUDA kernel for {name}.*sgd, sgd-momentum, adam, adamw"
    ):
        make_named(name, OneParameter(), "fused")


def test_a_function_decides_its_implementation_itself() -> None:
    with pytest.raises(WorkloadError, match="set foreach= or fused= in its function"):
        make_optimizer(torch.optim.Adam, [torch.nn.Parameter(torch.ones(1))], "fused")


def test_momentum_and_weight_decay_are_what_the_names_say() -> None:
    assert make_named("sgd", OneParameter()).defaults["momentum"] == 0
    assert make_named("sgd-momentum", OneParameter()).defaults["momentum"] == 0.9
    assert make_named("adam", OneParameter()).defaults["weight_decay"] == 0
    assert make_named("adamw", OneParameter()).defaults["weight_decay"] > 0


class TiedLanguageModel(torch.nn.Module):
    """As transformers' models: the output layer has a name, and the embedding's weight."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 4)
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 4))
        if tied:
            self.head.weight = self.embedding.weight

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head


@pytest.mark.parametrize("tied", [True, False])
def test_hidden_weights_are_matrices_of_neither_embedding_nor_output_layer(tied: bool) -> None:
    model = TiedLanguageModel(tied=tied)
    found = hidden_weights(model)
    assert [id(each) for each in found] == [id(model.layers[0].weight), id(model.layers[2].weight)]
    plain = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    assert [id(each) for each in hidden_weights(plain)] == [id(plain[1].weight)]


def test_the_last_of_repeated_blocks_makes_no_output() -> None:
    blocks = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 3)) for _ in "ab")
    )
    assert len(hidden_weights(torch.nn.Sequential(torch.nn.Embedding(2, 3), blocks))) == 4


def test_muon_has_the_hidden_weights_and_adamw_all_others() -> None:
    model = TiedLanguageModel(tied=True)
    muon, adamw = each_of(make_named("muon", model))
    assert isinstance(muon, torch.optim.Muon)
    assert isinstance(adamw, torch.optim.AdamW)
    of_muon, of_adamw = ({id(p) for p in each.param_groups[0]["params"]} for each in (muon, adamw))
    assert of_muon == {id(each) for each in hidden_weights(model)}
    assert of_muon | of_adamw == set(map(id, model.parameters()))
    assert not of_muon & of_adamw


def test_what_is_for_hidden_weights_is_refused_where_there_are_none() -> None:
    with pytest.raises(
        WorkloadError, match="muon is for the matrices of hidden layers, and the model has none"
    ):
        make_named("muon", torch.nn.Linear(2, 2))


def test_both_of_two_optimizers_step() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    workload = Workload(
        build_model=lambda: model,
        make_batch=lambda batch_size, device: torch.ones(batch_size, 2, device=device),
        loss=lambda model, batch: model(batch).square().sum(),
    )
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizers = make_named("muon", model)
    train_step(workload, model, optimizers, torch.ones(1, 2))
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_a_step_of_the_workload_s_own_is_not_given_two_optimizers_by_a_name() -> None:
    workload = Workload(build_model=torch.nn.Identity, make_batch=torch.zeros, loss=torch.sum, step=max)
    with pytest.raises(InapplicableError, match="muon is two optimizers, and the workload's own step"):
        with_overrides(workload, Knobs(optimizer="muon"))


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
