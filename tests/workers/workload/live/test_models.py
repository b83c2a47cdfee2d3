"""A live model that is built anew without its values, and models that cannot be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.workload.live.models import EmptyModel
from autofit_workers.workload.live.steps import LikeOptimizer


class Owner:
    """What a model may refer to and does not own."""

    def __reduce__(self):
        raise TypeError("not to be pickled")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 256)
        self.head = nn.Linear(256, 1000, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("places", torch.arange(8))
        self.frozen = nn.Parameter(torch.ones(3, dtype=torch.bfloat16), requires_grad=False)
        self.owner = Owner()


def test_what_is_built_has_shapes_types_and_ties_of_the_live_model_and_no_values():
    model = Tied()
    build = EmptyModel(model, left_out=(Owner,))
    assert len(build._pickled) < 10_000
    made = build()
    assert made.head.weight is made.embedding.weight
    assert made.owner is None
    assert (made.frozen.dtype, made.frozen.requires_grad) == (torch.bfloat16, False)
    assert {name: tensor.shape for name, tensor in made.state_dict().items()} == {
        name: tensor.shape for name, tensor in model.state_dict().items()
    }
    assert isinstance(model.owner, Owner)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Tied(), "Tied cannot be sent to another process .TypeError: not to be pickled"),
        (nn.DataParallel(nn.Linear(2, 2)), "spread over ranks already"),
        (nn.Sequential(torch.compile(nn.Linear(2, 2))), "compiled already"),
    ],
)
def test_a_model_that_cannot_be_built_elsewhere_is_refused(model, says):
    with pytest.raises(UnsupportedError, match=says):
        EmptyModel(model)


def test_an_optimizer_like_another_has_its_groups_and_none_of_its_states():
    model = nn.Linear(3, 2)
    own = [{"params": [model.weight], "weight_decay": 0.3}, {"params": [model.bias]}]
    optimizer = torch.optim.AdamW(own, lr=0.02, foreach=False)
    made = LikeOptimizer.alike(optimizer, model)(EmptyModel(model)())
    assert type(made) is torch.optim.AdamW
    assert [(group["weight_decay"], group["lr"], group["foreach"]) for group in made.param_groups] == [
        (0.3, 0.02, False),
        (0.01, 0.02, False),
    ]
    assert [tuple(group["params"][0].shape) for group in made.param_groups] == [(2, 3), (2,)]
    assert not made.state


def test_an_optimizer_of_replaced_parameters_trains_all_of_the_model():
    model = nn.Linear(3, 2)
    flat = torch.optim.SGD([nn.Parameter(torch.zeros(8))], lr=0.1, momentum=0.9)
    made = LikeOptimizer.alike(flat, model)(model)
    assert [len(group["params"]) for group in made.param_groups] == [2]
    assert made.defaults["momentum"] == 0.9
