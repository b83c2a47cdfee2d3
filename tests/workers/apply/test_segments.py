"""Blocks that are joined: what they keep, when it is found again, and that nothing of it stays."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from autofit_workers.apply.segments import join


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, rows, *, scale):
        return {"rows": (rows + self.layer(rows).relu() * scale,)}


class Net(nn.Module):
    """Calls its blocks itself, with a mask of its own and random code between them."""

    def __init__(self, num_blocks=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))
        self.dropout = nn.Dropout(0.5)

    def forward(self, rows):
        for number, block in enumerate(self.blocks):
            rows = block(rows, scale=torch.full((4,), number + 1.0))["rows"][0]
            if number == 1:
                rows = self.dropout(rows)
        return rows


def joined(net):
    other = copy.deepcopy(net)
    join(list(other.blocks))
    return other


def gradients(net, rows, *, num_backwards=1, autocast=False):
    torch.manual_seed(3)
    net.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = net(rows).square().sum()
    for left in reversed(range(num_backwards)):
        loss.backward(retain_graph=left > 0)
    return [parameter.grad for parameter in net.parameters()]


@pytest.mark.parametrize("options", [{}, {"num_backwards": 2}, {"autocast": True}])
def test_what_a_model_does_between_its_blocks_stays_as_it_was(options):
    net = Net()
    rows = torch.randn(5, 4, requires_grad=True)
    expected, found = gradients(net, rows, **options), gradients(joined(net), rows, **options)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_of_a_segment_the_first_input_is_kept_alone():
    net = joined(Net(num_blocks=3))
    kept = []
    rows = torch.randn(5, 4).requires_grad_()
    output = rows
    for block in net.blocks:
        output = block(output, scale=2.0)["rows"][0]
        kept.append(weakref.ref(output))
    result = output.sum()
    del output
    assert [each() for each in kept] == [None] * 3
    result.backward()
    assert rows.grad is not None


def test_a_segment_ends_with_the_graph_that_needs_it_with_backward_or_without():
    net = joined(Net())
    held = []
    for runs_backward in (True, False):
        rows = torch.randn(5, 4)
        held.append(weakref.ref(rows))
        loss = net(rows).sum()
        if runs_backward:
            loss.backward()
        del rows, loss
    gc.collect()
    assert [each() for each in held] == [None, None]


def test_a_block_that_is_called_again_begins_another_segment():
    net = Net(num_blocks=1)
    shared, twin = nn.ModuleList([net.blocks[0]] * 3), copy.deepcopy(net.blocks[0])
    rows = torch.randn(5, 4)
    expected = rows
    for _ in range(3):
        expected = twin(expected, scale=1.0)["rows"][0]
    expected.sum().backward()
    join([net.blocks[0]])
    found = rows
    for block in shared:
        found = block(found, scale=1.0)["rows"][0]
    found.sum().backward()
    assert torch.equal(net.blocks[0].layer.weight.grad, twin.layer.weight.grad)


def test_a_block_that_does_not_do_the_same_again_is_an_error():
    class Moody(nn.Module):
        num_runs = 0

        def forward(self, rows):
            self.num_runs += 1
            return rows.exp().sin() if self.num_runs == 1 else rows * 2

    block = Moody()
    join([block])
    with pytest.raises(RuntimeError, match="saved fewer tensors than in the forward pass"):
        block(torch.ones(3, requires_grad=True)).sum().backward()
