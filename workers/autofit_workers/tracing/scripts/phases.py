"""Divides a script's run into phases, such as forward, optimizer and checkpoint.

input        making the batch, and whatever is in no other phase
forward, backward, optimizer    the parts of a step
evaluation   passes in evaluation mode of a model that is trained: without gradients, or after training passes
generation   passes without gradients within a function named `generate`, and those that follow
checkpoint   from the first save after a step, or from the call of `state_dict` before it
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
    """Marks the phases of a script's steps in the trace, such as forward, and categorizes its allocations.

    Attributes:
        trains: returns whether the script has an optimizer; without one no pass is an evaluation.
        more_tells: called with the number of steps made; returns whether more are needed to learn something
            other than memory, such as the lengths of sequences.
        step_ends: ends of the steps, for each kind of step.
        kept: finds the lines at which the script puts values into containers.
        keepers: by source line of allocations that grow from step to step, the line that keeps them alive.
    """

    def __init__(self, recorder: Recorder, *, names: bool) -> None:
        self._recorder = recorder
        self._names = names
        self._number = 1
        self._phase = "model"
        self.step_ends = {kind: StepEnds(recorder, self._find_keepers) for kind in StepKind}
        self.kept = KeptIn()
        self.keepers: dict[str, str] = {}
        self._sought: set[str] = set()  # lines for which `keepers` was searched
        self.trains: Callable[[], bool] = lambda: False
        self.more_tells: Callable[[int], bool] = lambda _num_steps: False
        self._state_taken: int | None = None  # position of the phase's first `state_dict()`
        self._num_open_steps = 0  # optimizer steps that have begun and not ended
        self._trained: set[int] = set()  # ids of models that ran in training mode
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
        """Phase that a forward pass of a module begins: `forward`, `evaluation` or `generation`."""
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
        # Other passes without gradients belong to the phase in which they run.
        return self._phase if self._phase in ("evaluation", "generation") else "forward"

    @contextmanager
    def noting_states(self) -> Iterator[None]:
        """Context that records where a model's `state_dict` is called, as a checkpoint begins there."""
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
        """Categorizes and names the memory of an optimizer that has stepped, and begins the next step."""
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
        if self._recorder.marks[-1].name.endswith(" input"):  # of a step that was never made
            self._recorder.marks.pop()

    def _begin(self, phase: str, category: Category, position: int | None = None) -> None:
        self._phase = phase
        self._state_taken = None
        self._recorder.mark(f"step {self._number} {phase}", position)
        self._recorder.category = category


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_generating() -> bool:
    """Whether a function named `generate` is on the call stack, as libraries call text generation."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code.co_name == "generate":
            return True
        frame = frame.f_back
    return False
