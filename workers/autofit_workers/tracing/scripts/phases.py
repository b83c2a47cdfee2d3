"""Divides a script's run into phases, such as forward, optimizer and checkpoint.

input        the batch, and whatever is in no other phase
forward, backward, optimizer    those of a step
evaluation   passes of a model that is trained, in its evaluation mode: without gradients, or after others
generation   passes without gradients that a function named `generate` makes, and those that follow
checkpoint   from the first save after a step, or from the `state_dict` that is saved
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from autofit_workers.scripts.follower import StepKind
from autofit_workers.scripts.kept import KeptIn
from autofit_workers.spec.trace import Category
from autofit_workers.tracing.recording.owners import gradients, owned, states
from autofit_workers.tracing.recording.recorder import Recorder
from autofit_workers.tracing.recording.step_ends import StepEnds
from autofit_workers.tracing.scripts.keepers import keepers

_BETWEEN_STEPS = ("input", "evaluation", "generation")


class PhaseMarks:
    """Marks the phases of a script's steps in the trace, and categorizes its allocations.

    Attributes:
        trains: whether the script has an optimizer: without one no pass is an evaluation.
        more_tells: whether more steps than a given number would tell more of other things than memory.
        step_ends: where steps end, for each kind of step.
        kept: the lines at which the script puts values into containers.
        keepers: for lines that allocate what grows, the lines that keep it.
    """

    def __init__(self, recorder: Recorder, *, names: bool) -> None:
        self._recorder = recorder
        self._names = names
        self._number = 1
        self._phase = "model"
        self.step_ends = {kind: StepEnds(recorder, self._find_keepers) for kind in StepKind}
        self.kept = KeptIn()
        self.keepers: dict[str, str] = {}
        self._sought: set[str] = set()  # lines whose keepers were looked for
        self.trains: Callable[[], bool] = lambda: False
        self.more_tells: Callable[[int], bool] = lambda _num_steps: False
        self._state_taken: int | None = None  # where the state of a model was asked for last
        self._num_open_steps = 0  # of optimizers
        self._trained: set[int] = set()  # models that were given batches to train on
        self._models: dict[int, torch.nn.Module] = {}
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        recorder.mark("model")
        recorder.category = Category.INPUT

    def forward(self, module: torch.nn.Module) -> None:
        if id(module) not in self._models:
            self._models[id(module)] = module
            self._recorder.recategorize((*module.parameters(), *module.buffers()), Category.PARAMETER)
        if self._phase == "model":
            self._begin("input", Category.INPUT)
        phase = self._phase_of(module)
        if self._phase != phase:
            self._begin(phase, Category.ACTIVATION)

    def _phase_of(self, module: torch.nn.Module) -> str:
        if not self.trains():
            return "forward"
        if torch.is_grad_enabled():
            if module.training:
                self._trained.add(id(module))
            return "forward" if module.training or id(module) not in self._trained else "evaluation"
        if _is_generating():
            return "generation"
        if not module.training and any(each.requires_grad for each in module.parameters()):
            return "evaluation"
        # What else is run without gradients belongs to what it is run for.
        return self._phase if self._phase in ("evaluation", "generation") else "forward"

    @contextmanager
    def noting_states(self) -> Iterator[None]:
        """Context that notes where a model's `state_dict` is called: a checkpoint begins there."""
        kind: Any = torch.nn.Module
        state_dict = kind.state_dict

        def noted(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._phase in _BETWEEN_STEPS and self._state_taken is None:
                self._state_taken = self._recorder.position
            return state_dict(module, *args, **kwargs)

        kind.state_dict = noted
        try:
            yield
        finally:
            kind.state_dict = state_dict

    @property
    def is_evaluating(self) -> bool:
        return self._phase == "evaluation"

    def saving(self) -> None:
        if self._phase in _BETWEEN_STEPS and self._optimizers:
            self._begin("checkpoint", Category.OTHER, self._state_taken)

    def backward(self) -> None:
        if self._phase != "backward":
            self._begin("backward", Category.OTHER)

    def after_backward(self) -> None:
        if self._num_open_steps:
            self._begin("optimizer", Category.OTHER)

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        self._num_open_steps += 1
        self._recorder.recategorize(gradients(_parameters(optimizer)), Category.GRADIENT)
        self._begin("optimizer", Category.OTHER)

    def stepped(self, optimizer: torch.optim.Optimizer | None) -> None:
        if optimizer is None:
            self._number += 1
            self._begin("input", Category.INPUT)
            return
        self._num_open_steps -= 1
        self._optimizers[id(optimizer)] = optimizer
        parameters = _parameters(optimizer)
        self._recorder.recategorize(parameters, Category.PARAMETER)
        self._recorder.recategorize(gradients(parameters), Category.GRADIENT)
        self._recorder.recategorize(states(optimizer), Category.OPTIMIZER_STATE)
        if self._names:
            for each in self._optimizers.values():
                for model in self._models.values():
                    self._recorder.name(owned(model, each))
        if not self._num_open_steps:
            self._number += 1
            self._begin("input", Category.INPUT)

    def counted(self, kind: StepKind) -> None:
        self.kept.is_on = True
        self.step_ends[kind].add()

    def wants_more(self, kind: StepKind) -> bool:
        ends = self.step_ends[kind]
        return self.more_tells(len(ends.positions)) or ends.want_more()

    def _find_keepers(self, sources: Collection[str]) -> None:
        if new := set(sources) - self._sought:
            self._sought |= new
            with self._recorder.work.paused():
                self.keepers |= keepers(self._recorder, self.kept, new)

    def ended(self) -> None:
        self._recorder.close()
        if self._recorder.marks[-1].name.endswith(" input"):  # of a step that does not come
            self._recorder.marks.pop()

    def _begin(self, phase: str, category: Category, position: int | None = None) -> None:
        self._phase = phase
        self._state_taken = None
        self._recorder.mark(f"step {self._number} {phase}", position)
        self._recorder.category = category


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_generating() -> bool:
    """Whether a function named `generate` is running, as libraries name text generation."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code.co_name == "generate":
            return True
        frame = frame.f_back
    return False
