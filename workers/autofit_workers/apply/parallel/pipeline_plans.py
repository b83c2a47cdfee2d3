"""Plans that cut a model into the stages of a pipeline, and the calls of those stages.

    stage 0     the modules before the repeated blocks, and the first blocks
    stage …     the next blocks
    last stage  the last blocks, the modules after them, and the loss

A module that a stage lacks is an identity in its model (a model of transformers), or None (a model with
its own `pp_plan`), so names of modules and numbers of blocks stay. Each stage has equally many blocks;
if that is not possible, the first stages have one more.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from autofit_workers.apply.parallel.model_copies import LeftOut, nowhere, with_parts, without_data
from autofit_workers.pytorch.dispatch import disable_current_modes
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.workload.libraries.transformers_releases import text_config_of
from autofit_workers.workload.workload import Workload

_PLAN = "pp_plan"
WRITE_IT_SO = (
    "let make_batch make a tensor, and the loss call the model with a tensor made of it, or use fsdp:N"
)


class Call(ABC):
    """Base of calling conventions of a model cut into stages: arguments, exchanged tensors and loss."""

    @abstractmethod
    def parts(self, workload: Workload, batch: Any) -> tuple[Tensor, dict[str, Any], Any]:
        """Arguments for a pipeline's stages that a batch gives.

        Returns:
            The first stage's input; keyword arguments for every stage; and the target of the loss.
        """

    @abstractmethod
    def shapes(self, number: int, num_stages: int, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Shapes that a stage takes and returns for one microbatch, as tensors on the device `meta`.

        Args:
            number: number of the stage, from 0.
            num_stages: number of stages.
            inputs: the first stage's input for one microbatch.
        """

    @abstractmethod
    def loss(self, workload: Workload, output: Any, target: Any) -> Tensor:
        """Loss of a microbatch, from the last stage's output.

        Args:
            workload: workload whose loss is computed.
            output: output of the last stage.
            target: target of the loss for the microbatch, from `parts`.
        """


class Plan(ABC):
    """Base of the plans that cut a model into pipeline stages.

    Attributes:
        blocks: the repeated blocks, which the stages divide.
        call: calling convention of the model's stages.
    """

    blocks: Sequence[nn.Module]
    call: Call

    @abstractmethod
    def stage(self, number: int, num_stages: int) -> nn.Module:
        """Copy of the model that has only the parts of stage `number`, counted from 0, of `num_stages`."""

    def of_stage(self, number: int, num_stages: int) -> range:
        """Indices of the repeated blocks that stage `number`, counted from 0, runs."""
        each, more = divmod(len(self.blocks), num_stages)
        start = number * each + min(number, more)
        return range(start, start + each + (number < more))

    def in_words(self, number: int, num_stages: int) -> str:
        kept = self.of_stage(number, num_stages)
        return f"blocks {kept[0]} to {kept[-1]} of {len(self.blocks)}"


def plan_of(model: nn.Module) -> Plan:
    """Plan by which a model is cut into pipeline stages, from transformers or from the model's `pp_plan`.

    Raises:
        InapplicableError: the model has no plan.
    """
    if hasattr(model, "supports_pp_plan"):
        return _of_transformers(model)
    own = getattr(model, _PLAN, None)
    if own:
        return _OwnPlan(model, tuple(own))
    raise InapplicableError(
        f"--parallel pp: {type(model).__name__} has no plan for it: give the model an attribute {_PLAN}, the "
        "names of its parts in their order, with a forward that leaves out those that are None; or use fsdp:N"
    )


