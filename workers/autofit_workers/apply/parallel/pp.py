"""Pipeline parallelism: ranks have stages of a model, run by a schedule of `torch.distributed.pipelining`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autofit_workers.apply.parallel.model_copies import nowhere
from autofit_workers.apply.parallel.pipeline_plans import WRITE_IT_SO, Plan, plan_of
from autofit_workers.apply.parallel.strategy import Placement, Strategy
from autofit_workers.spec.errors import InapplicableError, text_of
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.parallel_kinds import PP
from autofit_workers.spec.pipeline import Pipeline
from autofit_workers.spec.protocol import TrialSpec
from autofit_workers.workload.step import AutocastFactory, PhaseHook, ScheduledModel, no_phase
from autofit_workers.workload.workload import Workload


class PipelineRanks(Strategy):
    """Pipeline parallelism: ranks run stages of a model on the microbatches of a step."""

    def require_applicable(self, spec: TrialSpec, workload: Workload) -> None:
        _require_applicable(self.parallel, spec.knobs, workload)

    def cut(self, model: nn.Module, rank: int, workload: Workload) -> nn.Module:
        assert self.parallel.pipeline is not None
        return _cut(model, self.parallel.pipeline, self.parallel.place(rank)[PP], workload)

    def taken(self, model: nn.Module, placement: Placement) -> nn.Module:
        assert isinstance(model, Pipelined)
        model.group = placement.mesh[PP].get_group()
        return model

    def notes(self, model: nn.Module, _precision: str) -> tuple[str, ...]:
        assert isinstance(model, Pipelined)
        return model.notes()


STRATEGY = PipelineRanks


def _require_applicable(parallel: object, knobs: Knobs, workload: Workload) -> None:
    """Raises `InapplicableError` for knobs and workload steps that a pipeline's schedule does not take."""
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


def _cut(model: nn.Module, pipeline: Pipeline, rank: int, workload: Workload) -> Pipelined:
    """Pipeline stages of `model` that one rank runs, as one module without the other ranks' stages.

    Args:
        model: the whole model.
        pipeline: numbers of ranks and stages, and the schedule.
        rank: number of the rank in the pipeline.
        workload: workload whose loss the last stage computes.

    Raises:
        InapplicableError: the model has no plan for a pipeline, or fewer blocks than there are stages.
    """
    plan = plan_of(model)
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
    """One rank's pipeline stages as one module, with the schedule that runs them.

    Args:
        stages: the rank's stages, by number.
        plan: the plan by which the stages were cut.
        pipeline: numbers of ranks, stages and microbatches, and the schedule.
        workload: workload whose loss is computed from the output of the last stage.

    Attributes:
        pipeline: the pipeline that was given.
        group: the process group of the pipeline; None for all ranks.
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
        self._schedules: dict[bool, Any] = {}  # by whether backward runs
        self._phase: PhaseHook = no_phase
        self._autocast: AutocastFactory | None = None
        self.group: Any = None
        kept = {number: plan.of_stage(number, pipeline.num_stages) for number in stages}
        self._blocks = {number: [plan.blocks[place] for place in places] for number, places in kept.items()}

    @property
    def num_microbatches(self) -> int:
        return self.pipeline.num_microbatches

    @property
    def parts(self) -> tuple[tuple[nn.Module, Sequence[nn.Module]], ...]:
        """Stages of this rank, each with its repeated blocks."""
        return tuple(zip(self.children(), self._blocks.values(), strict=True))

    def notes(self) -> tuple[str, ...]:
        """Sentences for the user on how the model was cut into stages and scheduled."""
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
        """Schedule of `torch.distributed.pipelining` for this rank's stages, for inputs of some shape."""
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
            raise InapplicableError(f"--parallel pp: the batch is no tensor: {WRITE_IT_SO}")
        num_rows = {each.shape[0] for each in tensors if isinstance(each, Tensor)}
        if len(num_rows) != 1 or next(iter(num_rows)) % self.num_microbatches:
            raise InapplicableError(
                f"--parallel pp: the tensors of a batch have {sorted(num_rows)} rows and cannot be cut into "
                f"{self.num_microbatches} microbatches: choose a batch layout with a row for each sample"
            )


@functools.cache
def _stage_class() -> Any:
    """Subclass of PyTorch's `PipelineStage` that runs hooks around forward and before backward."""
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


def _as_exchanged(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    is_cast = dtype is not None and tensor.dtype.is_floating_point
    return nowhere(tuple(tensor.shape), dtype) if is_cast and dtype is not None else tensor
