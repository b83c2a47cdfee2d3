"""Tasks of transformers' models, and heads: model classes with their task and configuration."""

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
    """Batches that a model class is trained on: the function that makes them, and the size of their samples.

    Attributes:
        make: makes the class's arguments from batch size and device; takes the keyword `size` if samples
            may be of any size.
        size: size of a sample, such as a number of tokens, with its rounding multiple and maximum; None if
            only one size is possible.
        is_of_images: whether the size of a sample is the side of an image in pixels.
    """

    make: Callable[..., Batch]
    size: SampleSize | None = None
    is_of_images: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """Task that models of transformers are trained for, such as text classification.

    Attributes:
        table: name of transformers' mapping from configurations to classes, the `…` of `MODEL_FOR_…_MAPPING`.
        batches: returns the batches for a model class of the task.
        main_inputs: arguments one of which has to be the main input of a class of the task.
        ending: ending of the names of further classes that are in no such mapping; empty for none.
        asks_for_loss: whether a class computes its loss only if asked to.
        accepts: tells whether a model class with a configuration suits the task.
    """

    table: str
    batches: Callable[[Head], Batches]
    main_inputs: tuple[str, ...] = ("input_ids",)
    accepts: Callable[[Any, Any], bool] = lambda _model_class, _config: True
    asks_for_loss: bool = False
    ending: str = ""

    def classes(self, transformers: Any, config: Any) -> tuple[type[nn.Module], ...]:
        """Model classes of a configuration whose main input fits the task, the usual class first."""
        every = classes_in(table_of(transformers, self.table), config)
        if self.ending:
            name = type(config).__name__.removesuffix("Config") + self.ending
            every = (*every, *filter(None, [getattr(transformers, name, None)]))
        return tuple(
            each for each in every if main_input_of(each) in self.main_inputs and self.accepts(each, config)
        )


def main_input_of(model_class: Any) -> str:
    """Name of the main input of a model class; the first if it has several."""
    named: Any = model_class.main_input_name
    return str(named[0] if isinstance(named, list) else named)


@dataclass(frozen=True, slots=True)
class Head:
    """Model class of transformers with its task and its configuration.

    The class is the base model with an output layer (the head) for the task.

    Attributes:
        model_class: the class.
        task: the task that it is trained for.
        config: configuration that the model is built from.
        image_sides: height and width of images in pixels if the user gave them; else None.
    """

    model_class: type[nn.Module]
    task: Task
    config: Any
    image_sides: tuple[int, int] | None = None

    def takes(self, name: str) -> bool:
        """Whether the forward pass of the head's class has an argument `name`."""
        return takes(self.model_class, name)

    @property
    def main_input(self) -> str:
        """Name of the main input of the head's class."""
        return main_input_of(self.model_class)

    @property
    def wanted(self) -> str:
        """Name of the head's class, for messages."""
        return self.model_class.__name__

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the arguments that the forward pass of the head's class requires."""
        _self, *rest = inspect.signature(self.model_class.forward).parameters.values()
        return tuple(
            each.name for each in rest
            if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
        )  # fmt: skip


def takes(model_class: type[nn.Module], name: str) -> bool:
    """Whether the forward pass of a class has an argument `name`."""
    return name in inspect.signature(model_class.forward).parameters


def table_of(transformers: Any, name: str) -> Any:
    """Mapping `MODEL_FOR_…_MAPPING` of transformers; empty if the installed release has none of that name."""
    return getattr(transformers, f"MODEL_FOR_{name}_MAPPING", {})


def classes_in(table: Any, config: Any) -> tuple[Any, ...]:
    """Model classes that a `MODEL_FOR_…_MAPPING` of transformers has for a configuration."""
    found = table.get(type(config), ())
    return tuple(found) if isinstance(found, list | tuple) else (found,)
