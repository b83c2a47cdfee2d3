"""Checkpointed blocks: which they are, and that they learn what they would learn otherwise."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from autofit_workers.apply.checkpointing import checkpoint_blocks
from autofit_workers.spec.errors import InapplicableError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.5)
        self.num_runs = 0

    def forward(self, rows):
        self.num_runs += 1
        return rows + self.dropout(self.layer(rows)).relu()


class Other(Block):
    pass


def chain(*modules):
    return nn.Sequential(*modules)


def trained(model, *modules):
    """Checkpoints a model's blocks and trains one step of these modules, one after another."""
    checkpoint_blocks(model)
    chain(*modules)(torch.randn(4, 8)).sum().backward()


def test_repeated_blocks_are_those_of_one_class_in_a_list():
    first, second, other = Block(), Block(), Other()
    blocks = chain(nn.Linear(8, 8), first, other, second, nn.Linear(8, 8))
    trained(nn.ModuleDict({"blocks": blocks}), blocks)
    assert [block.num_runs for block in (first, second, other)] == [2, 2, 1]


def test_a_block_within_a_block_is_run_again_with_it():
    inner, beside = (Block(), Block()), (Block(), Block())
    model = nn.ModuleList([chain(chain(*inner)), chain(*beside)])
    trained(model, *model)
    # Were the inner ones checkpointed too, the first of them would run a third time.
    assert [block.num_runs for block in (*inner, *beside)] == [2, 2, 2, 2]


@pytest.mark.parametrize("model", [nn.Linear(8, 8), chain(nn.Linear(8, 8), nn.Linear(8, 8)), chain(Block())])
def test_a_model_without_repeated_blocks_is_told_so(model):
    with pytest.raises(InapplicableError, match="choose --checkpointing none"):
        checkpoint_blocks(model)


@pytest.mark.parametrize(
    "checkpointing", ["blocks", "every:1", "every:2", "every:9", "selective", "selective:40"]
)
def test_gradients_are_those_without_checkpoints_dropout_included(checkpointing):
    torch.manual_seed(1)
    plain = chain(Block(), Block(), Block())
    checkpointed = copy.deepcopy(plain)
    checkpoint_blocks(checkpointed, checkpointing)
    rows = torch.randn(4, 8)
    for model in (plain, checkpointed):
        torch.manual_seed(2)
        model(rows).square().sum().backward()
        assert torch.rand(1) == torch.rand(1, generator=_after(plain, rows))
    for one, other in zip(plain.parameters(), checkpointed.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert [block.num_runs for block in checkpointed] == [2, 2, 2]
    assert plain.state_dict().keys() == checkpointed.state_dict().keys()


def _after(model, rows):
    """A generator where one pass of the model leaves it."""
    model = copy.deepcopy(model)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model(rows)
        state = torch.get_rng_state()
    generator = torch.Generator()
    generator.set_state(state)
    return generator


def test_reentrant_checkpoints_give_the_same_gradients_where_a_blocks_input_wants_some():
    torch.manual_seed(1)
    plain = chain(nn.Linear(8, 8), chain(Block(), Block()))
    checkpointed = copy.deepcopy(plain)
    checkpoint_blocks(checkpointed, "blocks-reentrant")
    rows = torch.randn(4, 8)
    for model in (plain, checkpointed):
        torch.manual_seed(2)
        model(rows).square().sum().backward()
    for one, other in zip(plain.parameters(), checkpointed.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert [block.num_runs for block in checkpointed[1]] == [2, 2]


def test_reentrant_checkpoints_are_refused_where_a_block_would_learn_nothing():
    model = chain(Block(), Block())
    checkpoint_blocks(model, "blocks-reentrant")
    with pytest.raises(InapplicableError, match="inputs want none: choose --checkpointing blocks"):
        model(torch.randn(4, 8))


@pytest.mark.parametrize("checkpointing", ["blocks", "blocks-reentrant", "every:2", "selective"])
def test_without_gradients_a_block_runs_once(checkpointing):
    model = chain(Block(), Block())
    checkpoint_blocks(model, checkpointing)
    with torch.no_grad():
        model(torch.randn(4, 8))
    assert [block.num_runs for block in model] == [1, 1]
