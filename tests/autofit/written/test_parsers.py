"""Written files are read by their tools' own parsers."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shlex

import pytest

from tests.autofit.written.materials import python, setting, write

USUAL = {"precision": "amp-bf16", "checkpointing": "blocks", "accumulation": 2, "clip_grad_norm": 1.0}
_TRAINING_ARGUMENTS = """
import dataclasses, json, sys
from transformers import TrainingArguments
from transformers.training_args import OptimizerNames
known = {each.name for each in dataclasses.fields(TrainingArguments)}
for path in sys.argv[1:]:
    told = json.load(open(path))
    assert told.keys() <= known, told.keys() - known
    OptimizerNames(told.get("optim", "sgd"))
arguments = TrainingArguments(**json.load(open(sys.argv[1])))
print(json.dumps([arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps,
                  arguments.gradient_checkpointing, arguments.bf16, arguments.optim,
                  arguments.max_grad_norm]))
"""
_ACCELERATE = """
import json, sys
from accelerate.commands.config.config_args import load_config_from_file
for path in sys.argv[1:]:
    config = load_config_from_file(path)
    print(json.dumps([config.distributed_type.value, config.num_processes, config.mixed_precision,
                      config.fsdp_config, config.deepspeed_config, config.parallelism_config]))
"""
_DEEPSPEED = """
import json, sys
from deepspeed.runtime.config import DeepSpeedConfig
config = DeepSpeedConfig(sys.argv[1])
print(json.dumps([config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps,
                  int(config.zero_optimization_stage), config.bfloat16_config.enabled,
                  config.train_batch_size]))
"""
_TORCHTITAN = """
import json, sys, tyro
from torchtitan.config.manager import custom_registry
from torchtitan.trainer import Trainer
config = tyro.cli(Trainer.Config, args=open(sys.argv[1]).read().split(), registry=custom_registry)
print(json.dumps([config.training.local_batch_size, config.training.global_batch_size,
                  config.parallelism.data_parallel_shard_degree,
                  type(config.activation_checkpoint).__qualname__,
                  config.training.mixed_precision_param, config.compile.enable]))
"""
_AXOLOTL = """
import json, sys, yaml
from axolotl.utils.schemas.config import AxolotlInputConfig
config = AxolotlInputConfig(**yaml.safe_load(open(sys.argv[1])))
print(json.dumps([config.micro_batch_size, config.gradient_accumulation_steps, config.bf16,
                  config.gradient_checkpointing, config.optimizer, config.sequence_len]))
"""
_LLAMA_FACTORY = """
import json, sys, yaml
from transformers import HfArgumentParser
from llamafactory.hparams import DataArguments, FinetuningArguments, ModelArguments
from llamafactory.hparams.training_args import TrainingArguments
parser = HfArgumentParser([ModelArguments, DataArguments, TrainingArguments, FinetuningArguments])
model, data, training, tuned = parser.parse_dict(yaml.safe_load(open(sys.argv[1])))
print(json.dumps([training.per_device_train_batch_size, training.gradient_accumulation_steps, data.cutoff_len,
                  model.disable_gradient_checkpointing, model.flash_attn, tuned.finetuning_type,
                  tuned.lora_rank]))
