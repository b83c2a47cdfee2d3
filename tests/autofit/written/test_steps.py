"""One real step on the CPU with a written file, by the tool that the file is for."""

from __future__ import annotations

import json

import pytest

from autofit.written.setting import ScriptStart
from tests.autofit.written.materials import python, setting, write

pytestmark = pytest.mark.process

_MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)
    def forward(self, x, labels=None):
        return {"loss": nn.functional.cross_entropy(self.layer(x), labels)}

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return {"x": torch.full((8,), float(index)), "labels": index % 2}
"""
_TRAINER = """
import json, sys
from net import Net, Rows
from transformers import HfArgumentParser, Trainer, TrainingArguments

if sys.argv[1].endswith(".json"):
    (arguments,) = HfArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])
else:
    from written import training_arguments as arguments
arguments.max_steps, arguments.report_to = 1, []
seen = []
class Watched(Net):
    def forward(self, x, labels=None):
        seen.append(len(x))
        return super().forward(x, labels)
trainer = Trainer(model=Watched(), args=arguments, train_dataset=Rows())
trainer.train()
optimizer = type(trainer.optimizer.optimizer).__name__
print(json.dumps({"sizes": seen, "steps": trainer.state.global_step, "optimizer": optimizer}))
"""
_LIGHTNING = """
import json, torch
from net import Net, Rows
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.cli import LightningCLI

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.sizes = []
    def training_step(self, batch, _):
        self.sizes.append(len(batch["x"]))
        return self.net(**batch)["loss"]

class Data(LightningDataModule):
    def __init__(self, batch_size: int = 1):
        super().__init__()
        self.batch_size = batch_size
    def train_dataloader(self):
        return torch.utils.data.DataLoader(Rows(), batch_size=self.batch_size)

quiet = {"max_steps": 1, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
         "enable_model_summary": False}
cli = LightningCLI(Model, Data, trainer_defaults=quiet)
trainer = cli.trainer
print(json.dumps({"sizes": cli.model.sizes, "steps": trainer.global_step, "precision": str(trainer.precision),
                  "optimizer": type(trainer.optimizers[0]).__name__}))
"""
_RANKED = """
import json, sys, torch
from net import Net, Rows
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(Net())
size = int(sys.argv[sys.argv.index("--batch-size") + 1])
batch = next(iter(torch.utils.data.DataLoader(Rows(), batch_size=size)))
model(**batch)["loss"].backward()
torch.optim.SGD(model.parameters()).step()
if dist.get_rank() == 0:
    print(json.dumps({"sizes": [len(batch["x"])], "ranks": dist.get_world_size()}))
dist.destroy_process_group()
"""
_ACCELERATED = """
import json, torch
from accelerate import Accelerator
from net import Net, Rows

accelerator = Accelerator()
model = Net()
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.SGD(model.parameters()), torch.utils.data.DataLoader(Rows(), batch_size=4)
)
accelerator.backward(model(**next(iter(loader)))["loss"])
optimizer.step()
if accelerator.is_main_process:
    print(json.dumps({"ranks": accelerator.num_processes, "precision": accelerator.mixed_precision,
                      "device": accelerator.device.type}))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "net.py").write_text(_MODEL)
    return tmp_path


def last(text: str) -> dict[str, object]:
    """The document in the last line of what a script prints."""
    document: dict[str, object] = json.loads(text.strip().splitlines()[-1])
    return document


@pytest.mark.parametrize(
    ("name", "file"), [("transformers-json", "args.json"), ("transformers-python", "written.py")]
)
def test_trainer_takes_a_step_with_the_written_arguments(folder, name, file):
    pytest.importorskip("accelerate")
    of = setting(batch_size=4, accumulation=2, optimizer="adagrad", device_kind="cpu")
    write(name, folder / file, of)
    (folder / "train.py").write_text(_TRAINER)
    done = last(python(folder, "train.py", file))
    assert (done["sizes"], done["steps"]) == ([4, 4], 1)
    assert done["optimizer"] == "Adagrad"


def test_lightning_takes_a_step_with_the_written_configuration(folder):
    of = setting(batch_size=4, accumulation=2, optimizer="rmsprop", precision="amp-bf16", device_kind="cpu")
    write("lightning", folder / "l.yaml", of)
    (folder / "main.py").write_text(_LIGHTNING)
    done = last(python(folder, "main.py", "fit", "--config", "l.yaml"))
    assert (done["sizes"], done["steps"], done["precision"]) == ([4, 4], 1, "bf16-mixed")
    assert done["optimizer"] == "RMSprop"


def test_torchrun_starts_as_many_ranks_as_are_written(folder):
    start = ScriptStart(words=("train.py", "--batch-size", "4"), batch_argument="--batch-size")
    write("torchrun", folder / "run.sh", setting("ddp:2", device_kind="cpu", script=start))
    (folder / "train.py").write_text(_RANKED)
    words = (folder / "run.sh").read_text().split()
    assert words[0] == "torchrun"
    done = last(python(folder, "-m", "torch.distributed.run", "--standalone", *words[1:]))
    assert done == {"sizes": [4], "ranks": 2}


def test_accelerate_starts_a_process_with_the_written_configuration(folder):
    write("accelerate", folder / "a.yaml", setting(precision="amp-bf16", device_kind="cpu"))
    (folder / "train.py").write_text(_ACCELERATED)
    launch = ("-m", "accelerate.commands.launch", "--config_file", "a.yaml", "train.py")
    assert last(python(folder, *launch)) == {"ranks": 1, "precision": "bf16", "device": "cpu"}
