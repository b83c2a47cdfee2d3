"""Cuts a model into the stages of a pipeline, which `torch.distributed.pipelining` runs.

    stage 0     what comes before the repeated blocks, and the first of them
    stage …     the next blocks
    last stage  the last blocks, what comes after them, and the loss

What a stage does not have is an identity in its model (a model of transformers), or None (a model with a
`pp_plan` of its own), so that names of modules and numbers of blocks stay. Blocks are dealt out evenly; the
first stages have one more where they do not divide.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from workers.apply.model_copies import nowhere, with_parts, without_data
from workers.errors import InapplicableError, text_of
from workers.knobs import Knobs
from workers.pipeline import Pipeline
from workers.workload.step import AutocastFactory, PhaseHook, ScheduledModel, no_phase
from workers.workload.workload import Workload

_PLAN = "pp_plan"
_WRITE_IT_SO = (
    "let make_batch make a tensor, and the loss call the model with a tensor made of it, or use fsdp:N"
)


def require_applicable(parallel: object, knobs: Knobs, workload: Workload) -> None:
    """Refuses what a schedule does not do.

    Raises:
        InapplicableError: a knob, or a step of the workload's own.
    """
    defaults = Knobs()
    wants = (
        "a step of the workload's own" if workload.step is not None
        else f"--precision {knobs.precision}, whose loss is scaled" if knobs.precision == "amp-fp16"
        else "--optimizer-in-backward" if knobs.optimizer_in_backward
        else f"--checkpointing {knobs.checkpointing}, which joins blocks"
        if knobs.checkpointing.startswith("every:")
        else f"--loss {knobs.loss}" if knobs.loss != defaults.loss
        else "--adapter" if knobs.adapter is not None
        else "--compile" if knobs.compile
        else None
    )  # fmt: skip
    if wants is not None:
        raise InapplicableError(
            f"--parallel {parallel} cannot be combined with {wants}: the schedule of a pipeline runs forward "
            "and backward of each microbatch itself; drop one of the two"
        )
    if knobs.accumulates:
        raise InapplicableError(
            f"--parallel {parallel} accumulates the gradients of its microbatches: give more of those, as in "
            "pp:4+1f1b+8, in place of --grad-accumulation"
        )


def cut(model: nn.Module, pipeline: Pipeline, rank: int, workload: Workload) -> Pipelined:
    """The stages of a rank of a pipeline's group; the rest of the model is left to others.

    Raises:
        InapplicableError: the model says not how it is cut, or has fewer blocks than there are stages.
    """
    plan = _plan_of(model)
    num_blocks = len(plan.blocks)
    if num_blocks < pipeline.num_stages:
        per_rank = pipeline.num_stages // pipeline.num_ranks
        fine = f"pp:{num_blocks // per_rank}" if num_blocks >= 2 * per_rank else "fsdp:N"
        raise InapplicableError(
            f"--parallel pp:{pipeline.num_ranks}{pipeline} has {pipeline.num_stages} stages, and the model "
            f"{num_blocks} repeated blocks to deal out: use {fine}"
        )
    stages = {number: plan.stage(number, pipeline.num_stages) for number in pipeline.stages_of(rank)}
    return Pipelined(stages, plan, pipeline, workload)


class Pipelined(ScheduledModel):
    """A rank's stages, and the schedule that runs them.

    Args:
        stages: by number.
        plan: of the model that they were cut from.
        workload: whose loss is computed from the output of the last stage.

    Attributes:
        pipeline: as given.
        group: the process group of the pipeline; None for all ranks.
        casts_to: what stages compute in, where it is not the type of their parameters.
    """

    def __init__(
        self, stages: Mapping[int, nn.Module], plan: Plan, pipeline: Pipeline, workload: Workload
    ) -> None:
        super().__init__()
        for number, stage in stages.items():
            self.add_module(f"stage{number}", stage)
        self.pipeline = pipeline
        self._words = {number: plan.in_words(number, pipeline.num_stages) for number in stages}
        self._numbers = tuple(stages)
        self._call = plan.call
        self._workload = workload
        self._schedules: dict[bool, Any] = {}  # by whether they run backward
        self._phase: PhaseHook = no_phase
        self._autocast: AutocastFactory | None = None
        self.group: Any = None
        self.casts_to: torch.dtype | None = None
        kept = {number: plan.of_stage(number, pipeline.num_stages) for number in stages}
        self._blocks = {number: [plan.blocks[place] for place in places] for number, places in kept.items()}

    @property
    def num_microbatches(self) -> int:
        return self.pipeline.num_microbatches

    @property
    def parts(self) -> tuple[tuple[nn.Module, Sequence[nn.Module]], ...]:
        """Each stage, with its blocks."""
        return tuple(zip(self.children(), self._blocks.values(), strict=True))

    def notes(self) -> tuple[str, ...]:
        """How the model was cut, in sentences for whoever reads the answer."""
        stages = " and ".join(f"stage {number} with {self._words[number]}" for number in self._numbers)
        return (
            f"{stages}; {self.pipeline.num_stages} stages in all",
            f"{self.pipeline.class_name} of torch.distributed.pipelining with {self.num_microbatches} "
            "microbatches, told the shapes that stages exchange; outputs are not kept (return_outputs=False)",
        )

    def forward_backward(self, batch: Any, *, autocast: AutocastFactory, phase: PhaseHook) -> None:
        """Runs all microbatches of a batch forward and backward.

        Raises:
            InapplicableError: the batch cannot be cut into microbatches.
        """
        self._run(batch, autocast, phase, with_backward=True)

    def infer(self, batch: Any, *, autocast: AutocastFactory) -> None:
        """Runs all microbatches of a batch forward."""
        self._run(batch, autocast, no_phase, with_backward=False)

    def _run(self, batch: Any, autocast: AutocastFactory, phase: PhaseHook, *, with_backward: bool) -> None:
        inputs, others, target = self._call.parts(self._workload, batch)
        self._require_divided(inputs, *others.values(), target)
        self._phase, self._autocast = phase, autocast
        if with_backward not in self._schedules:
            self._schedules[with_backward] = self._scheduled(inputs, with_backward=with_backward)
        is_last = self.pipeline.num_stages - 1 in self._numbers
        options: dict[str, Any] = {"return_outputs": False} if with_backward else {}
        if with_backward and is_last:
            options |= {"target": target, "losses": []}
        args = (inputs,) if 0 in self._numbers else ()
        self._schedules[with_backward].step(*args, **others, **options)

    def _scheduled(self, inputs: Tensor, *, with_backward: bool) -> Any:
        from torch.distributed import pipelining

        num_rows = inputs.shape[0] // self.num_microbatches
        stages = []
        for number, module in zip(self._numbers, self.children(), strict=True):
            taken, given = self._call.shapes(number, self.pipeline.num_stages, inputs[:num_rows])
            stage = _stage_class()(
                module,
                number,
                self.pipeline.num_stages,
                inputs.device,
                input_args=_as_exchanged(taken, self.casts_to),
                output_args=_as_exchanged(given, self.casts_to),
                group=self.group,
            )
            stage.around_forward = self._around_forward
            stage.before_backward = lambda: self._phase("backward")
            stages.append(stage)
        schedule = getattr(pipelining, self.pipeline.class_name)
        loss_fn = self._loss if with_backward else None
        try:
            single = issubclass(schedule, pipelining.schedules.PipelineScheduleSingle)
            return schedule(stages[0] if single else stages, self.num_microbatches, loss_fn=loss_fn)
        except ValueError as error:
            raise InapplicableError(
                f"--parallel pp:{self.pipeline.num_ranks}{self.pipeline}: {text_of(error)}"
            ) from error

    def _around_forward(self) -> Any:
        assert self._autocast is not None
        self._phase("forward")
        return self._autocast()

    def _loss(self, output: Any, target: Any) -> Tensor:
        assert self._autocast is not None
        with self._autocast():
            return self._call.loss(self._workload, output, target)

    def _require_divided(self, *tensors: Any) -> None:
        if not isinstance(tensors[-1], Tensor):
            raise InapplicableError(f"--parallel pp: the batch is no tensor: {_WRITE_IT_SO}")
        num_rows = {each.shape[0] for each in tensors if isinstance(each, Tensor)}
        if len(num_rows) != 1 or next(iter(num_rows)) % self.num_microbatches:
            raise InapplicableError(
                f"--parallel pp: the tensors of a batch have {sorted(num_rows)} rows and cannot be cut into "
                f"{self.num_microbatches} microbatches: choose a batch layout with a row for each sample"
            )


@functools.cache
def _stage_class() -> Any:
    """PyTorch's stage, which says when it runs forward and backward."""
    from torch.distributed.pipelining import PipelineStage

    base: Any = PipelineStage

    class Stage(base):  # type: ignore[misc]
        around_forward: Callable[[], Any]
        before_backward: Callable[[], None]

        def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
            with self.around_forward():
                return super().forward_maybe_with_nosync(*args, **kwargs)

        def backward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
            self.before_backward()
            return super().backward_maybe_with_nosync(*args, **kwargs)

    return Stage


