"""Makes the workload of a setting, in the process that traces it."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.workload import Workload
from tests.bench.tables import steps, synthetic_net, transformers_configs
from tests.bench.tables.neusight_models import NeusightTask
from tests.bench.tables.setting import Setting
from tests.bench.tables.steps import Batch
from tests.bench.tables.synthetic_recipe import Recipe


def workload_of(setting: Setting) -> Workload:
    """The workload of a setting.

    Raises:
        Exception: whatever the library that defines the model raises when it knows no such model.
    """
    task = _TASKS[setting.source](setting)
    return Workload(
        build_model=task.build,
        make_batch=task.batch,
        loss=task.loss,
        optimizer=steps.OPTIMIZERS[setting.optimizer],
        step=steps.STEPS[setting.step](),
        mode=setting.mode,
        name=setting.model,
    )


class _Images:
    """A classifier of images; a subclass builds the network."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._input_shape: tuple[int, ...] = (3, setting.image_size or 224, setting.image_size or 224)
        self._batch: tuple[int, Batch] | None = None

    def build(self) -> torch.nn.Module:
        model = self._model()
        if self._setting.memory_format == "channels_last":
            model = model.to(memory_format=torch.channels_last)
        return model

    def _model(self) -> torch.nn.Module:
        raise NotImplementedError

    def batch(self, batch_size: int, device: torch.device) -> Batch:
        """A batch where the setting's step expects it."""
        if self._setting.step in steps.BATCH_FROM_CPU:
            device = torch.device("cpu")
        if self._setting.precision == "fp32":
            return self._new_batch(batch_size, device)
        if self._batch is None or self._batch[0] != batch_size:  # timm's benchmark makes it once
            self._batch = batch_size, self._new_batch(batch_size, device)
        return self._batch[1]

    def _new_batch(self, batch_size: int, device: torch.device) -> Batch:
        images = torch.empty(batch_size, *self._input_shape, device=device)
        if self._setting.memory_format == "channels_last":
            images = images.contiguous(memory_format=torch.channels_last)
        return images, torch.zeros(batch_size, dtype=torch.int64, device=device)

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        images, labels = batch
        if self._setting.mode == "infer":
            with torch.autocast("cuda", torch.float16, enabled=self._setting.precision == "amp-fp16"):
                return steps.first_output(model(images))
        return functional.cross_entropy(steps.first_output(model(images)), labels)


class _Timm(_Images):
    """A model of timm, at its own image size unless the setting says another."""

    def _model(self) -> torch.nn.Module:
        timm: Any = imported("timm", self._setting.model)
        fused_attention, fast_norm = self._setting.fused_attention, self._setting.fast_norm
        if fused_attention or fast_norm or hasattr(timm, "layers"):  # before 0.9 timm can do neither
            timm.layers.set_fused_attn(enable=fused_attention)
            timm.layers.set_fast_norm(enable=fast_norm)
        options: dict[str, Any] = dict(self._setting.arguments)
        if self._setting.num_classes is not None:
            options["num_classes"] = self._setting.num_classes
        model: Any = timm.create_model(self._setting.model, **options)
        own_shape = model.pretrained_cfg["input_size"]
        size = self._setting.image_size
        if size not in (None, own_shape[-1]) and model.pretrained_cfg.get("fixed_input_size"):
            model = timm.create_model(self._setting.model, img_size=size, **options)
        self._input_shape = own_shape if size is None else (own_shape[0], size, size)
        return model


class _Torchvision(_Images):
    def _model(self) -> torch.nn.Module:
        imported("torchvision", self._setting.model)
        from torchvision import models

        return models.get_model(self._setting.model, num_classes=self._setting.num_classes)


class _Synthetic(_Images):
    """A generated CNN, whose file name is the setting's model."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._recipe = Recipe.from_name(setting.model)
        self._input_shape = (self._recipe.input_channels, *self._input_shape[1:])

    def _model(self) -> torch.nn.Module:
        return synthetic_net.build(self._recipe, self._setting.layers)


class _Tokens:
    """A language model of `transformers`, made from its configuration, with random weights."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def build(self) -> torch.nn.Module:
        imported("transformers", self._setting.model)
        return transformers_configs.build(self._setting.model)

    def batch(self, batch_size: int, _device: torch.device) -> dict[str, torch.Tensor]:
        shape = (batch_size, transformers_configs.SEQUENCE_LENGTH)
        return {
            name: torch.ones(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask", "labels")
        }

    def loss(self, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(**batch).loss
        return loss


_TASKS: dict[str, Any] = {
    "timm": _Timm,
    "torchvision": _Torchvision,
    "transformers": _Tokens,
    "synthetic": _Synthetic,
    "neusight": NeusightTask,
}
