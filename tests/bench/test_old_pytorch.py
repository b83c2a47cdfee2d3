"""What PyTorch before 2.2 kept: means keep their inputs, until backward has run, and in backward again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.bench.language.old_pytorch import keep_inputs_of_means, kept_inputs_of_means


class Norm(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True))


def saved_by(step: nn.Module, values: Tensor) -> list[tuple[int, ...]]:
    saved: dict[int, tuple[int, ...]] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tuple(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = step(values)
    assert kept.shape == values.shape
    return sorted(saved.values())


def values() -> Tensor:
    return torch.ones(2, 3, requires_grad=True)


def test_a_norm_keeps_the_squares_of_its_input_beside_the_input():
    norm = Norm()
    assert saved_by(norm, values()) == [(2, 1), (2, 3)]
    keep_inputs_of_means(norm, of="Norm")
    assert saved_by(norm, values()) == [(2, 1), (2, 3), (2, 3)]


def test_a_mean_that_backward_does_not_reach_keeps_nothing():
    norm = Norm()
    keep_inputs_of_means(norm, of="Norm")
    assert saved_by(norm, torch.ones(2, 3)) == []


@pytest.mark.parametrize("checkpointed", [False, True])
def test_gradients_are_what_they_were(checkpointed: bool):
    expected, found = values(), values()
    norm, of_then = Norm(), Norm()
    keep_inputs_of_means(of_then, of="Norm")
    (norm(expected) * torch.arange(3)).sum().backward()
    output = checkpoint(of_then, found, use_reentrant=False) if checkpointed else of_then(found)
    (output * torch.arange(3)).sum().backward()
    assert torch.equal(found.grad, expected.grad)


def test_afterwards_means_are_todays():
    mean, of_tensor = torch.mean, Tensor.mean
    with kept_inputs_of_means():
        assert torch.mean(values(), dim=0).grad_fn.name() == "_KeepingBackward"
        assert values().mean().grad_fn.name() == "_KeepingBackward"
    assert (torch.mean, Tensor.mean) == (mean, of_tensor)
