"""The batch of a script: how many samples a model is trained on, whatever shapes tell."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

import pytest

from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict
from autofit_workers.spec.setup import ALONE, Setup
from autofit_workers.spec.trace import BatchSource, Trace
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.trials.run import run

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("warm_tracer")]  # a process for each script

_HEAD = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
asked = int(sys.argv[sys.argv.index("--batch") + 1]) if "--batch" in sys.argv else 8
model = nn.Linear(16, 16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(rows):
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()
"""

_DETECTION = """
images = [(torch.rand(16), torch.rand(5 + number % 7, 4)) for number in range(64)]
def collate(items):
    rows, boxes = zip(*items)
    return {"boxes": torch.cat(boxes), "rows": torch.stack(rows)}
for batch in DataLoader(images, batch_size=asked, collate_fn=collate):
    train(batch["rows"].cuda())
"""
_PACKED = """
texts = [torch.rand(50 + number, 16) for number in range(64)]
for row in DataLoader(texts, batch_size=asked, collate_fn=lambda each: torch.cat(each)[None]):
    train(row.cuda())
"""
_WHOLE_BATCHES = """
class Batches(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield {"boxes": torch.rand(61, 4), "rows": torch.rand(asked, 16)}
for batch in DataLoader(Batches(), batch_size=None):
    train(batch["rows"].cuda())
"""
_REPLAY = """
stored = []
for step in range(1000):
    seen = torch.rand(1, 16)
    model(seen.cuda()).argmax()
    stored.append(seen)
    if step > 50:
        train(torch.cat([stored[step % 50] for _ in range(asked)]).cuda())
"""
_PROBE = """
width = model(torch.zeros(1, 16).cuda()).shape[-1]
for _ in range(5):
    train(torch.rand(asked, width).cuda())
"""
# Loaders of trainers are one batch ahead of the model: of 3 batches of 20 samples the last has 4.
_AHEAD = """
loader = DataLoader(torch.rand(20, 16), batch_size=asked)
for _ in range(3):
    batches = iter(loader)
    rows = next(batches)
    while rows is not None:
        following = next(batches, None)
        train(rows.cuda())
        rows = following
"""
_TWO_LOADERS = """
labelled = DataLoader(torch.rand(640, 16), batch_size=asked)
others = DataLoader(torch.rand(4480, 16), batch_size=7 * asked)
for pair in zip(labelled, others):
    train(torch.cat(pair).cuda())
"""
_ADVERSARIES = """
other = nn.Linear(16, 1).cuda()
others = torch.optim.SGD(other.parameters(), lr=0.1)
for rows in DataLoader(torch.rand(640, 16), batch_size=asked):
    others.zero_grad()
    other(rows.cuda()).mean().backward()
    made = model(torch.rand(asked, 16).cuda())
    other(made.detach()).mean().backward()
    others.step()
    optimizer.zero_grad()
    other(made).mean().backward()
    optimizer.step()
"""


@pytest.fixture
def predicted(tmp_path):
    """Predicts a script of these lines; without a size its own batch."""

    def predict(
        lines: str, batch_size: int | None = None, setup: Setup = ALONE, **options: Any
    ) -> TrialOutcome:
        path = tmp_path / "train.py"
        path.write_text(_HEAD + textwrap.dedent(lines))
        ref = Script(path=path, **options).reference()
        assert ref.script is not None
        ref = dataclasses.replace(ref, script=dataclasses.replace(ref.script, keeps_batch=batch_size is None))
        return run(TrialSpec(workload=ref, batch_size=batch_size or 1, probe=Probe.PREDICT, setup=setup))

    return predict


def trace_of(outcome: TrialOutcome) -> Trace:
    assert outcome.verdict is Verdict.TRACED, outcome.error
    return Trace.from_json(outcome.trace_json)


@pytest.mark.parametrize(
    ("lines", "source"),
    [
        (_DETECTION, BatchSource.DATA_LOADER),
        (_PACKED, BatchSource.DATA_LOADER),
        (_WHOLE_BATCHES, BatchSource.DATA_LOADER),
        (_REPLAY, BatchSource.MODEL_INPUT),
        (_PROBE, BatchSource.MODEL_INPUT),
        (_AHEAD, BatchSource.DATA_LOADER),
        (_TWO_LOADERS, BatchSource.DATA_LOADER),
        (_ADVERSARIES, BatchSource.DATA_LOADER),
    ],
    ids=["boxes", "packed", "whole-batches", "replay", "probe", "ahead", "two-loaders", "adversaries"],
)
def test_a_batch_has_the_samples_that_were_meant(predicted, lines, source):
    trace = trace_of(predicted(lines))
    assert (trace.batch_size, trace.batch_count.source) == (8, source)
    assert trace.batch_count.samples_per_step(8) == 8
    assert (trace.lengths is not None) == (lines in (_PACKED, _DETECTION))


@pytest.mark.parametrize("lines", [_PACKED, _REPLAY], ids=["packed", "replay"])
def test_a_size_that_an_argument_sets_is_proved_by_samples(predicted, lines):
    trace = trace_of(predicted(lines, 6, batch_argument="--batch"))
    assert (trace.batch_size, trace.batch_count.num_parts) == (6, 1)


def test_an_argument_that_sets_another_size_than_the_batch_is_refused(predicted):
    lines = "for rows in DataLoader(torch.rand(64, 4, 16), batch_size=2): train(rows.cuda())"
    outcome = predicted(lines, 16, batch_argument="--batch")  # which is the width of a sample
    assert outcome.verdict is Verdict.INVALID
    assert "its data loader gave 2" in outcome.error.message


def test_the_size_of_an_evaluation_is_not_that_of_the_batch(predicted):
    lines = """
        with torch.no_grad():
            for rows in DataLoader(torch.rand(64, 16), batch_size=asked): model(rows.cuda())
        for rows in DataLoader(torch.rand(64, 16), batch_size=2): train(rows.cuda())
    """
    outcome = predicted(lines, 16, batch_argument="--batch")
    assert outcome.verdict is Verdict.INVALID
    assert "got no input with 16 samples" in outcome.error.message


def test_a_batch_that_is_accumulated_in_parts_is_said_to_be(predicted):
    lines = """
        for number, rows in enumerate(DataLoader(torch.rand(640, 16), batch_size=4)):
            model(rows.cuda()).mean().backward()
            if (number + 1) % (asked // 4) == 0:
                optimizer.step()
                optimizer.zero_grad()
    """
    trace = trace_of(predicted(lines, 24, batch_argument="--batch"))
    assert (trace.batch_size, trace.batch_count.num_parts) == (24, 6)
    assert trace.batch_count.samples_per_step(24) == 24
    assert "the script divides the batch of 24: 4 at a time, 6 times in a step" in trace.notes
    own = trace_of(predicted(lines))
    assert (own.batch_size, own.batch_count.samples_per_step(4)) == (4, 8)


def test_a_batch_of_all_ranks_is_said_to_be_divided(predicted):
    lines = """
        torch.distributed.init_process_group("nccl")
        num_ranks = torch.distributed.get_world_size()
        model = nn.parallel.DistributedDataParallel(model)
        for rows in DataLoader(torch.rand(640, 16), batch_size=asked // num_ranks):
            train(rows.cuda())
    """
    trace = trace_of(predicted(lines, 32, Setup(rank=0), batch_argument="--batch", num_processes=4))
    assert (trace.batch_size, trace.batch_count.num_parts) == (32, 4)
    assert trace.batch_count.samples_per_step(32) == 32
    assert "the script divides the batch of 32: 8 at a time on each of 4 ranks" in trace.notes
