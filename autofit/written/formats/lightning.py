"""Configuration of Lightning's LightningCLI, for releases of `lightning` and `pytorch_lightning` from 2.0.

Keys are arguments of `Trainer` (lightning/pytorch/trainer/trainer.py) and of the user's data module.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from autofit.written.files.yaml_file import YamlFile
from autofit.written.formats.format import Format
from autofit.written.formats.hugging_face import starts_as_ranks
from autofit.written.setting import Setting
from autofit.written.told import BATCH_SIZE, PARALLEL, REMOVED, Told
from autofit_workers.spec.knobs.optimizer import NAMED
from autofit_workers.spec.parallel_kinds import FSDP, TP

_TOOL = "LightningCLI's configuration"
PRECISIONS = {
    "fp32": "32-true",
    "tf32": "32-true",
    "ieee-fp32": "32-true",
    "amp-fp16": "16-mixed",
    "amp-bf16": "bf16-mixed",
    "bf16": "bf16-true",
}
_WITHOUT_KEY = ("tf32", "ieee-fp32")  # set by torch.set_float32_matmul_precision alone
_IMPLEMENTATIONS = {"foreach": {"foreach": True}, "fused": {"fused": True}, "loop": {"foreach": False}}
_KEPT_OF_OPTIMIZERS = ("lr", "weight_decay")  # arguments that any optimizer takes


def trainer_options(told: Told, setting: Setting) -> dict[str, Any]:
    """Arguments of Lightning's `Trainer` for a setting; what they state is marked as said.

    The strategy is left out where it is no name, as that of FSDP.
    """
    knobs, parallel = setting.knobs, setting.parallel
    options: dict[str, Any] = {
        "accelerator": "gpu" if setting.on_gpu else "cpu",
        "devices": setting.ranks_per_node,
        "num_nodes": setting.num_nodes,
        "precision": PRECISIONS[knobs.precision],
        "accumulate_grad_batches": setting.accumulation,
    }
    told.said.add("grad_accumulation")
    if knobs.precision not in _WITHOUT_KEY:
        told.said.add("precision")
    if knobs.clip_grad_norm is not None:
        options["gradient_clip_val"] = knobs.clip_grad_norm
        told.said.add("clip_grad_norm")
    if starts_as_ranks(setting):
        options["strategy"] = "ddp" if setting.num_ranks > 1 else "auto"
        told.said.add(PARALLEL)
    elif parallel.zero is not None:
        offload = "_offload" if parallel.zero.offloads else ""
        options["strategy"] = f"deepspeed_stage_{parallel.zero.stage}{offload}"
        told.said.add(PARALLEL)
    return options


def _tell(setting: Setting, found: Mapping[str, Any]) -> Told:
    told = Told()
    trainer = trainer_options(told, setting)
    if "strategy" not in trainer and (strategy := _strategy(setting, found)) is not None:
        trainer["strategy"] = strategy
        told.said.add(PARALLEL)
    told.values["trainer"] = trainer
    _tell_batch_size(told, setting, found)
    _tell_optimizer(told, setting, found)
    return told


def _strategy(setting: Setting, found: Mapping[str, Any]) -> dict[str, Any] | None:
    """Strategy that shards, as a class with its arguments; None if Lightning has none."""
    parallel = setting.parallel
    is_older = "pytorch_lightning" in repr(found) or find_spec("lightning") is None
    package = (
        "pytorch_lightning" if is_older and "lightning.pytorch" not in repr(found) else "lightning.pytorch"
    )
    before = _mapping(_mapping(found, "trainer"), "strategy")
    if (first := parallel.fsdp1) is not None:
        options = {"sharding_strategy": first.strategy, "cpu_offload": first.offloads}
        return _class(f"{package}.strategies.FSDPStrategy", options, before)
    kinds = {kind for kind, _ in parallel.degrees}
    if kinds <= {FSDP, TP} and not parallel.offloads:
        sizes = {
            "data_parallel_size": parallel.degree(FSDP),
            "tensor_parallel_size": parallel.degree(TP),
        }
        return _class(f"{package}.strategies.ModelParallelStrategy", sizes, before)
    return None


def _class(
    path: str, options: Mapping[str, Any], before: Mapping[str, Any], kept: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Class with its arguments, as jsonargparse reads it, to be merged into one that is there.

    Args:
        path: path of the class.
        options: arguments.
        before: the class that is there; of the arguments of another class, only those in `kept` stay.
    """
    is_other = before.get("class_path") != path
    dropped = (key for key in _mapping(before, "init_args") if is_other and key not in kept)
    return {"class_path": path, "init_args": {**dict.fromkeys(dropped, REMOVED), **options}}


def _tell_batch_size(told: Told, setting: Setting, found: Mapping[str, Any]) -> None:
    """Says the batch size where the file has one, else as an argument of the data module."""
    told.said.add(BATCH_SIZE)
    size = {"batch_size": setting.loaded}
    model = _mapping(found, "model")
    for arguments, place in ((model, ()), (_mapping(model, "init_args"), ("init_args",))):
        if "batch_size" in arguments:
            told.values["model"] = {"init_args": size} if place else size
            return
    is_class = "class_path" in _mapping(found, "data")
    told.values["data"] = {"init_args": size} if is_class else size
    if "batch_size" not in repr(_mapping(found, "data")):
        told.notes.append(
            "the batch size is written as data.batch_size: the data module has to take an argument batch_size"
        )


def _tell_optimizer(told: Told, setting: Setting, found: Mapping[str, Any]) -> None:
    """Says an optimizer of one class; its learning rate stays."""
    name = setting.knobs.optimizer
    if name is None or NAMED[name].tells_hidden_weights:
        return
    path, options = NAMED[name].path, dict(NAMED[name].options)
    if setting.knobs.optimizer_impl in _IMPLEMENTATIONS:
        options |= _IMPLEMENTATIONS[setting.knobs.optimizer_impl]
        told.said.add("optimizer_impl")
    before = _mapping(found, "optimizer")
    if before.get("class_path") not in (None, path):
        told.notes.append(
            f"the optimizer was {before['class_path']}: of its arguments, only "
            f"{' and '.join(_KEPT_OF_OPTIMIZERS)} are kept"
        )
    told.say("optimizer", optimizer=_class(path, options, before, _KEPT_OF_OPTIMIZERS))


def _mapping(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Mapping under a key; empty if there is none."""
    inner = found.get(key)
    return inner if isinstance(inner, Mapping) else {}


FORMAT = Format(
    name="lightning",
    tool=_TOOL,
    use="python main.py fit --config FILE",
    file=YamlFile(frozenset(("trainer", "data", "model", "seed_everything", "fit")), _TOOL),
    tell=_tell,
)