class _Passed(nn.Module):
    """Identity in place of a repeated block that another pipeline stage runs."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        for name, value in vars(block).items():  # a model reads them, such as a block's attention
            if isinstance(value, str | int | float | bool) and not name.startswith("_"):
                setattr(self, name, value)

    def forward(self, hidden: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        return hidden


def _of_transformers(model: Any) -> Plan:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    listed = [name for name in model.pp_plan if name in names]
    if not model.supports_pp_plan or len(listed) != 1:
        raise InapplicableError(
            f"--parallel pp: transformers has no plan for {type(model).__name__}: use fsdp:N"
        )
    return _TransformersPlan(model, listed[0])


class _TransformersPlan(Plan):
    """Plan for a model of transformers: the modules before and after the list of layers, in their order."""

    def __init__(self, model: Any, layers: str) -> None:
        self._model = model
        self._layers = layers
        self.blocks = list(model.get_submodule(layers))
        base = f"{model.base_model_prefix}."
        own = [name for name in model.pp_plan if name.startswith(base)]
        place = own.index(layers)
        self._before = own[:place]
        self._after = [*own[place + 1 :], *(name for name in model.pp_plan if not name.startswith(base))]
        self.call = _TransformersCall(model)

    def stage(self, number: int, num_stages: int) -> nn.Module:
        is_first, is_last = number == 0, number == num_stages - 1
        kept = self.of_stage(number, num_stages)
        left_out = [] if is_first else list(self._before)
        left_out += [] if is_last else self._after
        parts: dict[str, nn.Module | None] = {
            f"{self._layers}.{place}": _Passed(block)
            for place, block in enumerate(self.blocks)
            if place not in kept
        }
        parts |= {name: LeftOut() for name in left_out}
        stage: Any = with_parts(self._model, parts)
        run = _run_whole if is_last else _run_base
        stage.forward = functools.partial(run, stage, "input_ids" if is_first else "inputs_embeds")
        return stage  # type: ignore[no-any-return]


def _run_base(model: Any, takes: str, hidden: Tensor, **others: Any) -> Any:
    return model.base_model(**{takes: hidden}, **others).last_hidden_state


def _run_whole(model: Any, takes: str, hidden: Tensor, **others: Any) -> Any:
    return type(model).forward(model, **{takes: hidden}, **others).logits


class _TransformersCall(Call):
    """Calling convention of a transformers model, which computes its own loss if a batch has labels."""

    def __init__(self, model: Any) -> None:
        self._config = text_config_of(model.config)
        self._dtype = model.dtype
        self._loss_function = model.loss_function
        self._has_labels = False

    def parts(self, workload: Workload, batch: Any) -> tuple[Tensor, dict[str, Any], Any]:
        args, named = _called_with(workload, batch)
        given = {**dict(zip(("input_ids",), args, strict=False)), **named}
        inputs, labels = given.pop("input_ids", None), given.pop("labels", None)
        self._has_labels = labels is not None
        if not isinstance(inputs, Tensor):
            raise InapplicableError(f"--parallel pp: the model is not called with input_ids: {WRITE_IT_SO}")
        return inputs, given, labels if self._has_labels else batch

    def shapes(self, number: int, num_stages: int, inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = nowhere((*inputs.shape, self._config.hidden_size), self._dtype)
        logits = nowhere((*inputs.shape, self._config.vocab_size), self._dtype)
        tokens = nowhere(tuple(inputs.shape), inputs.dtype)
        return tokens if number == 0 else hidden, logits if number == num_stages - 1 else hidden

    def loss(self, workload: Workload, output: Any, target: Any) -> Tensor:
        from transformers.modeling_outputs import CausalLMOutput

        if self._has_labels:
            loss: Tensor = self._loss_function(
                logits=output, labels=target, vocab_size=self._config.vocab_size
            )
            return loss
        return workload.loss(lambda *_args, **_kwargs: CausalLMOutput(logits=output), target)  # type: ignore[arg-type]


class _OwnPlan(Plan):
    """Plan made of a model's own `pp_plan`: names of the model's parts, one of which holds the blocks.

    A part named both before and after the blocks is in the first and in the last stage.
    """

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        lists = [
            name for name in names if isinstance(model.get_submodule(name), nn.ModuleList | nn.Sequential)
        ]
        if len(lists) != 1:
            raise InapplicableError(
                f"--parallel pp: {_PLAN} of {type(model).__name__} has to name one nn.ModuleList or "
                "nn.Sequential of blocks, and the parts before and after it"
            )
        self._model = model
        self._list = lists[0]
        place = names.index(self._list)
        self._before, self._after = names[:place], names[place + 1 :]
        self.blocks = list(model.get_submodule(self._list).children())
        self.call = _OwnCall(model, self._list)

    def stage(self, number: int, num_stages: int) -> nn.Module:
        kept = self.of_stage(number, num_stages)
        here = {
            *(self._before if number == 0 else ()),
            *(self._after if number == num_stages - 1 else ()),
        }
        parts: dict[str, nn.Module | None] = {
            f"{self._list}.{place}": _Passed(block)
            for place, block in enumerate(self.blocks)
            if place not in kept
        }
        parts |= {name: None for name in (*self._before, *self._after) if name not in here}
        return with_parts(self._model, parts)


class _Called(Exception):  # noqa: N818 - no error: what a loss calls its model with
    def __init__(self, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        super().__init__()
        self.args_of_model, self.named = args, named


def _called_with(workload: Workload, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments that the loss of a workload calls its model with."""

    def capture(*args: Any, **named: Any) -> NoReturn:
        raise _Called(args, named)

    try:
        workload.loss(capture, batch)  # type: ignore[arg-type]
    except _Called as called:
        return called.args_of_model, called.named
    raise InapplicableError(f"--parallel pp: the loss does not call the model: {WRITE_IT_SO}")


class _OwnCall(Call):
    """Calling convention of a model with its own `pp_plan`, which the loss calls with one tensor."""

    def __init__(self, model: nn.Module, blocks: str) -> None:
        self._without_data = without_data(model)
        self._blocks = blocks

    def parts(self, workload: Workload, batch: Any) -> tuple[Tensor, dict[str, Any], Any]:
        args, named = _called_with(workload, batch)
        given = (*args, *named.values())
        if len(given) != 1 or not isinstance(given[0], Tensor):
            raise InapplicableError(f"--parallel pp: the model takes more than a tensor: {WRITE_IT_SO}")
        return given[0], {}, batch

    def shapes(self, number: int, num_stages: int, inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden, outputs = _shapes_nowhere(self._without_data, self._blocks, inputs)
        tokens = nowhere(tuple(inputs.shape), inputs.dtype)
        return tokens if number == 0 else hidden, outputs if number == num_stages - 1 else hidden

    def loss(self, workload: Workload, output: Any, target: Any) -> Tensor:
        return workload.loss(lambda *_args, **_kwargs: output, target)  # type: ignore[arg-type]


def _shapes_nowhere(model: nn.Module, blocks: str, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Input of a model's first block and output of the model, as tensors on the device `meta`."""
    taken: list[Tensor] = []
    first = next(model.get_submodule(blocks).children())
    handle = first.register_forward_pre_hook(lambda _module, args: taken.append(args[0]))
    try:
        with disable_current_modes(), torch.no_grad():
            output = model(torch.empty(inputs.shape, dtype=inputs.dtype, device="meta"))
    finally:
        handle.remove()
    return nowhere(tuple(taken[0].shape), taken[0].dtype), nowhere(tuple(output.shape), output.dtype)
