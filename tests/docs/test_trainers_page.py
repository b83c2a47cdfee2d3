"""The page on trainers: its snippets are run, one after the other, on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.autofit.integrations import lightning_training as with_lightning
from tests.autofit.integrations import training as with_transformers
from tests.docs.pages import PAGES, blocks

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:.*"),  # of Lightning, about small trainings
]


def test_the_snippets_can_be_typed(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs them with small models, for a named card, as the pages' readers have one in their machines."""
    monkeypatch.chdir(tmp_path)
    text = (PAGES / "trainers.md").read_text(encoding="utf-8")
    transformers, lightning, accelerate, composer, own = [
        code for language, code in blocks(text) if language == "python"
    ]

    names = {
        "args": with_transformers.arguments(tmp_path),
        "model": with_transformers.small_gpt2(),
        "train_dataset": with_transformers.Texts(),
        "collator": with_transformers.padded,
        "Trainer": with_transformers.Trainer,
    }
    exec(transformers.replace("collator)  #", 'collator, gpu="rtx-3090")  #'), names)
    assert names["args"].per_device_train_batch_size == 16
    assert json.loads(Path("run.json").read_text())["num_steps"] == 4

    def trainer(callbacks):
        return with_lightning.trainer(tmp_path, *callbacks)

    names = {"module": with_lightning.small(), "Trainer": trainer}
    exec(lightning.replace("Finder()", 'Finder(gpu="rtx-3090")'), names)
    assert names["module"].batch_size == 64

    names = {}
    exec(accelerate, names)
    assert names["train"].__name__ == "train"

    compile(composer, "trainers.md", "exec")  # test_composer.py runs such a training

    model = torch.nn.Linear(2, 2)

    def train(model, optimizer):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    import autofit

    names = {"autofit": autofit, "model": model, "train": train}
    exec(own, {**names, "optimizer": torch.optim.SGD(model.parameters())})
    assert json.loads(Path("run.json").read_text())["batch_size"] == 64
