"""What comes after a script's steps, evaluations and checkpoints, once the loops that make them are ended."""

from __future__ import annotations

import textwrap

import pytest

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("warm_tracer")]  # a process for each script

_HEAD = """
import torch
from torch import nn
from torch.nn.functional import mse_loss

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 128)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.zeros(6400, 256), torch.zeros(6400, 128))
training = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
validation = torch.utils.data.DataLoader(data, batch_size=1000)

def train(x, y):
    loss = mse_loss(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

def evaluate():
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(x.cuda()) for x, _ in validation])
    model.train()
"""
_MODULE = """
import torch
from torch.nn.functional import mse_loss

class Endless(torch.utils.data.DataLoader):
    batches = None
    def __iter__(self):
        if self.batches is None:
            self.batches = super().__iter__()
        for _ in range(len(self)):
            yield next(self.batches)

class Derived(Endless):
    pass

class Nested(Endless):
    def __iter__(self):
        yield from super().__iter__()

def fit(model, optimizer, training, validation):
    for epoch in range(5):
        for number, (x, y) in enumerate(training):
            loss = mse_loss(model(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            for x, _ in validation:
                model(x.cuda())
        model.train()
"""
# By name: what follows the head, the steps of the run, the phases that are seen, and those that are not.
_SCRIPTS = {
    "after each fifth epoch": (
        """
        for epoch in range(10):
            for x, y in training:
                train(x, y)
            if epoch % 5 == 4:
                evaluate()
                torch.save(model.state_dict(), "model.pt")
        """,
        1000, {"evaluation", "checkpoint"}, (),
    ),
    "at a step's number": (
        """
        for step in range(2000):
            train(torch.zeros(64, 256), torch.zeros(64, 128))
            if step > 0 and (step + 1) % 500 == 0:
                evaluate()
        """,
        2000, {"evaluation"}, (),
    ),
    "in phases of one loop": (
        """
        for epoch in range(10):
            for phase, loader in (("train", training), ("validate", validation)):
                model.train(phase == "train")
                for x, y in loader:
                    with torch.set_grad_enabled(phase == "train"):
                        loss = mse_loss(model(x.cuda()), y.cuda())
                        if phase == "train":
                            optimizer.zero_grad()
                            loss.backward()
                            optimizer.step()
        """,
        1000, {"evaluation"}, (),
    ),
    "with gradients that nobody uses": (
        """
        for x, y in training:
            train(x, y)
        model.eval()
        print(sum(mse_loss(model(x.cuda()), y.cuda()).item() for x, y in validation))
        """,
        100, {"evaluation"}, (),
    ),
    "in a module beside the script": (
        """
        from fitting import fit
        fit(model, optimizer, training, validation)
        torch.save(model, "model.pt")
        """,
        500, {"evaluation", "checkpoint"}, (),
    ),
    "by a library's loader that goes on and on": (
        """
        from fitting import Endless
        endless = Endless(data, batch_size=64, shuffle=True)
        for epoch in range(10):
            for x, y in endless:
                train(x, y)
            evaluate()
        """,
        1000, {"evaluation"}, (),
    ),
    "by such a loader of a class that has it from another": (
        """
        from fitting import Derived, Endless
        Endless(data), Derived(data)
        endless = Derived(data, batch_size=64, shuffle=True)
        for epoch in range(10):
            for x, y in endless:
                train(x, y)
            evaluate()
        """,
        1000, {"evaluation"}, (),
    ),
    "by such a loader in a generator in a generator": (
        """
        from fitting import Nested, Endless
        Endless(data), Nested(data)
        endless = Nested(data, batch_size=64, shuffle=True)
        for epoch in range(10):
            for x, y in endless:
                train(x, y)
            evaluate()
        """,
        1000, {"evaluation"}, (),
    ),
    "by a counter of the script's own": (
        """
        step = 0
        for epoch in range(10):
            for x, y in training:
                train(x, y)
                step += 1
                if step % 250 == 0:
                    model.eval()
                    torch.save(model.state_dict(), "model.pt")
        """,
        1000, set(), ("evaluation", "checkpoint"),
    ),
    "never, as it fails before": (
        """
        for x, y in training:
            train(x, y)
        raise ValueError("no more")
        """,
        100, set(), ("evaluation", "checkpoint"),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def fitting(tmp_path):
    """A module beside the script that trains."""
    (tmp_path / "fitting.py").write_text(_MODULE)


@pytest.mark.parametrize("name", _SCRIPTS)
def test_what_comes_after_the_steps_is_seen_or_said_not_to_be(traced, name):
    lines, num_steps, phases, unseen = _SCRIPTS[name]
    trace = traced(_HEAD + textwrap.dedent(lines))
    marked = {mark.name.rpartition(" ")[2] for mark in trace.marks}
    assert marked & {"evaluation", "checkpoint"} == phases
    assert trace.seen.unseen == unseen
    assert trace.seen.num_run_steps == num_steps
    assert len(trace.seen.step_ends) == 3


def test_a_trainer_evaluates_where_it_would_much_later(traced):
    trace = traced(
        textwrap.dedent(
            """
            import torch
            from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

            class Tokens(torch.utils.data.Dataset):
                def __len__(self):
                    return 400
                def __getitem__(self, index):
                    tokens = torch.zeros(32, dtype=torch.int64)
                    return {"input_ids": tokens, "labels": tokens}

            size = {"n_embd": 32, "n_layer": 1, "n_head": 1, "vocab_size": 1000}
            arguments = TrainingArguments(
                "out", per_device_train_batch_size=4, per_device_eval_batch_size=40, report_to=[],
                eval_strategy="steps", eval_steps=250, save_strategy="no", num_train_epochs=5,
            )
            model = GPT2LMHeadModel(GPT2Config(**size))
            trainer = Trainer(model, arguments, None, Tokens(), Tokens(), compute_metrics=lambda outputs: {})
            trainer.train()
            """
        )
    )
    assert trace.seen.num_run_steps == 500
    assert trace.seen.is_to_end
    logits = max(each.num_bytes for each in trace.allocations if each.shape == (400, 32, 1000))
    assert logits == 400 * 32 * 1000 * 4  # of the whole evaluation, which the Trainer keeps for the metrics