"""


def needed(*packages: str) -> None:
    """Skips a test, by name, where the tool that would read the file is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def lines(text: str) -> list[list[object]]:
    """Lists in the lines of what a script prints, among lines that its libraries log."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


@pytest.mark.process
def test_training_arguments_have_all_keys(tmp_path):
    optimizers = ("adamw", "lion", "adamw8bit", "galore-adamw", "adamw4bit-torchao")
    kinds = {"cpu": setting(device_kind="cpu", **USUAL, optimizer="adamw", optimizer_impl="fused")}
    kinds |= {name: setting("ddp:2", optimizer=name) for name in optimizers}
    kinds |= {kind: setting(kind, **USUAL) for kind in ("fsdp:8", "fsdp1:4+grad-op", "zero3:8+offload")}
    for number, each in enumerate(kinds.values()):
        write("transformers-json", tmp_path / f"{number}.json", each)
    files = [f"{number}.json" for number in range(len(kinds))]
    (done,) = lines(python(tmp_path, *files, code=_TRAINING_ARGUMENTS))
    assert done == [4, 2, True, True, "adamw_torch_fused", 1.0]


@pytest.mark.process
def test_accelerate_reads_its_configuration(tmp_path):
    kinds = ("", "ddp:2", "fsdp:8", "hsdp:2x4", "zero3:4+offload", "fsdp1:4")
    for number, kind in enumerate(kinds):
        write("accelerate", tmp_path / f"{number}.yaml", setting(kind, **USUAL))
    files = [f"{number}.yaml" for number in range(len(kinds))]
    alone, ddp, fsdp, hsdp, zero, first = lines(python(tmp_path, *files, code=_ACCELERATE))
    assert alone[:3] == ["NO", 1, "bf16"]
    assert ddp[:3] == ["MULTI_GPU", 2, "bf16"]
    assert (fsdp[0], fsdp[3]["fsdp_version"], fsdp[3]["fsdp_activation_checkpointing"]) == ("FSDP", 2, True)
    assert hsdp[5]["parallelism_config_dp_replicate_size"] == 2
    assert hsdp[5]["parallelism_config_dp_shard_size"] == 4
    assert (zero[0], zero[4]["zero_stage"], zero[4]["offload_param_device"]) == ("DEEPSPEED", 3, "cpu")
    assert (first[3]["fsdp_version"], first[3]["fsdp_reshard_after_forward"]) == (1, "FULL_SHARD")


@pytest.mark.process
def test_deepspeed_reads_its_configuration(tmp_path):
    needed("deepspeed")
    write("deepspeed", tmp_path / "ds.json", setting("zero3:8", **USUAL))
    assert "train_batch_size" not in json.loads((tmp_path / "ds.json").read_text())
    (done,) = lines(python(tmp_path, "ds.json", code=_DEEPSPEED))
    assert done == [4, 2, 3, True, 8]  # of the one rank that reads it


@pytest.mark.process
def test_torchtitan_reads_its_overrides(tmp_path):
    needed("torchtitan", "triton", "torchdata", "tensorboard")
    write("torchtitan", tmp_path / "titan.args", setting("hsdp:2x4", **USUAL, seq_len=512))
    (done,) = lines(python(tmp_path, "titan.args", code=_TORCHTITAN))
    assert done == [4, 64, 4, "FullAC.Config", "bfloat16", False]


@pytest.mark.process
def test_axolotl_reads_its_configuration(tmp_path):
    needed("axolotl")
    path = tmp_path / "a.yaml"
    path.write_text("base_model: tiny\nlearning_rate: 0.0002\ndatasets:\n  - path: data\n    type: alpaca\n")
    write("axolotl", path, setting(**USUAL, optimizer="adamw8bit", seq_len=512))
    (done,) = lines(python(tmp_path, "a.yaml", code=_AXOLOTL))
    assert done == [4, 2, True, True, "adamw_bnb_8bit", 512]


@pytest.mark.process
def test_llama_factory_reads_its_configuration(tmp_path):
    needed("llamafactory")
    path = tmp_path / "l.yaml"
    path.write_text(
        "model_name_or_path: tiny\nstage: sft\ntemplate: llama3\noutput_dir: out\nuse_cpu: true\n"
    )
    write("llama-factory", path, setting(**USUAL, seq_len=512, attention="eager", adapter="lora:r=16"))
    (done,) = lines(python(tmp_path, "l.yaml", code=_LLAMA_FACTORY))
    assert done == [4, 2, 512, False, "disabled", "lora", 16]


def test_hydra_reads_its_overrides(tmp_path):
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    write("hydra", tmp_path / "o.txt", setting("ddp:2", **USUAL, optimizer="sgd-momentum", compile=True))
    found = parser.parse_overrides((tmp_path / "o.txt").read_text().split())
    told = {each.key_or_group: each.value() for each in found}
    assert told["data.batch_size"] == 4
    assert told["model.compile"] is True
    assert told["trainer.gradient_clip_val"] == 1.0
    assert (told["trainer.strategy"], told["trainer.devices"]) == ("ddp", 2)
    assert told["model.optimizer._target_"] == "torch.optim.SGD"


def test_torchrun_reads_its_command_line(tmp_path):
    from torch.distributed.run import get_args_parser

    write("torchrun", tmp_path / "run.sh", setting("fsdp:16", num_nodes=2))
    words = shlex.split((tmp_path / "run.sh").read_text())
    found = get_args_parser().parse_args(words[1:])
    assert (found.nnodes, found.nproc_per_node, found.training_script) == ("2", "8", "train.py")