class Call(ABC):
    """How a kind of models is called in stages."""

    @abstractmethod
    def parts(self, workload: Workload, batch: Any) -> tuple[Tensor, dict[str, Any], Any]:
        """What the first stage is given, what all of them are, and what the loss is computed from."""

    @abstractmethod
    def shapes(self, number: int, num_stages: int, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """What a stage takes and gives of one microbatch, as tensors that are nowhere."""

    @abstractmethod
    def loss(self, workload: Workload, output: Any, target: Any) -> Tensor:
        """The loss of a microbatch."""


class Plan(ABC):
    """How a model is cut.

    Attributes:
        blocks: the repeated blocks that are dealt out.
        call: how its stages are called.
    """

    blocks: Sequence[nn.Module]
    call: Call

    @abstractmethod
    def stage(self, number: int, num_stages: int) -> nn.Module:
        """The model with the parts of one stage."""

    def of_stage(self, number: int, num_stages: int) -> range:
        """The blocks of a stage."""
        each, more = divmod(len(self.blocks), num_stages)
        start = number * each + min(number, more)
        return range(start, start + each + (number < more))

    def in_words(self, number: int, num_stages: int) -> str:
        kept = self.of_stage(number, num_stages)
        return f"blocks {kept[0]} to {kept[-1]} of {len(self.blocks)}"


def _plan_of(model: nn.Module) -> Plan:
    if hasattr(model, "supports_pp_plan"):
        return _of_transformers(model)
    own = getattr(model, _PLAN, None)
    if own:
        return _OwnPlan(model, tuple(own))
    raise InapplicableError(
        f"--parallel pp: {type(model).__name__} has no plan for it: give the model an attribute {_PLAN}, the "
        "names of its parts in their order, with a forward that leaves out those that are None; or use fsdp:N"
    )


class LeftOut(nn.Identity):
    """In the place of what comes before or after the blocks, and is another stage's."""


class _Passed(nn.Module):
    """In the place of a block that another stage has."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        for name, value in vars(block).items():  # what a model asks its blocks for, such as their attention
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
    """By transformers' own plan: the parts before and after the list of layers, in their order."""

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
    """A model of transformers; where the batch has labels, its own function makes the loss of them."""

    def __init__(self, model: Any) -> None:
        self._config = model.config.get_text_config()
        self._dtype = model.dtype
        self._loss_function = model.loss_function
        self._has_labels = False

    def parts(self, workload: Workload, batch: Any) -> tuple[Tensor, dict[str, Any], Any]:
        args, named = _called_with(workload, batch)
        given = {**dict(zip(("input_ids",), args, strict=False)), **named}
        inputs, labels = given.pop("input_ids", None), given.pop("labels", None)
        self._has_labels = labels is not None
        if not isinstance(inputs, Tensor):
            raise InapplicableError(f"--parallel pp: the model is not called with input_ids: {_WRITE_IT_SO}")
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
    """By the names of the parts, one of which holds the blocks; one that is named twice is in both ends."""

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
    """What the loss of a workload calls its model with."""

    def capture(*args: Any, **named: Any) -> NoReturn:
        raise _Called(args, named)

    try:
        workload.loss(capture, batch)  # type: ignore[arg-type]
    except _Called as called:
        return called.args_of_model, called.named
    raise InapplicableError(f"--parallel pp: the loss does not call the model: {_WRITE_IT_SO}")


class _OwnCall(Call):
    """A model that its loss calls with one tensor."""

    def __init__(self, model: nn.Module, blocks: str) -> None:
        self._without_data = without_data(model)
        self._blocks = blocks

    def parts(self, workload: Workload, batch: Any) -> tuple[Tensor, dict[str, Any], Any]:
        args, named = _called_with(workload, batch)
        given = (*args, *named.values())
        if len(given) != 1 or not isinstance(given[0], Tensor):
            raise InapplicableError(f"--parallel pp: the model takes more than a tensor: {_WRITE_IT_SO}")
        return given[0], {}, batch

    def shapes(self, number: int, num_stages: int, inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden, outputs = _shapes_nowhere(self._without_data, self._blocks, inputs)
        tokens = nowhere(tuple(inputs.shape), inputs.dtype)
        return tokens if number == 0 else hidden, outputs if number == num_stages - 1 else hidden

    def loss(self, workload: Workload, output: Any, target: Any) -> Tensor:
        return workload.loss(lambda *_args, **_kwargs: output, target)  # type: ignore[arg-type]


def _shapes_nowhere(model: nn.Module, blocks: str, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """What the first block takes and the whole model gives of tensors without data."""
    taken: list[Tensor] = []
    first = next(model.get_submodule(blocks).children())
    handle = first.register_forward_pre_hook(lambda _module, args: taken.append(args[0]))
    try:
        with _disable_current_modes(), torch.no_grad():
            output = model(torch.empty(inputs.shape, dtype=inputs.dtype, device="meta"))
    finally:
        handle.remove()
    return nowhere(tuple(taken[0].shape), taken[0].dtype), nowhere(tuple(output.shape), output.dtype)


def _as_exchanged(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    is_cast = dtype is not None and tensor.dtype.is_floating_point
    return nowhere(tuple(tensor.shape), dtype) if is_cast and dtype is not None else tensor
