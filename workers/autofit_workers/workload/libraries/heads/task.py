"""A task of models of transformers, and a class of models with what it is trained for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from autofit_workers.spec.trace import SampleSize

Batch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batches:
    """What a head is trained on.

    Attributes:
        make: from batch size and device what the class takes; where samples are of any size, with the
            keyword `size`.
        size: of a sample, and which others there may be; None where there is one.
        is_of_images: whether the size of a sample is the side of an image.
    """

    make: Callable[..., Batch]
    size: SampleSize | None = None
    is_of_images: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """What models are trained for.

    Attributes:
        table: of the classes by configuration, `MODEL_FOR_…_MAPPING`.
        batches: of a head.
        main_inputs: what such a class may read.
        ending: of the names of classes that no table has.
        asks_for_loss: whether a class computes its loss only where it is asked to.
        accepts: whether it is for a class, and that for a configuration.
    """

    table: str
    batches: Callable[[Head], Batches]
    main_inputs: tuple[str, ...] = ("input_ids",)
    accepts: Callable[[Any, Any], bool] = lambda _model_class, _config: True
    asks_for_loss: bool = False
    ending: str = ""

    def classes(self, transformers: Any, config: Any) -> tuple[type[nn.Module], ...]:
        """Those of a configuration that read a main input of the task, the usual one first."""
        every = classes_in(table_of(transformers, self.table), config)
        if self.ending:
            name = type(config).__name__.removesuffix("Config") + self.ending
            every = (*every, *filter(None, [getattr(transformers, name, None)]))
        return tuple(
            each for each in every if main_input_of(each) in self.main_inputs and self.accepts(each, config)
        )


def main_input_of(model_class: Any) -> str:
    """The argument that a class reads above all; of several, the first."""
    named: Any = model_class.main_input_name
    return str(named[0] if isinstance(named, list) else named)


@dataclass(frozen=True, slots=True)
class Head:
    """A class of models, what it is trained for, and its configuration.

    Attributes:
        image_sides: height and width of images, where the user said them.
    """

    model_class: type[nn.Module]
    task: Task
    config: Any
    image_sides: tuple[int, int] | None = None

    def takes(self, name: str) -> bool:
        """Whether the class's forward pass names such an argument."""
        return takes(self.model_class, name)

    @property
    def main_input(self) -> str:
        """The argument that the class reads above all."""
        return main_input_of(self.model_class)

    @property
    def wanted(self) -> str:
        """The name of the class, for sentences."""
        return self.model_class.__name__

    @property
    def needed(self) -> tuple[str, ...]:
        """The arguments without which the class cannot be called."""
        _self, *rest = inspect.signature(self.model_class.forward).parameters.values()
        return tuple(
            each.name for each in rest
            if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
        )  # fmt: skip


def takes(model_class: type[nn.Module], name: str) -> bool:
    """Whether the forward pass of a class names such an argument."""
    return name in inspect.signature(model_class.forward).parameters


def table_of(transformers: Any, name: str) -> Any:
    """A table of classes by configuration; empty where this release has none."""
    return getattr(transformers, f"MODEL_FOR_{name}_MAPPING", {})


def classes_in(table: Any, config: Any) -> tuple[Any, ...]:
    """Those that a table of transformers has for a configuration."""
    found = table.get(type(config), ())
    return tuple(found) if isinstance(found, list | tuple) else (found,)
