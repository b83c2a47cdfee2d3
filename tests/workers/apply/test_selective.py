"""Selective checkpointing: what is dear runs once, and a budget holds."""

from __future__ import annotations

import collections

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from autofit_workers.apply.checkpointing import checkpoint_blocks
from autofit_workers.spec.errors import InapplicableError

WIDTH = 8


class Counted(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self):
        super().__init__()
        self.num_calls = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num_calls[func.name()] += 1
        return func(*args, **(kwargs or {}))


def block(activation=nn.GELU):
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), activation(), nn.Linear(4 * WIDTH, WIDTH), nn.Tanh())


def num_calls_of(checkpointing):
    model = nn.Sequential(block(), block())
    checkpoint_blocks(model, checkpointing)
    loss = model(torch.randn(3, WIDTH)).sum()
    with Counted() as counted:
        loss.backward()
    return counted.num_calls


def test_products_run_once_and_what_is_cheap_again():
    run_again = {name: num_calls_of(name) for name in ("blocks", "selective")}
    assert run_again["blocks"]["aten::addmm"] > run_again["selective"]["aten::addmm"] == 0
    assert run_again["selective"]["aten::gelu"] == 2


# Of a block's two products the first puts out four fifths.
@pytest.mark.parametrize(("percent", "num_again"), [(100, 0), (50, 2), (10, 4)])
def test_a_budget_is_a_share_of_what_products_put_out(percent, num_again):
    assert num_calls_of(f"selective:{percent}")["aten::addmm"] == num_again


def test_an_output_that_is_changed_in_place_is_said():
    model = nn.Sequential(*(block(lambda: nn.ReLU(inplace=True)) for _ in range(2)))
    checkpoint_blocks(model, "selective")
    with pytest.raises(InapplicableError, match=r"changes in place.*choose --checkpointing blocks"):
        model(torch.randn(3, WIDTH)).sum().backward()
