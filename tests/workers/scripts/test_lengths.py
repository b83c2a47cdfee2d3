"""Scripts whose batches differ in length: what is learned of all batches of their run."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("warm_tracer")]  # a process for each script

_HEAD = """
import torch
from torch import nn
model = nn.Embedding(100, 16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(tokens):
    optimizer.zero_grad()
    model(tokens).mean().backward()
    optimizer.step()
"""
_LOADER = """
texts = [torch.randint(100, (10 + number,)) for number in range(50)]
def padded(texts):
    return nn.utils.rnn.pad_sequence(texts, batch_first=True)
for tokens in torch.utils.data.DataLoader(texts, batch_size=4, collate_fn=padded):
    train(tokens.cuda())
"""
_DRAWN = """
import random
random.seed(0)
for step in range(200):
    train(torch.randint(100, (4, random.randint(1, 64)), device="cuda"))
"""
_ALIKE = """
for tokens in torch.utils.data.DataLoader(torch.randint(100, (50, 8)), batch_size=4):
    train(tokens.cuda())
"""


def test_the_batches_that_a_loader_gives_later_are_read_without_being_trained_on(traced):
    trace = traced(_HEAD + _LOADER)
    assert trace.lengths is not None
    lengths = [*trace.lengths.numbers, *trace.lengths.numbers_coming]
    assert lengths == [(13 + 4 * number,) for number in range(12)]  # the last batch has 2 texts
    assert trace.lengths.shapes == tuple((4, length) for (length,) in lengths)
    assert (trace.lengths.is_read, trace.lengths.is_shuffled) == (True, False)
    assert len(trace.seen.step_ends) == len(trace.lengths.numbers) < 12
    assert trace.seen.num_run_steps == 13


def test_of_a_script_that_draws_its_lengths_more_steps_are_traced(traced):
    trace = traced(_HEAD + _DRAWN)
    assert trace.lengths is not None
    assert not trace.lengths.is_read
    assert not trace.lengths.numbers_coming
    assert 40 < len(trace.lengths.numbers) < 200
    assert {shape[0] for shape in trace.lengths.shapes} == {4}


def test_batches_that_are_alike_but_for_a_short_last_one_have_no_lengths(traced):
    trace = traced(_HEAD + _ALIKE)
    assert trace.lengths is None
    assert len(trace.seen.step_ends) == 3
